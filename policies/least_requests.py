"""Least requests: fewest requests in flight from this balancer."""

import dataclasses
from typing import ClassVar

from policies.base import FloatArray, option
from policies.choices import least_of
from policies.costs import CostPolicy


@dataclasses.dataclass(frozen=True)
class LeastRequests(CostPolicy):
    """What a proxy knows by itself: exact and never old, but blind to other balancers and to worker speed."""

    name: ClassVar[str] = "least_requests"
    summary: ClassVar[str] = "Fewest requests in flight from this balancer; needs no reports."
    source: ClassVar[str] = "Envoy, LEAST_REQUEST load balancer (full scan, or choice_count)"

    choices: int = option(0, "Workers sampled for the comparison (Envoy's choice_count); 0: all", ge=0)

    choice = least_of("choices")

    @staticmethod
    def cost(in_flight: FloatArray) -> FloatArray:
        return in_flight
