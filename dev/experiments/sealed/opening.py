"""What is run of sealed scenarios: the trained policy under its guard, all rivals, and the references."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dev.experiments.sealed.rivals import BASELINE, Rival, rivals, tuned_name
from dev.experiments.sealed.runs import Run, Task, Watch, Way
from dev.experiments.sealed.store import Store, run_all
from policies import BUILTIN
from policies.base import FloatArray, Policy
from simulator.compare.compare import SOCIAL
from simulator.compare.metrics import RunMetrics
from simulator.compare.summary import Figure, by_seed
from simulator.scenario import Scenario
from simulator.train.written import scenario

SUBJECT = "learned"
CLAIRVOYANT = "clairvoyant"
REFERENCES = (CLAIRVOYANT, SOCIAL)
_NEVER_S = 1e9
_SEEDS_FROM = 1 << 20
"""Request seeds of sealed runs: no other runs have them."""


@dataclass(frozen=True)
class Opening:
    """A draw of the written distribution, and what is run on it."""

    seed: int
    """Of the scenarios."""
    scenarios: tuple[Scenario, ...]
    weights: Mapping[str, Policy]
    """Trained policies, one for each training seed, by the name to show."""
    rivals: Mapping[str, Rival]
    best: str
    """The rival that the verdict is against: the best on what they were tuned on."""
    request_seeds: tuple[int, ...]
    requests: int | None = None
    """Of each run; None: as the scenario says."""

    def tasks(self) -> list[Task]:
        """All runs, scenario by scenario."""
        return [task for each in self.scenarios for task in self.tasks_of(each)]

    def tasks_of(self, given: Scenario) -> Iterator[Task]:
        """All runs of one scenario."""
        wanted: list[tuple[str, Policy, Way, Scenario]] = []
        for name, rival in self.rivals.items():
            wanted.append((name, rival.policy, "plain", rival.scenario(given)))
        for name, policy in self.weights.items():
            wanted += [(name, policy, "guarded", given), (bare(name), policy, "plain", given)]
        wanted += [(CLAIRVOYANT, BUILTIN[BASELINE](), "clairvoyant", given)]
        wanted += [(SOCIAL, BUILTIN[BASELINE](), "social", given)]
        for label, policy, way, where in wanted:
            requests = given.requests if self.requests is None else self.requests
            yield Task(where, policy, label, way, self.request_seeds, requests)


@dataclass(frozen=True)
class Found:
    """Of one scenario."""

    scenario: Scenario
    metrics: Mapping[str, RunMetrics]
    """By rival and reference; the trained policy is apart, as it has weights."""
    subjects: tuple[RunMetrics, ...]
    """Under the guard, for each of the weights."""
    bare: tuple[RunMetrics, ...]
    """Without."""
    watches: tuple[Watch, ...]
    """What the guard did."""

    def logs(self, against: str, figure: Figure) -> FloatArray:
        """Of the ratio of the subject's latency to the other's, `(weights, seeds)`. Who answered nothing took
        `_NEVER_S`."""
        ours = np.log(np.nan_to_num(np.stack([by_seed(each, figure) for each in self.subjects]), nan=_NEVER_S))
        theirs: FloatArray = np.log(np.nan_to_num(by_seed(self.metrics[against], figure), nan=_NEVER_S))
        return ours - theirs

    @property
    def failed(self) -> float:
        """Share of the requests that the subject did not answer, mean over weights and seeds."""
        return float(np.mean([unanswered(each) for each in self.subjects]))


def bare(name: str) -> str:
    """What a trained policy is called where no guard is."""
    return f"{name}, no guard"


def unanswered(metrics: RunMetrics) -> float:
    """Share of the requests, mean over seeds."""
    return float(1 - np.mean(metrics.shares["ok"]))


def seed_of(commit: str) -> int:
    """The seed that nobody could know before the commit was made."""
    return int.from_bytes(hashlib.sha256(f"sealed scenarios of {commit}".encode()).digest()[:4], "big")


def draw(
    seed: int, count: int, seeds: int, tuned: Mapping[str, Any], weights: Mapping[str, Policy], requests: int | None
) -> Opening:
    """So many scenarios of the seed."""
    return Opening(
        seed=seed,
        scenarios=tuple(scenario(seed, number) for number in range(count)),
        weights=weights,
        rivals=rivals(tuned),
        best=tuned_name(tuned["best"]),
        request_seeds=tuple(range(_SEEDS_FROM, _SEEDS_FROM + seeds)),
        requests=requests,
    )


def run(opening: Opening, store: Store, jobs: int, done: Callable[[Task], None]) -> list[Found]:
    """All of it; what the store has is not run again."""
    todo = [task for task in opening.tasks() if store.find(task) is None]
    run_all(todo, store, jobs, done)
    return [_found(opening, each, store) for each in opening.scenarios]


def _found(opening: Opening, given: Scenario, store: Store) -> Found:
    runs: dict[str, Run] = {}
    for task in opening.tasks_of(given):
        kept = store.find(task)
        assert kept is not None  # it has just been run
        runs[task.label] = kept
    guarded = [runs[name] for name in opening.weights]
    return Found(
        scenario=given,
        metrics={name: runs[name].metrics for name in (*opening.rivals, *REFERENCES)},
        subjects=tuple(each.metrics for each in guarded),
        bare=tuple(runs[bare(name)].metrics for name in opening.weights),
        watches=tuple(each.watch for each in guarded if each.watch is not None),
    )
