"""The session: which requests are sent when, and which policy is in force; the same live and simulated. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tools.demo import traffic
from tools.load.workload import IntArray, Workload

POLICIES = ("power_of_two", "least_requests", "peak_ewma", "prequal", "expected_latency")
"""`wlpr` would be `least_requests` over again, as the demo gives all workers one weight."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One window: a policy's turn under the arrivals of its round."""

    policy: str
    round: int
    start_s: float
    """Requests flow from here on; all from the session's start."""
    counted_s: float
    """They count from here on."""
    end_s: float
    """The last one is due before."""


@dataclass(frozen=True, slots=True)
class Session:
    """Policies take turns, in every round in another order, under equal arrivals."""

    policies: tuple[str, ...] = POLICIES
    rounds: int = 3
    window_s: float = 12.0
    settle_s: float = 1.5
    pause_s: float = 1.5
    """Before each turn nothing is sent, so that queues run empty, and half-way the policy is swapped; 0: it is swapped
    while requests flow."""
    rate_per_s: float = 140.0
    """Below the demo's, so that no queue grows without end under any of these policies."""
    seed: int = 1

    @property
    def plan(self) -> traffic.Plan:
        """The demo's plan of such windows; raises `ValueError` where there is nothing to compare."""
        return traffic.Plan(self.policies, self.rounds, self.window_s, self.settle_s, self.rate_per_s, self.seed)

    def turns(self) -> tuple[Turn, ...]:
        """All turns in order of time."""
        length_s = self.pause_s + self.settle_s + self.window_s
        order = traffic.turns(self.plan)
        starts_s = accumulate([self.pause_s] + [length_s] * (len(order) - 1))
        return tuple(
            Turn(policy, number, start_s, start_s + self.settle_s, start_s + self.settle_s + self.window_s)
            for (number, policy), start_s in zip(order, starts_s, strict=True)
        )

    def workload(self) -> Workload:
        """Every request of the session; those of a round are the same in each of its turns."""
        windows = [traffic.window(self.plan, number) for number in range(self.rounds)]
        first, *others = self.turns()
        whole = _later(windows[first.round], first.start_s)
        for turn in others:
            whole = whole.then(windows[turn.round], turn.start_s)
        return whole

    def turn_of_requests(self) -> IntArray:
        """Index of the turn that each request of `workload` is in; `(k,)`."""
        starts_s = [turn.start_s for turn in self.turns()]
        return np.searchsorted(starts_s, self.workload().time_s, side="right") - 1


def _later(workload: Workload, by_s: float) -> Workload:
    return Workload(workload.models, workload.time_s + by_s, workload.model, workload.rows, workload.deadline_s)
