"""Least requests: fewest requests in flight from this balancer."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from policies.base import FleetView, FloatArray, Policy, Request, option
from policies.choices import sampled_least


@dataclasses.dataclass(frozen=True)
class LeastRequests(Policy):
    """What a proxy knows by itself: exact and never old, but blind to other balancers and to worker speed."""

    name: ClassVar[str] = "least_requests"
    summary: ClassVar[str] = "Fewest requests in flight from this balancer; needs no reports."
    source: ClassVar[str] = "Envoy, LEAST_REQUEST load balancer (full scan, or choice_count)"

    choices: int = option(0, "Workers sampled for the comparison (Envoy's choice_count); 0: all", ge=0)

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Shares for the fewest in flight, `(..., n)`; ties share."""
        return sampled_least(fleet.in_flight, fleet.eligible, self.choices)
