"""Token bucket: most tokens first; the refill follows the queue, so tokens are room that the worker has shown."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from policies.base import FleetView, FloatArray, Policy, Request, least, option


@dataclasses.dataclass(frozen=True)
class TokenBucket(Policy):
    """The eligible worker with most tokens; ties go to the shortest queue.

    Tokens are compared whole: 3.7 tokens let three requests pass, as 3.2 do, and then the queue decides. The buckets
    are the core's estimator, which refills them (the slower the longer the queue) and takes one for every pick.
    """

    name: ClassVar[str] = "token_bucket"
    summary: ClassVar[str] = "Most tokens, ties to the shortest queue; can shed when all buckets are empty."
    source: ClassVar[str] = "Turner, New directions in communications, IEEE Comm. Magazine 1986; queue feedback"

    when_empty: Literal["least_loaded", "shed"] = option(
        "least_loaded", "What to do when no eligible worker has a token: least_loaded (shortest queue) or shed (429)"
    )

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Shares for the most whole tokens and then the least pending, `(..., n)`; all zero where shed."""
        # fmax turns debts and NaN into an empty bucket; ineligible workers lie below it.
        tokens = np.where(fleet.eligible, np.floor(np.fmax(fleet.tokens, 0.0)), -1.0)
        most = np.maximum.reduce(tokens, axis=-1, keepdims=True, initial=0.0)
        if self.when_empty == "shed":
            most = np.maximum(most, 1.0)
        # With all buckets empty everybody ties at 0, which leaves the choice to the queue: least loaded.
        return least(fleet.pending, tokens == most)
