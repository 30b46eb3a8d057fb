"""Prequal: the hot-cold lexicographic rule, fed by reports rather than probes."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from policies.base import FloatArray, option
from policies.choices import least_of
from policies.costs import CostPolicy, quantile_of

_HOT = 1e15
"""Added to the pending of hot workers, so that each is behind every cold one and hot ones stay in order."""


@dataclasses.dataclass(frozen=True)
class Prequal(CostPolicy):
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

    choice = least_of("pool")
    facts: ClassVar = {"hot_above": quantile_of("pending", "hot_quantile")}

    def columns(self) -> dict[str, str]:
        """Latency: the average and, where there is none, the service time; or the completion time for both."""
        expected = self.latency == "expected"
        return {
            "seen_s": "completion_s" if expected else "latency_s",
            "unseen_s": "completion_s" if expected else "service_s",
        }

    @staticmethod
    def cost(pending: FloatArray, seen_s: FloatArray, unseen_s: FloatArray, hot_above: FloatArray) -> FloatArray:
        """One number in the rule's order: cold by latency, then hot by pending."""
        latency_s = np.where(seen_s > 0.0, seen_s, unseen_s)
        return np.where(pending > hot_above, pending + _HOT, np.fmin(latency_s, _HOT))
