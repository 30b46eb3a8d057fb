"""A token bucket a worker, whose refill follows the worker's queue.

A pick takes a token. An idle worker's bucket refills at the full rate, which falls linearly to zero at the target
number of pending requests: the bucket learns a worker's speed without being told.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from balancer.kernel.estimators.columns import At, per_worker
from balancer.kernel.settings import TokenSettings
from policies.base import FloatArray


@dataclass
class Tokens:
    """Level, refill rate and time of the last event at each worker; `(..., n)`."""

    level: FloatArray = per_worker(np.inf)
    """Infinite: full, whatever the capacity is."""
    rate_per_s: FloatArray = per_worker()
    at_s: FloatArray = per_worker()


class TokenLimits(NamedTuple):
    """`TokenSettings` for compiled code."""

    capacity: float
    refill_per_s: float
    target_pending: float


def advance(t: Tokens, w: int, pending: float, settings: TokenSettings | TokenLimits, now_s: float) -> None:
    """Refill worker `w` up to now at the rate that held since the last event, then set the rate for what is pending."""
    filled = t.level[w] + t.rate_per_s[w] * max(now_s - t.at_s[w], 0.0)
    t.level[w] = min(settings.capacity, filled)
    t.rate_per_s[w] = settings.refill_per_s * max(1 - pending / settings.target_pending, 0.0)
    t.at_s[w] = now_s


def take(t: Tokens, w: int) -> None:
    """Take the token of a pick; a pick without a token (the fallback to the least loaded) takes none."""
    t.level[w] = max(t.level[w] - 1, 0.0)


def level_now(t: Tokens, at: At, settings: TokenSettings | TokenLimits, now_s: float | FloatArray) -> FloatArray:
    """Tokens in a bucket now."""
    filled: FloatArray = t.level[at] + t.rate_per_s[at] * np.maximum(now_s - t.at_s[at], 0.0)
    return np.minimum(settings.capacity, filled)
