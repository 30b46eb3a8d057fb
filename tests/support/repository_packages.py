"""Makes `benchmarks` and `experiments`, which are not installed, importable by their own paths: with the repository on
sys.path, its folder triton/ would be importable too.
"""

import importlib.util
import sys
from pathlib import Path

for _name in ("benchmarks", "experiments"):
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, Path(__file__).parents[2] / _name / "__init__.py")
        assert _spec is not None
        assert _spec.loader is not None
        _package = importlib.util.module_from_spec(_spec)
        sys.modules[_name] = _package
        _spec.loader.exec_module(_package)
