"""Sequences: where they belong, and what workers know of them."""

import numpy as np

from balancer.kernel import worker_columns
from simulator.engine import knowledge
from simulator.engine import layout as at
from simulator.engine.compiled import from_source, inlined, mix, outlined
from simulator.engine.layout import Sim

_sequence_bid = from_source(worker_columns.sequence_bid)


@inlined
def in_sequence(sim: Sim, e: int, k: int) -> bool:
    return sim.plan.env[e, at.E_EXTRAS] > 0 and sim.demand.sequence[e, k] >= 0


@outlined
def find_worker(sim: Sim, e: int, k: int) -> int:
    """Set `decision.mask` to the workers that the request's sequence may belong to, and return the one that it belongs
    to; -1: there is none.
    """
    b, best, best_bid = sim.demand.balancer[e, k], -1, np.inf
    mixed_key = mix(sim.demand.key[e, k])
    for w in range(sim.sizes.workers):
        member = knowledge.is_member(sim, e, knowledge.row(sim, e, b, w), w, sim.demand.model[e, k])
        sim.decision.mask[e, w] = member
        if member:
            bid = _sequence_bid(sim, e, w, mixed_key)
            if bid < best_bid:
                best, best_bid = w, bid
    return best


@outlined
def is_known(sim: Sim, e: int, g: int, k: int) -> bool:
    """Whether the worker takes a request of a sequence: it starts it, or the worker knows it."""
    x, q, w = sim.state, sim.demand.sequence[e, k], g - e * sim.sizes.workers
    if sim.demand.starts[e, k]:
        return True
    return x.sequence_worker[e, q] == w and x.sequence_epoch[e, q] == x.model_epoch[g, sim.demand.model[e, k]]


@outlined
def begin(sim: Sim, e: int, g: int, k: int) -> None:
    """The worker has queued a request of a sequence: it knows it from now on."""
    q = sim.demand.sequence[e, k]
    sim.state.sequence_worker[e, q] = g - e * sim.sizes.workers
    sim.state.sequence_epoch[e, q] = sim.state.model_epoch[g, sim.demand.model[e, k]]
