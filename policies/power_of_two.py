"""Power of two choices: sample two workers, take the shorter queue."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from policies.base import FleetView, FloatArray, Policy, Request, option
from policies.choices import sampled_least


@dataclasses.dataclass(frozen=True)
class PowerOfTwo(Policy):
    """The least pending of `choices` sampled workers, as exact probabilities rather than one draw.

    The sampling keeps balancers that read the same report from all running to the same worker; the price is that the
    best of many is often not in the sample.
    """

    name: ClassVar[str] = "power_of_two"
    summary: ClassVar[str] = "The shorter queue of two sampled workers."
    source: ClassVar[str] = "Mitzenmacher, The power of two choices in randomized load balancing, IEEE TPDS 2001"

    choices: int = option(2, "Workers sampled without replacement", ge=1)
    weighted: bool = option(False, "Whether to compare pending / weight instead of pending")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """The probability to be the least pending of a sample, `(..., n)`; ties share."""
        cost = fleet.pending / fleet.weight if self.weighted else fleet.pending
        return sampled_least(cost, fleet.eligible, self.choices)
