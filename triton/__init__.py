"""No package of ours: a guard, for this folder shares its name with the Triton compiler that torch looks for.

Where the repository's root is on sys.path (python -m, a script in the root, a notebook, pytest), `import triton` finds
this folder. Without this file it would be an empty namespace package, which torch takes for the compiler
(`torch.optim.Adam(...)` then fails with "module 'triton' has no attribute 'language'"). So the import is handed over
to the compiler where one is installed, and fails, as torch expects, where none is.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _find_compiler() -> ModuleSpec | None:
    """Find the compiler among all packages of this name: it has a part named `language`, this folder has not."""
    specs = [PathFinder.find_spec(__name__, [entry]) for entry in sys.path]
    # Editable installs have finders of their own.
    specs += [finder.find_spec(__name__, None) for finder in sys.meta_path if finder is not PathFinder]
    for spec in specs:
        locations = spec.submodule_search_locations if spec is not None else None
        if any(Path(location, "language").is_dir() for location in locations or ()):
            return spec
    return None


def _hand_over() -> None:
    spec = _find_compiler()
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)
    # What stands in sys.modules when this file has run is what `import triton` returns.
    module = module_from_spec(spec)
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


_hand_over()
