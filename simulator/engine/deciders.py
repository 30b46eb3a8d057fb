"""Policies that decide inside the engine: the kernel's answers, compiled."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.core import types as kinds
from numba.extending import intrinsic

from balancer.kernel.compiled.numba_functions import OPTIONS
from balancer.kernel.compiled.numba_records import Native
from balancer.kernel.deciding import deciding
from balancer.kernel.policy_answers import Answer, Compiler, answering, options_of
from balancer.kernel.state import Options, RequestFeatures
from policies import Policy
from simulator.engine.coming import request_of, uniform_of
from simulator.engine.compiled import from_source, inlined, outlined
from simulator.engine.knowledge import row
from simulator.engine.layout import Sim

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


_COMPILER = Compiler(from_source, inlined)
_STEPS = Compiler(partial(from_source, made=outlined), inlined)
_decision: Any = None
"""In its place `_decide` has a policy's decision. Closed over, it would have the cache miss in every process: numba
takes what a function closes over for a part of its key, and a compiled function has another key each time."""


class EngineDecider(NamedTuple):
    address: int
    """Of the compiled function: (sim, options, environment, request, time) to the worker, or -1 to shed."""
    options: Native


_functions: dict[tuple[str, Any], Any] = {}
"""Kept, as code that is called by its address must be."""


def decider(policy: Policy, sim: Native, workers: int) -> EngineDecider | None:
    """The policy, compiled at its first use; None where it goes on in NumPy.

    Args:
        policy: Which.
        sim: The arrays it reads.
        workers: Of the largest fleet in there.
    """
    found = answering(policy, _COMPILER)
    if found is None:
        return None
    options = Native(options_of(found, workers))
    key = (found.name, sim.numba_type)
    if key not in _functions:
        decision = deciding(_unchecked(found.answer), _STEPS)
        by_it = types.FunctionType(_decide.__code__, {**_decide.__globals__, "_decision": decision})
        _functions[key] = called_by_address(by_it, found.name, sim, options)
    return EngineDecider(_functions[key].address, options)


def _unchecked(answer: Answer) -> Answer:
    """The draw is by what is no distribution as well, as it does where a policy answers in NumPy."""

    def answered(x: Any, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
        return max(answer(x, options, e, first, request, now_s), -1)

    made: Answer = inlined(answered)
    return made


def _decide(sim: Sim, options: Options, e: int, k: int, now_s: float) -> int:
    b = sim.demand.balancer[e, k]
    first, features, uniform = row(sim, e, b, 0), request_of(sim, e, k, now_s), uniform_of(sim, e, b)
    how, found, fallbacks = sim.pending.how[e], sim.pending.found[e], sim.state.fallback[e, k]
    w: int = _decision(sim, options, e, first, features, now_s, uniform, how, -1, found, fallbacks)
    return w
