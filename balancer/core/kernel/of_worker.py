"""The columns of `policies.base.FleetView`, for one worker at a time.

Each takes the books, the fleet, the worker, its row as the deciding balancer knows it, the request and the time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from balancer.core.estimators.latency import error_rate_now, latency_now_s
from balancer.core.estimators.queue import backlog_now_s, completion_now_s, others_left, pending_now
from balancer.core.estimators.service import alone_s
from balancer.core.estimators.tokens import TokenLimits, level_now
from balancer.core.kernel.state import (
    CAPACITY,
    ERROR_DECAY_S,
    LATENCY_DECAY_S,
    REFILL_PER_S,
    TARGET_PENDING,
    Ask,
    Books,
)
from policies.costs import LOT, ONE
from policies.hashing import lot_of


def pending(x: Books, e: int, w: int, r: int, ask: Ask, now_s: float) -> float:
    """See `FleetView`; needs no arithmetic where there are no others."""
    if x.queue.others[r] == 0:
        return float(x.queue.in_flight[r])
    return float(pending_now(x.queue, r, others_left(x.queue, r, now_s)))


def backlog_s(x: Books, e: int, w: int, r: int, ask: Ask, now_s: float) -> float:
    """See `FleetView`."""
    left = float(others_left(x.queue, r, now_s)) if x.queue.others[r] > 0 else 0.0
    return float(backlog_now_s(x.queue, r, now_s, left))


def completion_s(x: Books, e: int, w: int, r: int, ask: Ask, now_s: float) -> float:
    """See `FleetView`."""
    before_s = backlog_s(x, e, w, r, ask, now_s)
    return float(completion_now_s(x.queue, x.service, (r, ask.model), ask.rows, before_s))


def service_s(x: Books, e: int, w: int, r: int, ask: Ask, now_s: float) -> float:
    """See `FleetView`."""
    return float(alone_s(x.service, (r, ask.model), ask.rows))


def latency_s(x: Books, e: int, w: int, r: int, ask: Ask, now_s: float) -> float:
    """See `FleetView`."""
    return float(latency_now_s(x.latency, r, now_s, x.desk.settings[e, LATENCY_DECAY_S]))


def error_rate(x: Books, e: int, w: int, r: int, ask: Ask, now_s: float) -> float:
    """See `FleetView`; needs no arithmetic where there were no errors."""
    if x.latency.errors[r] == 0:
        return 0.0
    return float(error_rate_now(x.latency, r, now_s, x.desk.settings[e, ERROR_DECAY_S]))


def token_limits(x: Books, e: int) -> TokenLimits:
    """Of the buckets."""
    settings = x.desk.settings
    return TokenLimits(settings[e, CAPACITY], settings[e, REFILL_PER_S], settings[e, TARGET_PENDING])


def tokens(x: Books, e: int, w: int, r: int, ask: Ask, now_s: float) -> float:
    """See `FleetView`."""
    return float(level_now(x.tokens, r, token_limits(x, e), now_s))


def lot(x: Books, e: int, w: int, r: int, ask: Ask, now_s: float) -> float:
    """See `policies.costs.LOT`."""
    return float(lot_of(x.desk.name_hash[e, w], np.uint64(ask.mixed_key)))


OF_WORKER: dict[str, Callable[[Books, int, int, int, Ask, float], float]] = {
    "weight": lambda x, e, w, r, ask, now_s: float(x.desk.weight[e, w]),
    "in_flight": lambda x, e, w, r, ask, now_s: float(x.queue.in_flight[r]),
    "reported_pending": lambda x, e, w, r, ask, now_s: float(x.queue.reported_pending[r]),
    "pending": pending,
    "backlog_s": backlog_s,
    "completion_s": completion_s,
    "service_s": service_s,
    "latency_s": latency_s,
    "error_rate": error_rate,
    "tokens": tokens,
    "report_age_s": lambda x, e, w, r, ask, now_s: float(now_s - x.desk.reported_s[r]),
    LOT: lot,
    ONE: lambda x, e, w, r, ask, now_s: 1.0,
}
"""By the names that policies know them by."""

OF_REQUEST: dict[str, Callable[[Ask], float]] = {
    "rows": lambda ask: ask.rows,
    "deadline_s": lambda ask: ask.deadline_s,
    "priority": lambda ask: ask.priority,
    "keyed": lambda ask: ask.keyed,
}
"""See `policies.costs.OF_REQUEST`."""
