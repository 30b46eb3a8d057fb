"""Random: every eligible worker with equal probability, or in proportion to its weight."""

import dataclasses
from typing import ClassVar

from policies.base import FloatArray, option
from policies.choices import IN_PROPORTION
from policies.costs import ONE, CostPolicy


@dataclasses.dataclass(frozen=True)
class RandomChoice(CostPolicy):
    """Needs no signal, so no signal can mislead it; pays for that with long queues by chance."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "Any eligible worker, blindly."
    source: ClassVar[str] = "Mitzenmacher, Upfal, Probability and Computing, 2005, chapter 5 (balls into bins)"

    weighted: bool = option(False, "Whether to draw in proportion to the configured weights")

    choice = IN_PROPORTION

    def columns(self) -> dict[str, str]:
        return {"share": "weight" if self.weighted else ONE}

    @staticmethod
    def cost(share: FloatArray) -> FloatArray:
        """Not what a worker costs but its share."""
        return share
