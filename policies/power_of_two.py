"""Power of two choices: sample two workers, take the shorter queue."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import FloatArray, option
from policies.choices import least_of
from policies.costs import CostPolicy


@dataclasses.dataclass(frozen=True)
class PowerOfTwo(CostPolicy):
    """The least pending of `choices` sampled workers, as exact probabilities rather than one draw.

    The sampling keeps balancers that read the same report from all running to the same worker; the price is that the
    best of many is often not in the sample.
    """

    name: ClassVar[str] = "power_of_two"
    summary: ClassVar[str] = "The shorter queue of two sampled workers."
    source: ClassVar[str] = "Mitzenmacher, The power of two choices in randomized load balancing, IEEE TPDS 2001"

    choices: int = option(2, "Workers sampled without replacement", ge=1)
    weighted: bool = option(False, "Whether to compare pending / weight instead of pending")

    choice = least_of("choices")

    @staticmethod
    def cost(pending: FloatArray, weight: FloatArray, weighted: float) -> FloatArray:
        """Requests pending, by weight where the option says so."""
        return pending / np.where(weighted, weight, 1.0)
