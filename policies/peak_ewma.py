"""Peak EWMA: latency average times requests in flight, of two sampled workers."""

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import WORST, FloatArray, option
from policies.choices import least_of
from policies.costs import CostPolicy


@dataclasses.dataclass(frozen=True)
class PeakEwma(CostPolicy):
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

    choice = least_of("choices")

    @staticmethod
    def cost(latency_s: FloatArray, in_flight: FloatArray, cold_penalty_s: float) -> FloatArray:
        """Seconds that the requests there and this one take one by one, or of the penalty."""
        finite = np.fmin(in_flight, WORST)
        warm = latency_s * (finite + 1.0)
        cold = (cold_penalty_s + finite) * (finite > 0.0)
        return np.where(latency_s > 0.0, warm, cold)
