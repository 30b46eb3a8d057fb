"""One policy in one scenario: what is run, and what is kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from balancer.kernel.settings import GuardSettings
from balancer.scheduler.canary.selector import CanaryPlan
from policies.base import FloatArray, Policy
from policies.expected_latency import ExpectedLatency
from simulator.compare.metrics import WARM_UP_SHARE, LatencyMetric, RunMetrics, measure
from simulator.compare.social import run_social
from simulator.run import run
from simulator.scenario import Scenario
from simulator.steered import BY_BASELINE, SteeredResult, run_steered

_GUARD = CanaryPlan(guard=GuardSettings(), baseline=ExpectedLatency())
"""As production has it by default."""
Arrays = dict[str, npt.NDArray[Any]]
Way = Literal["plain", "guarded", "clairvoyant", "social"]
"""As it is; under production's guard; knowing every queue and the work in it; the reference that minds others, whatever
the policy."""


_SECONDS_A_DECISION: Mapping[Way, tuple[float, float]] = {
    "plain": (5e-6, 1e-7),
    "guarded": (1.6e-5, 4e-7),
    "clairvoyant": (1.7e-5, 3e-7),
    "social": (1.7e-5, 3e-7),
}
"""Without workers, and for each of them: a guess, for the time left."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A policy in a scenario, over some seeds side by side."""

    scenario: Scenario
    policy: Policy
    label: str
    """What the policy is called here."""
    way: Way
    seeds: tuple[int, ...]
    requests: int
    """Of each seed."""
    warm_up_share: float = WARM_UP_SHARE
    """Of the requests, the first ones, that are not counted."""

    @property
    def name(self) -> str:
        """For people, and for a file."""
        return f"{self.scenario.name}, {self.label}, {self.way}, seeds {self.seeds[0]} to {self.seeds[-1]}"


def seconds(task: Task) -> float:
    """What a task takes, about."""
    fixed_s, worker_s = _SECONDS_A_DECISION[task.way]
    if task.policy.trained:
        worker_s = 4e-7
    return len(task.seeds) * task.requests * (fixed_s + worker_s * len(task.scenario.fleet.workers))


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """What the guards did."""

    by_baseline: FloatArray
    """Share of the requests that the baseline decided; `(e,)`."""
    fallen: FloatArray
    """Share of the time, over all balancers, in which the policy was out of service; `(e,)`."""
    falls: npt.NDArray[np.int64]
    """How often it fell; `(e,)`."""
    reasons: Counter[str]
    """How often for which cause."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What is kept of a task."""

    metrics: RunMetrics
    end_s: FloatArray
    """When the last request ended; `(e,)`."""
    watch: Watch | None = None
    """Where a guard was there."""


def execute(task: Task) -> Run:
    """Run it; some seconds, or minutes for hundreds of workers."""
    arrivals = [task.scenario.arrivals(seed, task.requests) for seed in task.seeds]
    fleet = task.scenario.fleet
    if task.way == "guarded":
        guarded = run_steered(fleet, arrivals, task.policy, _GUARD, seeds=task.seeds)
        return Run(measure(guarded.result, task.warm_up_share), guarded.result.end_s, watched(guarded, fleet.balancers))
    if task.way == "social":
        result = run_social(task.scenario, arrivals, task.seeds)
        return Run(measure(result, task.warm_up_share), result.end_s)
    knowledge: Literal["clairvoyant", "reports"] = "clairvoyant" if task.way == "clairvoyant" else "reports"
    result = run(fleet, arrivals, task.policy, seeds=task.seeds, knowledge=knowledge)
    return Run(measure(result, task.warm_up_share), result.end_s)


def watched(guarded: SteeredResult, balancers: int) -> Watch:
    """Falls and returns, reduced."""
    end_s = guarded.result.end_s
    falls = np.array([sum(change.fell for change in each) for each in guarded.changes])
    fallen_s = np.zeros(len(end_s))
    for e, changes in enumerate(guarded.changes):
        # Every fall lasts to a return of the same guard, or to the end; sums need not know which return is whose.
        fallen_s[e] = sum((end_s[e] - change.at_s) * (1 if change.fell else -1) for change in changes)
    return Watch(
        by_baseline=np.mean(guarded.decided == BY_BASELINE, axis=1),
        fallen=fallen_s / (end_s * balancers),
        falls=falls,
        reasons=Counter(change.finding.reason for each in guarded.changes for change in each if change.fell),
    )


_LATENCY, _MODEL, _SHARE, _METRICS, _WATCH, _REASON = "latency/", "model/", "share/", "metrics/", "watch/", "reason/"
_NESTED = ("latency", "models", "shares")


def flat(run: Run) -> Arrays:
    """As arrays by name, of seeds on the first axis but for the counts of causes."""
    metrics = run.metrics
    found: Arrays = {"end_s": run.end_s}
    found |= {_LATENCY + field.name: getattr(metrics.latency, field.name) for field in fields(LatencyMetric)}
    for model, latency in metrics.models.items():
        found |= {f"{_MODEL}{field.name}/{model}": getattr(latency, field.name) for field in fields(LatencyMetric)}
    found |= {_SHARE + name: share for name, share in metrics.shares.items()}
    found |= {_METRICS + f.name: getattr(metrics, f.name) for f in fields(RunMetrics) if f.name not in _NESTED}
    if run.watch is not None:
        found |= {_WATCH + f.name: getattr(run.watch, f.name) for f in fields(Watch) if f.name != "reasons"}
        found |= {_REASON + reason: np.array(count) for reason, count in run.watch.reasons.items()}
    return found


def from_flat(arrays: Arrays) -> Run:
    """The run of such arrays; KeyError or TypeError where they are of another version."""

    def under(prefix: str) -> Arrays:
        return {key.removeprefix(prefix): each for key, each in arrays.items() if key.startswith(prefix)}

    models: dict[str, Arrays] = {}
    for key, each in under(_MODEL).items():
        field, _, model = key.partition("/")
        models.setdefault(model, {})[field] = each
    latencies = {model: LatencyMetric(**each) for model, each in models.items()}
    metrics = RunMetrics(
        latency=LatencyMetric(**under(_LATENCY)), models=latencies, shares=under(_SHARE), **under(_METRICS)
    )
    watch = None
    if given := under(_WATCH):
        reasons = Counter({reason: int(count) for reason, count in under(_REASON).items()})
        watch = Watch(**given, reasons=reasons)
    return Run(metrics, under("end_s")[""], watch)
