"""Makes `benchmarks` importable, by its own path: with the repository on sys.path, its folder triton/ would be too."""

import importlib.util
import sys
from pathlib import Path

if "benchmarks" not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        "benchmarks", Path(__file__).parents[2] / "benchmarks" / "__init__.py"
    )
    assert _spec is not None
    assert _spec.loader is not None
    _package = importlib.util.module_from_spec(_spec)
    sys.modules["benchmarks"] = _package
    _spec.loader.exec_module(_package)
