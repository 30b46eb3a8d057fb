"""Random: every eligible worker with equal probability, or in proportion to its weight."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import FleetView, FloatArray, Policy, Request, option, uniform_over


@dataclasses.dataclass(frozen=True)
class RandomChoice(Policy):
    """Needs no signal, so no signal can mislead it; pays for that with long queues by chance."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "Any eligible worker, blindly."
    source: ClassVar[str] = "Mitzenmacher, Upfal, Probability and Computing, 2005, chapter 5 (balls into bins)"

    weighted: bool = option(False, "Whether to draw in proportion to the configured weights")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Equal or weighted shares, `(..., n)`."""
        if not self.weighted:
            return uniform_over(fleet.eligible)
        weight = np.where(fleet.eligible, fleet.weight, 0.0)
        total = np.add.reduce(weight, axis=-1, keepdims=True)
        shares: FloatArray = weight / np.where(total > 0.0, total, 1.0)
        return shares
