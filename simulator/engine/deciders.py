"""Policies that decide inside the engine: the kernel's answers, compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

from balancer.core.kernel import picking
from balancer.core.kernel.answers import Answering, Compiler, answering, options_of
from balancer.core.kernel.state import Options
from balancer.native.kinds import Native
from policies import Policy
from simulator.engine.calls import called_by_address
from simulator.engine.coming import ask_of, uniform_of
from simulator.engine.compiled import from_source, inlined
from simulator.engine.knowledge import row
from simulator.engine.layout import Sim

_COMPILER = Compiler(from_source, inlined)
_draw = from_source(picking.draw_by_sums)


class Decider(NamedTuple):
    """A policy for the engine."""

    address: int
    """Of the compiled function: (sim, options, environment, request, time) to the worker, or -1 to shed."""
    options: Native


_functions: dict[tuple[str, Any], Any] = {}
"""Kept, as code that is called by its address must be."""


def decider(policy: Policy, sim: Native, workers: int) -> Decider | None:
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
        _functions[key] = called_by_address(_decide(found), found.name, sim, options)
    return Decider(_functions[key].address, options)


def _decide(found: Answering) -> Any:
    answer = found.answer

    def decide(sim: Sim, options: Options, e: int, k: int, now_s: float) -> int:
        b = sim.demand.balancer[e, k]
        w = answer(sim, options, e, row(sim, e, b, 0), ask_of(sim, e, k, now_s), now_s)
        if w < 0:
            shares = sim.desk.shares[e]
            w = _draw(shares, uniform_of(sim, e, b), sim.desk.scratch[e, : len(shares)])
        return w

    return decide
