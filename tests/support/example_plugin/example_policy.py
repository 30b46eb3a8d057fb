"""A policy as a third party would write it: one file, and the entry point in the dist-info folder beside it."""

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import FleetView, FloatArray, Policy, Request, least, option


@dataclasses.dataclass(frozen=True)
class FreshestReport(Policy):
    """The worker whose report is the youngest, in steps of `step_s` so that similar ages share."""

    name: ClassVar[str] = "freshest_report"
    summary: ClassVar[str] = "The worker with the youngest report (an example, no good idea)."
    source: ClassVar[str] = "This example"

    step_s: float = option(0.01, "Seconds of age that make no difference", gt=0.0)

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Shares for the youngest report, `(..., n)`; ties share."""
        return least(np.floor(fleet.report_age_s / self.step_s), fleet.eligible)
