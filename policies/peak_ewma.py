"""Peak EWMA: latency average times requests in flight, of two sampled workers."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import WORST, FleetView, FloatArray, Policy, Request, option
from policies.choices import sampled_least


@dataclasses.dataclass(frozen=True)
class PeakEwma(Policy):
    """Least `latency_s * (in_flight + 1)` of the sample.

    A worker of which no latency is known costs nothing while idle, so it gets a request to be measured by, and
    `cold_penalty_s` while that is out, so it gets no second one.
    """

    name: ClassVar[str] = "peak_ewma"
    summary: ClassVar[str] = "Least latency x (in flight + 1) of two sampled workers; needs no reports."
    source: ClassVar[str] = "Finagle, com.twitter.finagle.loadbalancer.PeakEwma with power of two choices"

    choices: int = option(2, "Workers sampled without replacement; 0: all", ge=0)
    cold_penalty_s: float = option(
        1e5, "Seconds that a busy worker costs before its first latency is known (Finagle: about 39 hours)", ge=0.0
    )

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """The probability to be the least cost of a sample, `(..., n)`; ties share."""
        latency_s, in_flight = fleet.latency_s, np.fmin(fleet.in_flight, WORST)
        warm = latency_s * (in_flight + 1.0)
        cold = (self.cold_penalty_s + in_flight) * (in_flight > 0.0)
        return sampled_least(np.where(latency_s > 0.0, warm, cold), fleet.eligible, self.choices)
