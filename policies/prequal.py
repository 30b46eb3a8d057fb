"""Prequal: the hot-cold lexicographic rule, fed by reports rather than probes."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from policies.base import BoolArray, FleetView, FloatArray, Policy, Request, count_of, option
from policies.choices import sampled_least

_HOT = 1e15
"""Added to the pending of hot workers, so that each is behind every cold one and hot ones stay in order."""


@dataclasses.dataclass(frozen=True)
class Prequal(Policy):
    """Workers with pending above a quantile of the fleet are hot. Of a sample: the cold one of least latency, or the
    hot one of least pending where all are hot.

    Prequal probes servers at random and keeps a small pool of answers. Here reports tell of all, so the threshold is
    exact and the pool is sampled afresh for each request (in closed form), which keeps what matters of it: balancers
    compare different workers, so they do not herd. A pool of the whole fleet does: a latency average answers too late
    for requests not to pile up on whoever has the lowest.
    """

    name: ClassVar[str] = "prequal"
    summary: ClassVar[str] = "Least latency among workers whose queue is not among the longest."
    source: ClassVar[str] = "Wydrowski et al., Load is not what you should balance: introducing Prequal, NSDI 2024"

    hot_quantile: float = option(
        0.84, "Quantile of pending (0 to 1, lower order statistic) above which a worker is hot", ge=0.0, le=1.0
    )
    pool: int = option(3, "Workers sampled for the comparison, as many as Prequal probes a query; 0: all", ge=0)
    latency: Literal["observed", "expected"] = option(
        "observed",
        "Latency compared among cold workers: observed (average of finished requests, service time where none has) or "
        "expected (completion time of this request)",
    )

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """The probability to be first of a sample by the rule, `(..., n)`; ties share."""
        eligible, pending = fleet.eligible, fleet.pending
        if self.latency == "expected":
            latency_s = fleet.completion_s
        else:
            latency_s = np.where(fleet.latency_s > 0.0, fleet.latency_s, fleet.service_s)
        hot = pending > _lower_quantile(pending, eligible, self.hot_quantile)
        # One number in the rule's order: cold by latency, then hot by pending.
        return sampled_least(np.where(hot, pending + _HOT, np.fmin(latency_s, _HOT)), eligible, self.pool)


def _lower_quantile(values: FloatArray, eligible: BoolArray, quantile: float) -> float | FloatArray:
    """The lower quantile (an order statistic) over eligible workers; a float for `(n,)`, else `(..., 1)`."""
    count = count_of(eligible)
    masked = np.where(eligible, values, np.inf)
    if isinstance(count, int):
        if count == 0:
            return np.inf
        place = int(quantile * (count - 1))
        masked.partition(place)
        return float(masked[place])
    if masked.size == 0:
        return np.inf
    masked.sort(axis=-1)
    places = (quantile * np.maximum(count - 1, 0)).astype(np.int64)
    return np.take_along_axis(masked, places, axis=-1)
