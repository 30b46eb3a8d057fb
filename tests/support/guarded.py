"""Policies that misbehave as told, and guarded routers, for tests of the guard."""

import dataclasses
from typing import ClassVar

import numpy as np

from balancer.kernel.settings import GuardSettings
from balancer.scheduler.canary.guard import PolicyChange
from balancer.scheduler.canary.rollout import RolloutChange
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.events import Finished
from balancer.scheduler.router import Router
from policies.base import FleetView, FloatArray, Policy, Request
from policies.least_requests import LeastRequests
from support.fleets import make_router


class Mood:
    """What a moody policy does now; a test changes it."""

    def __init__(self) -> None:
        self.answer = "good"
        """good, nan, ineligible, heavy (sums to 2), raise, shed"""
        self.outside = 0.0
        self.range_raises = False


@dataclasses.dataclass(frozen=True)
class Moody(Policy):
    """A trained policy as a stranger might write it. Pure it is not: that is what the guard is for."""

    name: ClassVar[str] = "moody"
    summary: ClassVar[str] = "Does as its mood says."
    source: ClassVar[str] = "these tests"
    trained: ClassVar[bool] = True

    mood: Mood = dataclasses.field(default_factory=Mood, metadata={"doc": "What it does"})

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        share = fleet.eligible / max(np.count_nonzero(fleet.eligible), 1)
        match self.mood.answer:
            case "nan":
                return share * np.nan
            case "ineligible":
                return np.eye(len(share))[0] if not fleet.eligible[0] else 1.0 - share
            case "heavy":
                return share * 2
            case "raise":
                raise RuntimeError("moody")
            case "shed":
                return share * 0.0
        return share

    def out_of_range(self, request: Request, fleet: FleetView) -> float:
        if self.mood.range_raises:
            raise RuntimeError("no range")
        return self.mood.outside


class RecordedChanges:
    """Keeps the changes of guard and rollout that it is called with."""

    def __init__(self) -> None:
        self.guards: list[tuple[str, PolicyChange]] = []
        self.rollouts: list[tuple[str, RolloutChange]] = []

    def guard_changed(self, policy: str, change: PolicyChange) -> None:
        self.guards.append((policy, change))

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        self.rollouts.append((policy, change))


class Stopwatch:
    """Each look at it takes so long."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += self.step_s
        return self._now_s


NO_WINDOWS = GuardSettings(window_s=0.0, report_age_s=1e9)


@dataclasses.dataclass
class Guarded:
    """A router whose policy is moody and guarded; least_requests is its baseline."""

    router: Router
    policy: Moody
    changes: RecordedChanges
    stopwatch: Stopwatch
    now_s: float = 0.0

    def decide(self, count: int = 1, every_s: float = 0.02) -> list[str]:
        """Who decided so many requests, one each `every_s`."""
        found = []
        for _ in range(count):
            self.now_s += every_s
            found.append(self.router.route(Request("m"), self.now_s).policy)
        return found

    def serve(self, count: int = 1, every_s: float = 0.02) -> list[str]:
        """As `decide`; each request ends well, at once."""
        found = []
        for _ in range(count):
            self.now_s += every_s
            decision = self.router.route(Request("m"), self.now_s)
            self.router.observe(Finished(decision.number, decision.worker, 0.01, True), self.now_s)
            found.append(decision.policy)
        return found


def guarded(
    settings: GuardSettings = NO_WINDOWS, plan: CanaryPlan | None = None, policy: Policy | None = None
) -> Guarded:
    moody = Moody()
    changes, stopwatch = RecordedChanges(), Stopwatch()
    plan = plan or CanaryPlan(guard=settings, baseline=LeastRequests())
    router = make_router(4, policy or moody)
    router.selector = PolicySelector(router.policy, plan, stopwatch=stopwatch, listener=changes)
    return Guarded(router, moody, changes, stopwatch)
