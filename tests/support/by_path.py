"""Modules that are found by their path: Triton's models, whose folder is no package, and `dev`, which is not installed.

With the repository on sys.path, its folder triton/ would be importable too.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load(path: str, name: str = "") -> ModuleType:
    """Import a file, by its path from the repository's root, as `name`, or as the file is called."""
    spec = importlib.util.spec_from_file_location(name or Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
