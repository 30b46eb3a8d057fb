"""Who may serve, by the age of what is known: workers without fresh reports only where no fresh one is left, and one
that joins the others for part of the requests at first."""

from __future__ import annotations

import numpy as np

from balancer.kernel.estimators.service import WELL_KNOWN
from balancer.kernel.state import REPORTS_REQUIRED, SLOW_START_S, STALE_AFTER_S, AnyArray, FleetState, RequestFeatures
from policies.hashing import hash_draw, mix_array


def received(x: FleetState, r: int, now_s: float) -> None:
    """A report of the worker in row `r` was taken in."""
    x.decision.reported_s[r] = now_s
    if x.decision.since_s[r] == -np.inf:
        x.decision.since_s[r] = now_s


def is_fresh(x: FleetState, e: int, r: int, now_s: float) -> bool:
    """Whether the last report of the worker in row `r` is young enough."""
    return bool(now_s - x.decision.reported_s[r] <= x.decision.settings[e, STALE_AFTER_S])


def keep_fresh(x: FleetState, e: int, first: int, now_s: float, mask: AnyArray) -> int:
    """Leave in `mask`, `(n,)`, the fresh ones, if there are any or reports do not matter; return how many are left.

    `first` is the row of the first worker.
    """
    fresh, count = 0, 0
    for w in range(len(mask)):
        count += mask[w]
        fresh += mask[w] and is_fresh(x, e, first + w, now_s)
    if not fresh or not x.decision.settings[e, REPORTS_REQUIRED]:
        return int(count)
    for w in range(len(mask)):
        mask[w] = mask[w] and is_fresh(x, e, first + w, now_s)
    return int(fresh)


def fresh_until_s(x: FleetState, e: int, first: int, workers: int, now_s: float) -> float:
    """When the first of the workers that are fresh now no longer is; what else changes it is a report."""
    oldest_s = np.inf
    for r in range(first, first + workers):
        if is_fresh(x, e, r, now_s):
            oldest_s = min(oldest_s, x.decision.reported_s[r])
    return float(oldest_s + x.decision.settings[e, STALE_AFTER_S])


def leave_out_newcomers(x: FleetState, e: int, first: int, request: RequestFeatures, now_s: float) -> None:
    """Leave in `decision.mask` a worker whose service time with the model is not known for part of the requests only.

    That part grows from nothing to all over `SLOW_START_S`, or over the time for which the oldest of them has been
    there, if that is shorter: who came together shares alike. So the oldest always stays. Which requests they are is
    decided by a draw of worker and key, or number: those that a newcomer once got it gets from then on, from every
    balancer.
    """
    over_s = x.decision.settings[e, SLOW_START_S]
    if over_s <= 0:
        return
    mask, oldest_s = x.decision.mask[e], 0.0
    for w in range(len(mask)):
        if mask[w]:
            oldest_s = max(oldest_s, now_s - x.decision.since_s[first + w])
    over_s = min(over_s, oldest_s)
    for w in range(len(mask)):
        r = first + w
        age_s = now_s - x.decision.since_s[r]
        if mask[w] and age_s < over_s and x.service.weight[r, request.model] < WELL_KNOWN:
            # Of another hash than the one that places keys: else a newcomer would get the keys that are its own last.
            draw = hash_draw(mix_array(x.decision.name_hash[e, w]), np.uint64(request.mixed_key))
            mask[w] = draw * over_s <= age_s
