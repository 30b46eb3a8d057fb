"""Priced: expected latency, and what the place costs those who come later."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from policies.base import FloatArray, option
from policies.choices import softmin_of
from policies.costs import CostPolicy


@dataclasses.dataclass(frozen=True)
class Priced(CostPolicy):
    """Least `completion_s + error_penalty_s * error_rate + price_weight * price_s`, softened as `expected_latency` is.

    Where models of different lengths share workers, who takes the place that is best for itself keeps many short ones
    waiting behind a long one. A price makes long requests gather where few short ones go. With one model, and requests
    of one size, nothing is charged, and this is `expected_latency`.

    Exact for arrivals that never look (`price_weight` 1, see `balancer.core.estimators.rates`). Later requests do look,
    and go elsewhere, so a part of it is right: see README.md.
    """

    name: ClassVar[str] = "priced"
    summary: ClassVar[str] = "Least expected completion time, and what it costs those who come later."
    source: ClassVar[str] = "Hyytiä, Penttinen and Aalto 2012, Size- and state-aware dispatching problem, EJOR 217"

    temperature: float = option(
        0.02,
        "Relative spread: a worker this share dearer is picked e times less often; 0: only the best",
        ge=0.0,
    )
    error_penalty_s: float = option(1.0, "Seconds that a failed request counts as", ge=0.0)
    price_weight: float = option(0.05, "What a second of others' waiting counts beside one's own; 0: nothing", ge=0.0)

    choice = softmin_of("temperature")

    @staticmethod
    def cost(
        completion_s: FloatArray,
        error_rate: FloatArray,
        error_penalty_s: float,
        price_s: FloatArray,
        price_weight: float,
    ) -> FloatArray:
        """Expected seconds, errors and others' waiting counted as such."""
        return completion_s + error_penalty_s * error_rate + price_weight * price_s
