"""Random: every eligible worker with equal probability, or in proportion to its weight."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import FloatArray, option
from policies.choices import IN_PROPORTION
from policies.costs import CostPolicy


@dataclasses.dataclass(frozen=True)
class RandomChoice(CostPolicy):
    """Needs no signal, so no signal can mislead it; pays for that with long queues by chance."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "Any eligible worker, blindly."
    source: ClassVar[str] = "Mitzenmacher, Upfal, Probability and Computing, 2005, chapter 5 (balls into bins)"

    weighted: bool = option(False, "Whether to draw in proportion to the configured weights")

    choice = IN_PROPORTION

    @staticmethod
    def cost(weight: FloatArray, weighted: float) -> FloatArray:
        """Not what a worker costs but its share."""
        return np.where(weighted, weight, 1.0)
