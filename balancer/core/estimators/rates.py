"""What comes to each worker, and what one more second of its device costs those who come later.

Whoever goes to a worker makes later requests wait there. Where requests are few and long that costs little; where they
are many and short, a long one in front of them costs each of them its own time. Selfish requests do not mind: the price
of a place tells them.

Written down is how often requests are picked for the worker, and what share of its device they take at the least, in
full batches: the work that no choice of the moment can save. The work that a request really adds (a batch of its own,
or little beside others) is in `completion_s` already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from balancer.core.estimators.columns import At, per_worker
from balancer.core.estimators.service import Service
from policies.base import FloatArray

# A worker counts as no busier, or one request of four more would make it ten times as dear.
_MOST_BUSY = 0.9
# The first requests of all are no rate.
_LEAST_KNOWN = np.array(0.1)
_ZERO, _ONE, _HALF = np.array(0.0), np.array(1.0), np.array(0.5)


@dataclass
class Rates:
    """Of all balancers' requests, as own picks tell: the others are assumed to send as much as we do; `(..., n)`.

    Averages as of the last pick, over what is known of the past: they are right from the first picks on.
    """

    rate_at_s: FloatArray = per_worker()
    """When the last pick was."""
    rate_known: FloatArray = per_worker()
    """Share of the averages' weight that there is a past for, 0 to 1."""
    requests_per_s: FloatArray = per_worker()
    """Picked for the worker, times `rate_known`."""
    least_busy: FloatArray = per_worker()
    """Device seconds a second that they take at the least, times `rate_known`."""


def least_work_s(s: Service, at: At, rows: float | FloatArray) -> FloatArray:
    """Device seconds of `rows` rows in full batches; `at`: worker and model."""
    each_s = s.fixed_s[at] / s.max_batch_rows[at] + s.per_row_s[at]
    work_s: FloatArray = each_s * rows / s.parallel[at]
    return work_s


def picked(r: Rates, w: int, least_s: float, balancers: float, memory_s: float, now_s: float) -> None:
    """Learn of a pick of `least_s` seconds of least work, and as many by the other balancers."""
    keep = memory_s / (memory_s + max(now_s - r.rate_at_s[w], 0.0))
    r.rate_known[w] = r.rate_known[w] * keep + (1 - keep)
    r.requests_per_s[w] = r.requests_per_s[w] * keep + balancers / memory_s
    r.least_busy[w] = r.least_busy[w] * keep + balancers * least_s / memory_s
    r.rate_at_s[w] = now_s


def price_now_s(
    r: Rates,
    at: At,
    least_s: FloatArray,
    backlog_s: float | FloatArray,
    added_s: float | FloatArray,
    memory_s: float,
    now_s: float | FloatArray,
) -> FloatArray:
    """Seconds that those who come later wait longer, all together, than if an average request went there.

    In a queue with Poisson arrivals at `rate`, busy the share `busy` of the time, x seconds of work behind u seconds
    cost those who come later rate * x * (2 u + x) / (2 (1 - busy)) seconds (Hyytiä, Penttinen and Aalto 2012, from the
    mean value of an M/G/1 queue). Work has to go somewhere, so an average request there is charged nothing, and a
    longer one for what it takes beyond that.

    Args:
        r: Rates.
        at: Workers.
        least_s: Least work of the request there.
        backlog_s: Before it.
        added_s: Work that it adds.
        memory_s: Time constant of the averages.
        now_s: Time.
    """
    keep = memory_s / (memory_s + np.maximum(now_s - r.rate_at_s[at], _ZERO))
    share = keep / np.maximum(r.rate_known[at] * keep + (_ONE - keep), _LEAST_KNOWN)
    busy = r.least_busy[at] * share
    beyond = np.maximum(r.requests_per_s[at] * share * least_s - busy, _ZERO)
    price_s: FloatArray = beyond * (backlog_s + added_s * _HALF) / (_ONE - np.minimum(busy, _MOST_BUSY))
    return price_s
