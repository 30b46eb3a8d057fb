"""Who may serve, by the age of what is known: workers without fresh reports only where no fresh one is left."""

from __future__ import annotations

import numpy as np

from balancer.core.kernel.state import REPORTS_REQUIRED, STALE_AFTER_S, AnyArray, Books


def is_fresh(x: Books, e: int, r: int, now_s: float) -> bool:
    """Whether the last report of the worker in row `r` is young enough."""
    return bool(now_s - x.desk.reported_s[r] <= x.desk.settings[e, STALE_AFTER_S])


def keep_fresh(x: Books, e: int, first: int, now_s: float, mask: AnyArray) -> int:
    """Leave in `mask`, `(n,)`, the fresh ones, if there are any or reports do not matter; return how many are left.

    `first` is the row of the first worker.
    """
    fresh, count = 0, 0
    for w in range(len(mask)):
        count += mask[w]
        fresh += mask[w] and is_fresh(x, e, first + w, now_s)
    if not fresh or not x.desk.settings[e, REPORTS_REQUIRED]:
        return int(count)
    for w in range(len(mask)):
        mask[w] = mask[w] and is_fresh(x, e, first + w, now_s)
    return int(fresh)


def fresh_until_s(x: Books, e: int, first: int, workers: int, now_s: float) -> float:
    """When the first of the workers that are fresh now no longer is; what else changes it is a report."""
    oldest_s = np.inf
    for r in range(first, first + workers):
        if is_fresh(x, e, r, now_s):
            oldest_s = min(oldest_s, x.desk.reported_s[r])
    return float(oldest_s + x.desk.settings[e, STALE_AFTER_S])
