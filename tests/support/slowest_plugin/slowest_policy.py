"""A policy that does worse than any other, without an error that anybody could see at once."""

import dataclasses
from typing import ClassVar

from policies.base import FleetView, FloatArray, Policy, Request, least


@dataclasses.dataclass(frozen=True)
class Slowest(Policy):
    """The worker whose service takes longest."""

    name: ClassVar[str] = "slowest"
    summary: ClassVar[str] = "The slowest worker (for tests)."
    source: ClassVar[str] = "The tests"

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Shares for the most seconds of service."""
        return least(-fleet.service_s, fleet.eligible)
