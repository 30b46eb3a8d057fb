"""The router's draw, bit for bit; who decides is in `deciders.py`."""

from __future__ import annotations

import numpy as np

from simulator.engine.compiled import inlined, mix, unit
from simulator.engine.layout import FloatArray, Sim


@inlined
def draw(sim: Sim, e: int, b: int) -> float:
    """The router's number for the next decision of a balancer, uniform in [0, 1)."""
    return unit(mix(sim.plan.router_seed[e, b] ^ np.uint64(sim.known.number[e, b])))


@inlined
def take(shares: FloatArray, uniform: float) -> int:
    """Whom `Router.route` picks from these shares with that number; -1 where all are zero."""
    total = 0.0
    for w in range(shares.size):
        total += shares[w]
    target, cumulative = uniform * total, 0.0
    if total > 0:
        for w in range(shares.size):
            if shares[w] > 0:
                cumulative += shares[w]
                if cumulative > target:
                    return w
    return -1
