"""Latency and error averages by worker.

Latency is peak-sensitive (Finagle's Peak EWMA): a slower observation replaces the average at once, a faster one pulls
it down with the time constant. An error is never a fast answer: it counts as no faster than the average, so a worker
that fails quickly does not look quick (the mistake that linkerd names among its regrets).
"""

import math
from dataclasses import dataclass

import numpy as np

from balancer.kernel.estimators.columns import At, exp, per_worker
from policies.base import FloatArray


@dataclass
class Latency:
    """Averages and when each was last touched; `(..., n)`."""

    latency_s: FloatArray = per_worker()
    latency_at_s: FloatArray = per_worker()
    errors: FloatArray = per_worker()
    errors_at_s: FloatArray = per_worker()


def observe(x: Latency, w: int, latency_s: float, ok: bool, now_s: float, decay_s: float, error_decay_s: float) -> None:
    """Learn the outcome of one request on worker `w`; without a latency (NaN), whether it was an error alone."""
    if not math.isnan(latency_s):
        average_s = x.latency_s[w]
        if latency_s > average_s:
            x.latency_s[w] = latency_s
            x.latency_at_s[w] = now_s
        elif ok:
            keep = math.exp(-max(now_s - x.latency_at_s[w], 0.0) / decay_s)
            x.latency_s[w] = average_s * keep + latency_s * (1 - keep)
            x.latency_at_s[w] = now_s
    if x.errors[w] > 0 or not ok:  # else nothing changes
        # One outcome has at least the weight of a hundredth of the time constant, so that errors show at any rate.
        keep = math.exp(-max(now_s - x.errors_at_s[w], error_decay_s / 100) / error_decay_s)
        x.errors[w] = x.errors[w] * keep + (0.0 if ok else 1.0) * (1 - keep)
    x.errors_at_s[w] = now_s


def error_rate_now(x: Latency, at: At, now_s: float | FloatArray, error_decay_s: float) -> FloatArray:
    """Share of requests that failed, forgotten with time so that an avoided worker is tried again."""
    rate: FloatArray = x.errors[at] * exp(-np.maximum(now_s - x.errors_at_s[at], 0.0) / error_decay_s)
    return rate


def latency_now_s(x: Latency, at: At, now_s: float | FloatArray, decay_s: float) -> FloatArray:
    """The average, forgotten with time so that a worker avoided for one slow answer is tried again."""
    average_s: FloatArray = x.latency_s[at] * exp(-np.maximum(now_s - x.latency_at_s[at], 0.0) / decay_s)
    return average_s
