"""What is run of sealed scenarios: the trained policy under its guard and without, all rivals, and the references."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from balancer.config.canary import GuardSection
from balancer.scheduler.canary.selector import CanaryPlan
from dev.experiments.sealed.rivals import BASELINE, Rival, rivals, tuned_name
from policies import BUILTIN
from policies.base import FloatArray, Policy
from policies.expected_latency import ExpectedLatency
from simulator.compare.compare import SOCIAL
from simulator.compare.metrics import RunMetrics, measure
from simulator.compare.social import run_social
from simulator.compare.summary import Figure, by_seed
from simulator.pool import TaskPool
from simulator.run import run as run_plain
from simulator.scenario import Scenario
from simulator.train.distribution import scenario
from simulator.with_selector import BY_BASELINE, run_with_selector

SUBJECT = "learned"
BARE = "learned, no guard"
CLAIRVOYANT = "clairvoyant"
REFERENCES = (CLAIRVOYANT, SOCIAL)
_NEVER_S = 1e9
_SEEDS_FROM = 1 << 20
"""Request seeds of sealed runs: no other runs have them."""
Ran = TypeVar("Ran")
Way = Literal["plain", "guarded", "clairvoyant", "social"]
"""As it is; under production's guard; knowing every queue and the work in it; the reference that minds others, whatever
the policy."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    place: int
    label: str
    scenario: Scenario
    policy: Policy
    way: Way
    seeds: tuple[int, ...]
    requests: int


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    by_baseline: FloatArray
    """Share of the requests that the baseline decided; `(e,)`."""
    falls: npt.NDArray[np.int64]
    """How often the policy was taken out of service; `(e,)`."""
    reasons: Counter[str]


def execute(task: Task) -> tuple[RunMetrics, Watch | None]:
    """Run it, some seconds or a minute; also what the guard did, where there is one."""
    arrivals = [task.scenario.arrivals(seed, task.requests) for seed in task.seeds]
    fleet = task.scenario.fleet
    if task.way == "guarded":
        # As a config has it: the sooner reports are stale, the sooner they are missed.
        guard = CanaryPlan(GuardSection().settings(fleet.settings.stale_after_s), baseline=ExpectedLatency())
        found = run_with_selector(fleet, arrivals, task.policy, guard, seeds=task.seeds)
        fell = [[change for change in each if change.fell] for each in found.changes]
        watch = Watch(
            by_baseline=np.mean(found.decided == BY_BASELINE, axis=1),
            falls=np.array([len(each) for each in fell]),
            reasons=Counter(change.finding.reason for each in fell for change in each),
        )
        return measure(found.result), watch
    if task.way == "social":
        return measure(run_social(task.scenario, arrivals, task.seeds)), None
    knowledge: Literal["clairvoyant", "reports"] = "clairvoyant" if task.way == "clairvoyant" else "reports"
    return measure(run_plain(fleet, arrivals, task.policy, seeds=task.seeds, knowledge=knowledge)), None


@dataclass(frozen=True)
class Opening:
    seed: int
    scenarios: tuple[Scenario, ...]
    subject: Policy
    rivals: Mapping[str, Rival]
    best: str
    """The rival that the verdict is against: the best on what they were tuned on."""
    request_seeds: tuple[int, ...]
    requests: int | None = None
    """Of each run; None: as the scenario says."""

    def tasks(self) -> Iterator[Task]:
        for place, given in enumerate(self.scenarios):
            wanted: list[tuple[str, Policy, Way, Scenario]] = [
                (name, rival.policy, "plain", rival.scenario(given)) for name, rival in self.rivals.items()
            ]
            wanted += [(SUBJECT, self.subject, "guarded", given), (BARE, self.subject, "plain", given)]
            wanted += [(CLAIRVOYANT, BUILTIN[BASELINE](), "clairvoyant", given)]
            wanted += [(SOCIAL, BUILTIN[BASELINE](), "social", given)]
            for label, policy, way, where in wanted:
                requests = given.requests if self.requests is None else self.requests
                yield Task(place, label, where, policy, way, self.request_seeds, requests)


@dataclass(frozen=True)
class Found:
    scenario: Scenario
    metrics: Mapping[str, RunMetrics]
    watch: Watch

    def logs(self, against: str, figure: Figure) -> FloatArray:
        """Of the ratio of the subject's latency to the other's, `(seeds,)`. Who answered nothing took `_NEVER_S`."""
        ours, theirs = (
            np.log(np.nan_to_num(by_seed(self.metrics[name], figure), nan=_NEVER_S)) for name in (SUBJECT, against)
        )
        difference: FloatArray = ours - theirs
        return difference


def unanswered(metrics: RunMetrics) -> float:
    return float(1 - np.mean(metrics.shares["ok"]))


def seed_of(commit: str) -> int:
    """The seed that nobody could know before the commit was made."""
    return int.from_bytes(hashlib.sha256(f"sealed scenarios of {commit}".encode()).digest()[:4], "big")


def draw(seed: int, count: int, seeds: int, tuned: Mapping[str, Any], subject: Policy, requests: int | None) -> Opening:
    return Opening(
        seed=seed,
        scenarios=tuple(scenario(seed, number) for number in range(count)),
        subject=subject,
        rivals=rivals(tuned),
        best=tuned_name(tuned["best"]),
        request_seeds=tuple(range(_SEEDS_FROM, _SEEDS_FROM + seeds)),
        requests=requests,
    )


def run(opening: Opening, pool: TaskPool) -> list[Found]:
    """Run all tasks; `pool.progress` hears how many of how many are done."""
    tasks = list(opening.tasks())
    ran = pool.map(execute, tasks)
    found = []
    for place, given in enumerate(opening.scenarios):
        own = {task.label: result for task, result in zip(tasks, ran, strict=True) if task.place == place}
        watch = own[SUBJECT][1]
        assert watch is not None  # it is run under its guard
        found.append(Found(given, {label: metrics for label, (metrics, _) in own.items()}, watch))
    return found
