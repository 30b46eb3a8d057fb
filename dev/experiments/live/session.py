"""The session: which requests are sent when, which policy is in force, and what workers weigh. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from balancer.config.profile_file import Profile
from balancer.load.workload import IntArray, LoadWorkload
from dev.demo import steps
from dev.stack import POLICY
from policies.learned import Learned
from simulator.workload.draws import Sessions


@dataclass(frozen=True, slots=True)
class Turn:
    policy: str
    round: int
    start_s: float
    """Requests flow from here on; all from the session's start."""
    counted_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """Policies take turns, in every round in another order, under equal arrivals."""

    policies: tuple[str, ...] = ("power_of_two", "least_requests", "peak_ewma", "prequal", "expected_latency")
    """`wlpr` would be `least_requests` over again, as the demo gives all workers one weight."""
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
    cache_keys: int = 0
    """Keys that each emulated GPU remembers; 0: none."""
    cache_saving: float = 0.0
    learned: str = ""
    """File of the policy `learned`."""
    logged_rounds: int = 0
    """Before the session, recorded under `expected_latency` to train that policy on; 0: it is given."""

    @property
    def plan(self) -> steps.Plan:
        """The demo's plan of such windows; raises `ValueError` where there is nothing to compare."""
        return steps.Plan(self.policies, self.rounds, self.window_s, self.settle_s, self.rate_per_s, self.seed)

    def options(self, policy: str) -> dict[str, Any]:
        return {"file": str(Path(self.learned).resolve())} if policy == Learned.name else {}

    @property
    def logged(self) -> "Session":
        """What is recorded before: as this one, with requests of its own."""
        return replace(self, policies=(POLICY,), rounds=self.logged_rounds, seed=self.seed + 1)

    def turns(self) -> tuple[Turn, ...]:
        length_s = self.pause_s + self.settle_s + self.window_s
        order = steps.turns(self.plan)
        starts_s = accumulate([self.pause_s] + [length_s] * (len(order) - 1))
        return tuple(
            Turn(policy, number, start_s, start_s + self.settle_s, start_s + self.settle_s + self.window_s)
            for (number, policy), start_s in zip(order, starts_s, strict=True)
        )

    def workload(self) -> LoadWorkload:
        """Every request of the session; those of a round are the same in each of its turns."""
        windows = [steps.window(self.plan, number) for number in range(self.rounds)]
        first, *rest = self.turns()
        whole = _later(self._keyed(windows[first.round], first.round, 0), first.start_s)
        for number, turn in enumerate(rest, 1):
            whole = whole.then(self._keyed(windows[turn.round], turn.round, number), turn.start_s)
        return whole

    def _keyed(self, window: LoadWorkload, number: int, turn: int) -> LoadWorkload:
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


def _later(workload: LoadWorkload, by_s: float) -> LoadWorkload:
    return replace(workload, time_s=workload.time_s + by_s)


FIDELITY = Session()
SWITCHBACK = Session(
    policies=("wlpr", "expected_latency"),
    rounds=15,
    window_s=6.0,
    settle_s=2.0,
    # An SRE does not stop the traffic to swap a policy.
    pause_s=0.0,
    rate_per_s=240.0,
    sessions=60,
    cache_keys=1024,
    cache_saving=0.5,
)
"""The last policy is held against each of the others. A round is a block: one window of each policy, in an order drawn
for the block, under the same arrivals. Many short windows rather than few long ones: blocks are what the intervals rest
on, and 2 s empty most queues. More traffic than the demo's, where nearly all is in time whoever picks. Requests come in
sessions, of whose prefix the emulated GPUs remember more than the run has at any moment: who is sent where it was
before takes 50% less."""
LOGGED_ROUNDS = 25
QUICK = replace(SWITCHBACK, rounds=3, window_s=3.0, settle_s=1.0)
"""To see that all of it works; its intervals say nothing."""


def capacity_weights(profiles: Mapping[str, Profile]) -> dict[str, float]:
    """Weight of each worker, by name: requests of the traffic a second, one at a time, relative to the mean worker.

    What an SRE who measured the GPUs would write into the list of workers: `wlpr` is only as good as its weights.
    """
    speeds = {worker: 1 / _service_s(profile) for worker, profile in profiles.items()}
    mean = float(np.mean(list(speeds.values())))
    return {worker: round(speed / mean, 3) for worker, speed in speeds.items()}


def _service_s(profile: Profile) -> float:
    models = {model.model: model.points for model in profile.models}
    weights = sum(mix.weight for mix in steps.MIX)
    total_s = 0.0
    for mix in steps.MIX:
        points = models[mix.name]
        each_s = np.interp(steps.ROWS.values, [p.rows for p in points], [p.mean_s for p in points])
        total_s += mix.weight / weights * float(each_s @ np.array(steps.ROWS.shares))
    return total_s
