"""Makes `dev`, which is not installed, importable by its own path: with the repository on sys.path, its folder triton/
would be importable too.
"""

import importlib.util
import sys
from pathlib import Path

if "dev" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("dev", Path(__file__).parents[2] / "dev" / "__init__.py")
    assert _spec is not None
    assert _spec.loader is not None
    _package = importlib.util.module_from_spec(_spec)
    sys.modules["dev"] = _package
    _spec.loader.exec_module(_package)
