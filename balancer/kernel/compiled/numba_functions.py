"""Functions of core and policies, compiled from their own source: production and simulator run the same code.

numba resolves the names that a function uses when it compiles it, so each function is copied with a namespace in which
those that it calls are the compiled ones. Records of arrays become native ones of the same arrays, see
`numba_records.py`.
"""

import dis
import functools
import math
import pathlib
import types
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import platformdirs

from balancer.kernel.compiled.library import SOURCES, digest_of
from balancer.kernel.compiled.numba_linking import LinkedCompiler, OutermostCompiler
from balancer.kernel.estimators.columns import exp


def keep_in_cache(*folders: pathlib.Path) -> None:
    """Compile what Python calls only where it, or what it calls, has changed: numba itself looks at one file alone.

    Args:
        folders: Of more sources, beside those of policies and core. Call it before they are decorated.
    """
    path = platformdirs.user_cache_path("balancer") / "engine" / digest_of(*SOURCES, *folders)
    numba.config.CACHE_DIR = str(path)  # type: ignore[attr-defined]  # made at its import


_njit: Any = numba.njit
# Without numba's reference counts: nothing is allocated in here.
OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "pipeline_class": OutermostCompiler}
_NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Each would be the whole function again."""
_LINKED = {**_NO_WRAPPERS, **OPTIONS, "pipeline_class": LinkedCompiler}
inlined: Callable[..., Any] = _njit(forceinline=True, **_LINKED)
"""For what happens to every request. Python cannot call it."""
outlined: Callable[..., Any] = _njit(**_LINKED)
"""For what is rarer. Python cannot call it."""
exported: Callable[..., Any] = functools.partial(_njit, **_NO_WRAPPERS, **OPTIONS)
"""With its signature: for what C calls."""
uncached: Callable[..., Any] = _njit(no_cfunc_wrapper=True, **OPTIONS)
"""For what Python calls, and is made of functions that the cache does not know."""
compiled: Callable[..., Any] = _njit(cache=True, nogil=True, no_cfunc_wrapper=True, **OPTIONS)


@inlined
def _where(condition: bool, x: float, y: float) -> float:
    """`np.where` for single numbers, which numba's own is not for: it allocates."""
    return x if condition else y


@inlined
def _count_nonzero(mask: Any) -> int:
    """`np.count_nonzero` of `(n,)`, without a copy."""
    count = 0
    for w in range(len(mask)):
        count += mask[w]
    return count


_numpy = types.ModuleType("numpy")
_numpy.__dict__.update(vars(np), where=_where, count_nonzero=_count_nonzero)


_COMPILED = ("policies.", "balancer.kernel.", "balancer.scheduler.holding.")


@functools.cache
def from_source(function: types.FunctionType, made: Callable[..., Any] = inlined) -> Any:
    """A function of policies or core, compiled, with all of theirs that it calls.

    `made`: what compiles the function itself. What it calls is inlined.
    """
    namespace = dict(function.__globals__)
    # Not `co_names`, in which fields of records stand as well.
    for name in {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}:
        value = namespace.get(name)
        if value is exp:
            namespace[name] = math.exp  # The C library's as well.
        elif isinstance(value, types.FunctionType) and value.__module__.startswith(_COMPILED):
            namespace[name] = from_source(value)
        elif isinstance(value, np.ndarray) and not value.ndim:
            # A number that NumPy prefers as an array of no axis.
            namespace[name] = value.item()
        elif value is np:
            namespace[name] = _numpy
    return made(types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__))
