"""Weighted least pending requests: the shortest queue for its worker's capacity."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from policies.base import FleetView, FloatArray, Policy, Request, least, option


@dataclasses.dataclass(frozen=True)
class WeightedLeastPending(Policy):
    """Least `pending / weight`: right where the weights are right and requests are alike."""

    name: ClassVar[str] = "wlpr"
    summary: ClassVar[str] = "Weighted least pending requests: least pending / weight."
    source: ClassVar[str] = "Linux Virtual Server, schedulers wlc (weighted least connection) and sed"

    count_self: bool = option(
        False, "Whether to count the request itself, (pending + 1) / weight, so that idle workers come by weight"
    )

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Shares for the least pending per weight, `(..., n)`; ties share."""
        pending = fleet.pending + 1.0 if self.count_self else fleet.pending
        return least(pending / fleet.weight, fleet.eligible)
