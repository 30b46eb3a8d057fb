"""A trained policy that misbehaves as a file says, so that a test can break it, and repair it, while it serves."""

import dataclasses
import time
from pathlib import Path
from typing import ClassVar

import numpy as np

from policies.base import FleetView, FloatArray, Policy, Request, option, uniform_over

_SLOW_S = 0.03


@dataclasses.dataclass(frozen=True)
class MoodyFile(Policy):
    """Any worker; it reads a file at each decision, which no policy may: what a guard is for is not the well-behaved.

    The file says `good`, `nan`, `raise`, `slow` or `strange` (inputs out of range).
    """

    name: ClassVar[str] = "moody_file"
    summary: ClassVar[str] = "Does as a file says (for tests)."
    source: ClassVar[str] = "The tests"
    trained: ClassVar[bool] = True

    mood: str = option("", "The file; without, it is good")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Equal shares, but for its mood."""
        mood = self._mood()
        if mood == "raise":
            raise RuntimeError("moody")
        if mood == "slow":
            time.sleep(_SLOW_S)
        return uniform_over(fleet.eligible) * (np.nan if mood == "nan" else 1.0)

    def out_of_range(self, request: Request, fleet: FleetView) -> float | FloatArray:
        """See `Policy`."""
        return 9.0 if self._mood() == "strange" else 0.0

    def _mood(self) -> str:
        return Path(self.mood).read_text().strip() if self.mood else "good"
