"""Weighted least pending requests: the shortest queue for its worker's capacity, this request included."""

import dataclasses
from typing import ClassVar

from policies.base import FloatArray, option
from policies.choices import LEAST
from policies.costs import CostPolicy


@dataclasses.dataclass(frozen=True)
class WeightedLeastPending(CostPolicy):
    """Least `(pending + 1) / weight`: right where the weights are right and requests are alike.

    That is the time until the request is done, in units of the weights. Without the request itself all idle workers
    look alike, so weights count for nothing where little is pending.
    """

    name: ClassVar[str] = "wlpr"
    summary: ClassVar[str] = "Weighted least pending requests: least (pending + 1) / weight."
    source: ClassVar[str] = "Linux Virtual Server, schedulers wlc (weighted least connection) and sed"

    count_self: bool = option(
        True,
        "Whether to count the request itself; without it, pending / weight, idle workers share whatever they weigh",
    )

    choice = LEAST

    @staticmethod
    def cost(pending: FloatArray, weight: FloatArray, count_self: float) -> FloatArray:
        return (pending + count_self) / weight
