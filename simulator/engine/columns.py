"""The columns of `policies.base.FleetView`, for one worker at a time: the core's own functions, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.costs import LOT, ONE
from simulator.engine.compiled import (
    TokenLimits,
    alone_s,
    backlog_now_s,
    completion_now_s,
    error_rate_now,
    inlined,
    latency_now_s,
    level_now,
    lot_of,
    mix,
    others_left,
    pending_now,
)
from simulator.engine.layout import E_CAPACITY, E_ERROR_DECAY, E_LATENCY_DECAY, E_REFILL, E_TARGET, Sim


# Each takes the environment, the worker, its row as the deciding balancer knows it, the request and the time.
@inlined
def weight(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    return sim.plan.weight[e, w]


@inlined
def in_flight(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    return sim.queue.in_flight[r]


@inlined
def reported_pending(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    return sim.queue.reported_pending[r]


@inlined
def pending(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`; needs no arithmetic where there are no others."""
    q = sim.queue
    if q.others[r] == 0:
        return q.in_flight[r]
    return pending_now(q, r, others_left(q, r, now_s))


@inlined
def backlog_s(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    q = sim.queue
    left = others_left(q, r, now_s) if q.others[r] > 0 else 0.0
    return backlog_now_s(q, r, now_s, left)


@inlined
def completion_s(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    at = (r, sim.demand.model[e, k])
    return completion_now_s(sim.queue, sim.service, at, sim.demand.rows[e, k], backlog_s(sim, e, w, r, k, now_s))


@inlined
def service_s(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    return alone_s(sim.service, (r, sim.demand.model[e, k]), sim.demand.rows[e, k])


@inlined
def latency_s(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    return latency_now_s(sim.latency, r, now_s, sim.plan.env[e, E_LATENCY_DECAY])


@inlined
def error_rate(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`; needs no arithmetic where there were no errors."""
    if sim.latency.errors[r] == 0:
        return 0.0
    return error_rate_now(sim.latency, r, now_s, sim.plan.env[e, E_ERROR_DECAY])


@inlined
def tokens(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    env = sim.plan.env
    return level_now(sim.tokens, r, TokenLimits(env[e, E_CAPACITY], env[e, E_REFILL], env[e, E_TARGET]), now_s)


@inlined
def report_age_s(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `FleetView`."""
    return now_s - sim.known.reported_s[r]


@inlined
def lot(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `policies.costs.LOT`; a key of 0 is none."""
    key = sim.demand.key[e, k]
    if key == 0:
        key = np.uint64(sim.known.number[e, sim.demand.balancer[e, k]])
    return lot_of(sim.plan.name_hash[e, w], mix(key))


@inlined
def one(sim: Sim, e: int, w: int, r: int, k: int, now_s: float) -> float:
    """See `policies.costs.ONE`."""
    return 1.0


OF_WORKER: dict[str, Any] = {
    "weight": weight,
    "in_flight": in_flight,
    "reported_pending": reported_pending,
    "pending": pending,
    "backlog_s": backlog_s,
    "completion_s": completion_s,
    "service_s": service_s,
    "latency_s": latency_s,
    "error_rate": error_rate,
    "tokens": tokens,
    "report_age_s": report_age_s,
    LOT: lot,
    ONE: one,
}
"""By the names that policies know them by."""


@inlined
def _keyed(sim: Sim, e: int, k: int) -> float:
    return 1.0 if sim.demand.key[e, k] != 0 else 0.0


OF_REQUEST: dict[str, Any] = {
    "rows": inlined(lambda sim, e, k: sim.demand.rows[e, k]),
    "deadline_s": inlined(lambda sim, e, k: sim.demand.deadline_s[e, k]),
    "priority": inlined(lambda sim, e, k: sim.demand.priority[e, k]),
    "keyed": _keyed,
}
"""See `policies.costs.OF_REQUEST`."""
