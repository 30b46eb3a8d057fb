"""Policies that decide inside the engine: the kernel's answers, compiled."""

from __future__ import annotations

import types
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from balancer.kernel.compiled.numba_records import Native
from balancer.kernel.deciding import deciding
from balancer.kernel.policy_answers import Answer, Compiler, answering, options_of
from balancer.kernel.state import Options, RequestFeatures
from balancer.scheduler.keys import STICKY
from policies import Policy
from policies.base import FloatArray
from simulator.engine.calls import called_by_address
from simulator.engine.coming import request_of, uniform_of
from simulator.engine.compiled import from_source, inlined, outlined
from simulator.engine.knowledge import row
from simulator.engine.layout import Sim

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
    return EngineDecider(_address(found.name, found.answer, sim, options), options)


def placer(sim: Native, options: Native) -> int:
    """Address of what places requests with keys; it takes any options, and has its own."""
    found = answering(STICKY, _COMPILER)
    assert found is not None  # it ships
    own = np.array(found.options)

    def answered(x: Any, options: Options, e: int, first: int, request: RequestFeatures, now_s: float) -> int:
        return int(found.answer(x, _OwnOptions(own), e, first, request, now_s))  # type: ignore[arg-type]  # it has no weights

    return _address("-".join(("sticky", *map(str, found.options))), inlined(answered), sim, options)


class _OwnOptions(NamedTuple):
    values: FloatArray


def _address(name: str, answer: Answer, sim: Native, options: Native) -> int:
    key = (name, sim.numba_type)
    if key not in _functions:
        decision = deciding(_unchecked(answer), _STEPS)
        by_it = types.FunctionType(_decide.__code__, {**_decide.__globals__, "_decision": decision})
        _functions[key] = called_by_address(by_it, name, sim, options)
    address: int = _functions[key].address
    return address


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
