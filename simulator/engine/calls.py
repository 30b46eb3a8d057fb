"""Functions called by their address, so that what calls them is compiled once, whatever they are."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.core import types as kinds
from numba.extending import intrinsic

from balancer.kernel.compiled.numba_functions import OPTIONS
from balancer.kernel.compiled.numba_records import Native

_WORD, _NUMBER = ir.IntType(64), ir.DoubleType()


def called_by_address(function: Any, name: str, sim: Native, options: Native) -> Any:
    """Compile `function(sim, options, e, k, now_s)` to a worker, or load it; its `address` is what `call` takes.

    Args:
        function: What is compiled; it closes over nothing.
        name: Tells it apart in the cache, which does not see its globals.
        sim: Tells the type of the first argument.
        options: Of the second.
    """
    signature = kinds.int64(sim.numba_type, options.numba_type, kinds.int64, kinds.int64, kinds.float64)
    named = types.FunctionType(function.__code__, function.__globals__, name)
    named.__qualname__ = name
    cfunc: Any = numba.cfunc
    return cfunc(signature, cache=True, **OPTIONS)(named)


def _call(typing_context: Any, address: Any, sim: Any, options: Any, e: Any, k: Any, now_s: Any) -> Any:

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_WORD, [cgutils.voidptr_t, cgutils.voidptr_t, _WORD, _WORD, _NUMBER])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.call(function, arguments[1:])

    return kinds.int64(kinds.int64, sim, options, kinds.int64, kinds.int64, kinds.float64), lower


call: Callable[..., Any] = intrinsic(_call)
