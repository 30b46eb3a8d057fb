"""Policies that decide inside the engine: the kernel's answers, compiled."""

from __future__ import annotations

import types
from typing import Any, NamedTuple

from balancer.kernel import picking
from balancer.kernel.answers import Compiler, answering, options_of
from balancer.kernel.compiled.kinds import Native
from balancer.kernel.state import Options
from policies import Policy
from simulator.engine.calls import called_by_address
from simulator.engine.coming import request_of, uniform_of
from simulator.engine.compiled import from_source, inlined
from simulator.engine.knowledge import row
from simulator.engine.layout import Sim

_COMPILER = Compiler(from_source, inlined)
_draw = from_source(picking.draw_by_sums)
_answer: Any = None
"""In its place `_decide` has the answer of a policy. Closed over, it would have the cache miss in every process, since
numba takes what a function closes over for a part of its key, and a compiled function has another key each time."""


class EngineDecider(NamedTuple):
    """A policy for the engine."""

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
        deciding = types.FunctionType(_decide.__code__, {**_decide.__globals__, "_answer": found.answer})
        _functions[key] = called_by_address(deciding, found.name, sim, options)
    return EngineDecider(_functions[key].address, options)


def _decide(sim: Sim, options: Options, e: int, k: int, now_s: float) -> int:
    b = sim.demand.balancer[e, k]
    w: int = _answer(sim, options, e, row(sim, e, b, 0), request_of(sim, e, k, now_s), now_s)
    if w < 0:
        shares = sim.decision.shares[e]
        w = _draw(shares, uniform_of(sim, e, b), sim.decision.scratch[e, : len(shares)])
    return w
