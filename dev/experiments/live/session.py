"""The session: which requests are sent when, and which policy is in force; the same live and simulated. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from simulator.workload.draws import Sessions
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
    sessions: int = 0
    """Conversations under way at any moment with each model, which a request belongs to each equally often: their keys
    save work where they are warm, and policies place them. 0: requests have no keys."""
    session_requests: float = 8.0
    """Mean length of a session."""
    cache_keys: int = 0
    """Keys that each emulated GPU remembers; 0: none."""
    cache_saving: float = 0.0
    """Share of a request's time that a warm key saves."""

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
        whole = _later(self._keyed(windows[first.round], first.round, 0), first.start_s)
        for number, turn in enumerate(others, 1):
            whole = whole.then(self._keyed(windows[turn.round], turn.round, number), turn.start_s)
        return whole

    def _keyed(self, window: Workload, number: int, turn: int) -> Workload:
        """The window with keys, if there are sessions: of the same ones in every turn of a round, under names that are
        new in each, so that nothing is warm that another policy placed."""
        if not self.sessions:
            return window
        sessions = Sessions(self.sessions, self.session_requests)
        generator = np.random.default_rng([self.seed, number, self.sessions])
        own = sessions.draw(len(window), generator)
        keys = tuple(
            f"{window.models[model]}-{turn}-{key:x}"
            for model, key in zip(window.model.tolist(), own.tolist(), strict=True)
        )
        return replace(window, keys=keys)

    def turn_of_requests(self) -> IntArray:
        """Index of the turn that each request of `workload` is in; `(k,)`."""
        starts_s = [turn.start_s for turn in self.turns()]
        return np.searchsorted(starts_s, self.workload().time_s, side="right") - 1


def _later(workload: Workload, by_s: float) -> Workload:
    return replace(workload, time_s=workload.time_s + by_s)
