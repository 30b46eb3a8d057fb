"""A policy that is asked beside the one that decides, on the same views, and whose answers go nowhere.

It tells how often both would do the same and how long the shadow takes to decide. It cannot tell latency: queues are
what the serving policy's picks made them, and would be others under the shadow.
"""

from typing import Any

import numpy as np

from balancer.kernel.checked_answer import answer
from policies.base import FleetView, FloatArray, Policy, Request
from policies.hashing import mix, unit

_TIE = 1e-9
_RECENT = 1000


class Shadow:
    def __init__(self, policy: Policy, share: float, seed: int = 0) -> None:
        """`share`: of the decisions, drawn by a hash of their numbers, that it is asked about."""
        self.policy = policy
        self.share = share
        self.draws = mix(seed ^ 0x54AD0)
        self.decisions = 0
        self.answers = 0
        self.agreements = 0
        """Answers with the same most likely worker."""
        self.distance = 0.0
        """Sum over the answers of the total variation distance to the serving policy's: 0 the same, 1 disjoint."""
        self.failures = 0
        self.last_failure = ""
        self.seconds = 0.0
        self._agreement = self._distance = 0.0

    def wants(self, number: int) -> bool:
        return self.share >= 1 or unit(mix(self.draws ^ number)) < self.share

    def see(self, request: Request, view: FleetView, served: FloatArray) -> None:
        """Answer, and compare with what the serving policy answered, `(n,)`."""
        self.decisions += 1
        probabilities, failure = answer(self.policy, request, view)
        if probabilities is None:
            self.failures += 1
            self.last_failure = failure
            return
        both = (served >= served.max() - _TIE) & (probabilities >= probabilities.max() - _TIE)
        agrees = bool((both & view.eligible).any())
        distance = 0.5 * float(np.abs(probabilities - served).sum())
        self.answers += 1
        self.agreements += agrees
        self.distance += distance
        gain = max(1 / self.answers, 1 / _RECENT)
        self._agreement += gain * (agrees - self._agreement)
        self._distance += gain * (distance - self._distance)

    def explain(self) -> dict[str, Any]:
        """For people; agreement and distance are means over about the last thousand answers."""
        answered = self.answers > 0
        return {
            "policy": self.policy.name,
            "share": self.share,
            "decisions": self.decisions,
            "failures": self.failures,
            "last_failure": self.last_failure,
            "agreement": self._agreement if answered else None,
            "distance": self._distance if answered else None,
            "mean_decision_s": self.seconds / self.decisions if self.decisions else None,
        }
