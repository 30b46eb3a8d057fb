"""Expected latency: least expected completion time of this request, softened so that balancers do not herd."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import WORST, FleetView, FloatArray, Policy, Request, least, masked_cost, option

_LEAST_SCALE_S = 1e-9
"""Keeps the division defined where the best worker is expected to take no time at all."""


@dataclasses.dataclass(frozen=True)
class ExpectedLatency(Policy):
    """Least `completion_s + error_penalty_s * error_rate`, by a softmin whose scale is `temperature` times the best.

    On herding: balancers that read the same reports would all run to the same worker, if they trusted reports alone.
    What prevents it is in the estimate and not in the choice: every pick counts at once, for the others' picks too, so
    the worker just picked looks longer to the next request. The softmin therefore only needs to part near ties. A
    wider one buys nothing, even with many balancers and old reports, and costs where there are few: see README.md.

    A worker that fails fast looks idle; what an error costs the client in seconds keeps it from being the best.
    """

    name: ClassVar[str] = "expected_latency"
    summary: ClassVar[str] = "Least expected completion time: batch-aware, dead-reckoned, speed and queue in one."
    source: ClassVar[str] = "Selen et al. 2016, Steady-state analysis of shortest expected delay routing, QUESTA 84"

    temperature: float = option(
        0.02,
        "Relative spread: a worker this share slower is picked e times less often; 0: only the best",
        ge=0.0,
    )
    error_penalty_s: float = option(1.0, "Seconds that a failed request counts as", ge=0.0)

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Softmin shares of the expected cost, `(..., n)`; equal costs get equal shares."""
        cost_s = fleet.completion_s
        if self.error_penalty_s > 0.0:
            cost_s = cost_s + self.error_penalty_s * fleet.error_rate
        if self.temperature == 0.0:
            return least(cost_s, fleet.eligible)
        masked = masked_cost(cost_s, fleet.eligible)
        best = np.minimum.reduce(masked, axis=-1, keepdims=True, initial=WORST)
        shares = np.exp((best - masked) / np.maximum(self.temperature * best, _LEAST_SCALE_S))
        # The best has 1 before the division, so a smaller total means that none is eligible.
        shares /= np.maximum(np.add.reduce(shares, axis=-1, keepdims=True), 1.0)
        return shares
