"""What no balancer can know: the work that each worker really has before it. For the clairvoyant reference."""

import math

import numpy as np

from simulator.engine import layout as at
from simulator.engine.batcher import work_of
from simulator.engine.compiled import compiled, inlined
from simulator.engine.layout import Sim

NEVER_S = 1e9
"""When a worker that is down or stalled will be done, as far as a pick is concerned."""


@inlined
def _batches_s(sim: Sim, e: int, g: int, m: int, rows: float, work: float) -> float:
    """Device seconds of so many rows, in full batches and a rest, whose work is `work` in all."""
    table = sim.plan.table[g, m]
    if rows <= 0 or table < 0:
        return 0.0
    most = int(sim.plan.model[e * sim.sizes.models + m, at.M_MAX_ROWS])
    full, rest = int(rows) // most, math.ceil(rows) % most
    seconds = full * sim.plan.device_s[table, most]
    if rest > 0:
        seconds += sim.plan.device_s[table, rest]
    return seconds * (work / rows) / sim.plan.worker[g, at.W_SPEED]


@inlined
def _queued(sim: Sim, e: int, g: int, m: int) -> tuple[float, float]:
    """Rows and work of one model that are queued at a worker or on the way there."""
    x = sim.state
    rows, work = x.coming_rows[g, m], x.coming_work[g, m]
    for level in range(sim.sizes.levels + 1):
        k = x.queue_head[g, m, level]
        for _ in range(x.queue_count[g, m, level]):
            rows += sim.demand.rows[e, k]
            work += sim.demand.rows[e, k] * sim.demand.work[e, k]
            k = x.next[e, k]
    return rows, work


@inlined
def _left_s(sim: Sim, g: int, now_s: float) -> float:
    x = sim.state
    left_s = 0.0
    for slot in range(sim.sizes.slots):
        if x.slot_state[g, slot] != at.FREE:
            left_s += max(x.slot_left_s[g, slot], 0.0)
            if x.slot_state[g, slot] == at.ON_HOST:
                left_s += x.slot_ready_s[g, slot] - now_s
    if x.whole[g, at.ACTIVE] > 0:
        together = 1 + sim.plan.worker[g, at.W_INTERFERENCE] * (x.whole[g, at.ACTIVE] - 1)
        left_s -= x.whole[g, at.ACTIVE] * (now_s - x.real[g, at.AT]) / together / x.real[g, at.SLOWNESS]
    return max(left_s, 0.0)


@compiled
def see(sim: Sim, waiting: np.ndarray, pending: np.ndarray, backlog_s: np.ndarray, completion_s: np.ndarray) -> None:
    """For what waits in each environment: true pending, backlog and completion at each worker, `(e, n)`.

    The backlog is the device seconds left of what executes, and of what is queued or on the way in the fullest batches,
    by the rate at which the device works them off. Noise to come counts as its mean.
    """
    n = sim.sizes.workers
    for e in range(waiting.size):
        if not waiting[e]:
            continue
        k, now_s = sim.state.counts[e, at.DECIDING], sim.state.clock[e, at.NOW]
        model, size = sim.demand.model[e, k], sim.demand.rows[e, k]
        for w in range(n):
            g = e * n + w
            whole = sim.state.whole[g]
            concurrency = sim.plan.worker[g, at.W_CONCURRENCY]
            rate = concurrency / (1 + sim.plan.worker[g, at.W_INTERFERENCE] * (concurrency - 1))
            rate /= sim.state.real[g, at.SLOWNESS]
            total_s, more_s = _left_s(sim, g, now_s), 0.0
            pending[e, w] = whole[at.QUEUED] + whole[at.EXECUTING]
            for m in range(sim.sizes.models):
                rows, work = _queued(sim, e, g, m)
                before_s = _batches_s(sim, e, g, m, rows, work)
                total_s += before_s
                if m == model:
                    own = size * work_of(sim, e, g, k, False)
                    more_s = _batches_s(sim, e, g, m, rows + size, work + own) - before_s
            if whole[at.UP] and not whole[at.STALLED]:
                backlog_s[e, w] = total_s / rate
                completion_s[e, w] = (total_s + more_s) / rate
            else:
                backlog_s[e, w] = completion_s[e, w] = NEVER_S
