"""How sure balancers are that workers have the key of what waits for a decision."""

from __future__ import annotations

import numpy as np

from balancer.core.kernel import of_worker
from balancer.core.kernel.state import Ask
from simulator.engine.compiled import compiled, from_source, mix
from simulator.engine.knowledge import row
from simulator.engine.layout import Sim

_fill_cached = from_source(of_worker.fill_cached)


@compiled
def see_cached(sim: Sim, found: np.ndarray) -> None:
    """Write `cached` of each worker for the request that waits in each environment, `(e, n)`; 0 where it has no key."""
    asked = sim.asked
    for e in range(asked.rows.size):
        found[e] = 0.0
        if asked.key[e] != 0:
            ask = Ask(asked.model[e], asked.rows[e], mix(asked.key[e]), 1.0, np.inf, 0.0, 0)
            _fill_cached(sim, e, row(sim, e, asked.balancer[e], 0), ask, asked.now_s[e], found[e])
