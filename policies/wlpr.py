"""Weighted least pending requests: the shortest queue for its worker's capacity, this request included."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from policies.base import FleetView, FloatArray, Policy, Request, least, option


@dataclasses.dataclass(frozen=True)
class WeightedLeastPending(Policy):
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

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Shares for the least pending per weight, `(..., n)`; ties share."""
        pending = fleet.pending + 1.0 if self.count_self else fleet.pending
        return least(pending / fleet.weight, fleet.eligible)
