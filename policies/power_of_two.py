"""Power of two choices: sample two workers, take the shorter queue."""

import dataclasses
from typing import ClassVar

from policies.base import FloatArray, option
from policies.choices import least_of
from policies.costs import ONE, CostPolicy


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

    def columns(self) -> dict[str, str]:
        return {"divisor": "weight" if self.weighted else ONE}

    @staticmethod
    def cost(pending: FloatArray, divisor: FloatArray) -> FloatArray:
        return pending / divisor
