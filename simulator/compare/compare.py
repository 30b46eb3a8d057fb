"""Run policies on scenarios, with all that they are compared to, on equal arrivals."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from policies import BUILTIN
from policies.base import FloatArray, Policy
from simulator.arrivals import Arrivals
from simulator.compare.metrics import RunMetrics, environments, measure
from simulator.compare.pooled import Pooled, pooled
from simulator.compare.social import run_social
from simulator.pool import LocalPool, TaskPool
from simulator.result import Result
from simulator.run import Knowledge, run
from simulator.scenario import Scenario

REFERENCE = "expected_latency"
"""The policy, with its default options, that the references with more knowledge follow."""
SOCIAL = "social"
"""The clairvoyant reference that minds others, see `simulator.compare.social`; as a job's policy, too."""
_REFERENCES: dict[str, tuple[str, Knowledge]] = {
    SOCIAL: (SOCIAL, "clairvoyant"),
    "clairvoyant": (REFERENCE, "clairvoyant"),
    "exact queues": (REFERENCE, "exact"),
}

_BURST_SHARE = 1 / 40
_SAMPLES = 300


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    scenarios: tuple[Scenario, ...]
    policies: Mapping[str, Policy]
    seeds: tuple[int, ...]
    requests: int | None = None
    load: float | None = None
    """Share of the capacity; None: as the scenario says. A closed loop has none, nor a sweep or a timeline."""
    ladder: bool = True
    """Whether to run the references for regret, which are of batching models: nobody knows the best of others."""
    sweep: tuple[float, ...] = ()
    """Loads at which each policy runs once more."""
    timelines: bool = False
    """Whether to record the queues of the first seed through its largest burst."""

    def requests_of(self, scenario: Scenario) -> int:
        return scenario.requests if self.requests is None else self.requests

    def has_ladder(self, scenario: Scenario) -> bool:
        return self.ladder and not scenario.fleet.generates

    def jobs(self) -> list[Job]:
        jobs: dict[Job, None] = {}
        for scenario in self.scenarios:
            closed = scenario.workload.clients > 0
            load = None if closed else self.load
            for policy in self.policies:
                jobs[Job(scenario.name, policy, "reports", (load, *(() if closed else self.sweep)))] = None
                if self.has_ladder(scenario):
                    jobs[Job(scenario.name, policy, "exact", (load,))] = None
                if self.timelines and not closed:
                    jobs[Job(scenario.name, policy, "reports", (load,), timeline=True)] = None
            if self.has_ladder(scenario):
                jobs |= {Job(scenario.name, *reference, (load,)): None for reference in _REFERENCES.values()}
        return list(jobs)

    def scenario_of(self, job: Job) -> Scenario:
        return next(scenario for scenario in self.scenarios if scenario.name == job.scenario)

    def requests_of_job(self, job: Job) -> int:
        return self.requests_of(self.scenario_of(job)) * (1 if job.timeline else len(self.seeds) * len(job.loads))

    def total(self) -> int:
        return sum(map(self.requests_of_job, self.jobs()))


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a plan: a policy on a scenario, with all loads and seeds side by side, faster than in turn."""

    scenario: str
    policy: str
    knowledge: Knowledge
    loads: tuple[float | None, ...]
    timeline: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Queues through the largest burst of one run; `t` samples."""

    time_s: FloatArray
    pending: FloatArray
    """Requests queued or executing at each worker; `(t, n)`."""
    arrivals_per_s: FloatArray
    """Requests between a sample and the one before; `(t,)`."""


@dataclass(frozen=True, slots=True, eq=False)
class Board:
    scenario: Scenario
    seeds: tuple[int, ...]
    requests: int
    load: float
    """Share of the capacity; NaN in a closed loop."""
    policies: dict[str, RunMetrics]
    """By the policy's shown name, as production knows the fleet: through reports."""
    exact: dict[str, RunMetrics]
    """The same policies where every queue is known without delay; empty without the ladder, as are the next two."""
    references: dict[str, RunMetrics]
    """`clairvoyant` and `exact queues`: `REFERENCE` with that knowledge; and `SOCIAL`."""
    bound: Pooled | None
    sweep: dict[str, dict[float, RunMetrics]]
    timelines: dict[str, Timeline]


def compare(
    plan: ComparisonPlan, *, pool: TaskPool | None = None, advance: Callable[[int], None] = lambda _: None
) -> list[Board]:
    """Run the plan; without a `pool` in this process. `advance` is called with the number of requests done since the
    last call.

    Raises:
        ValueError: the plan has no scenario, policy or seed, or a scenario refuses its load or requests.
    """
    for field in ("scenarios", "policies", "seeds"):
        if not getattr(plan, field):
            raise ValueError(f"{field} is empty: name at least one")
    jobs, here = plan.jobs(), pool is None or isinstance(pool, LocalPool)
    done: dict[Job, list[RunMetrics] | Timeline] = {}
    # Within this process `advance` hears of parts of a job, too; no other process can be sent it.
    execute = functools.partial(_execute, plan, advance=advance if here else None)
    for place, found in (pool or LocalPool()).each(execute, jobs):
        done[jobs[place]] = found
        if not here:
            advance(plan.requests_of_job(jobs[place]))
    return [_board(plan, scenario, done) for scenario in plan.scenarios]


def _execute(
    plan: ComparisonPlan, job: Job, advance: Callable[[int], None] | None = None
) -> list[RunMetrics] | Timeline:
    scenario = plan.scenario_of(job)
    seeds = plan.seeds[:1] if job.timeline else plan.seeds
    if job.policy == SOCIAL:
        actual = _at(scenario, job.loads[0])
        return [measure(run_social(actual, _arrivals(plan, actual, seeds), seeds, advance))]
    arrivals = [each for load in job.loads for each in _arrivals(plan, _at(scenario, load), seeds)]
    window = burst(arrivals[0]) if job.timeline else (0.0, 0.0)
    result = run(
        scenario.fleet,
        arrivals,
        plan.policies[job.policy] if job.policy in plan.policies else BUILTIN[job.policy](),
        seeds=seeds * len(job.loads),
        knowledge=job.knowledge,
        timeline_period_s=(window[1] - window[0]) / _SAMPLES,
        progress=advance,
    )
    if job.timeline:
        return _timeline(result, window)
    starts = range(0, len(arrivals), len(seeds))
    return [measure(environments(result, slice(start, start + len(seeds)))) for start in starts]


def _timeline(result: Result, window: tuple[float, float]) -> Timeline:
    shown = (result.timeline_s >= window[0]) & (result.timeline_s <= window[1])
    time_s = result.timeline_s[shown]
    arrived = np.searchsorted(result.arrival_s[0], time_s)
    rate = np.diff(arrived, prepend=arrived[:1]) * _SAMPLES / (window[1] - window[0])
    return Timeline(time_s, result.timeline_pending[0, shown], rate)


def _at(scenario: Scenario, load: float | None) -> Scenario:
    return scenario if load is None else scenario.with_load(load)


def burst(arrivals: Arrivals) -> tuple[float, float]:
    """Start and end of what to show of a run: the busiest fortieth of it, half as much before, thrice after."""
    span_s = float(arrivals.time_s[-1]) if len(arrivals) else 0.0
    length_s = span_s * _BURST_SHARE
    amount = np.concatenate([[0.0], np.cumsum(arrivals.rows * arrivals.work)])
    starts_s = np.linspace(0.0, span_s - length_s, 400)
    before = np.searchsorted(arrivals.time_s, starts_s)
    after = np.searchsorted(arrivals.time_s, starts_s + length_s)
    busiest_s = float(starts_s[np.argmax(amount[after] - amount[before])])
    start_s = max(busiest_s - length_s / 2, 0.0)
    return start_s, start_s + 4 * length_s


def _arrivals(plan: ComparisonPlan, scenario: Scenario, seeds: tuple[int, ...]) -> list[Arrivals]:
    return [scenario.arrivals(seed, plan.requests_of(scenario)) for seed in seeds]


def _board(plan: ComparisonPlan, scenario: Scenario, done: Mapping[Job, list[RunMetrics] | Timeline]) -> Board:
    closed = scenario.workload.clients > 0
    load, ladder = None if closed else plan.load, plan.has_ladder(scenario)
    actual = _at(scenario, load)
    found: dict[tuple[str, Knowledge, float | None], RunMetrics] = {}
    timelines: dict[str, Timeline] = {}
    for job, results in done.items():
        if job.scenario == scenario.name and isinstance(results, Timeline):
            timelines[job.policy] = results
        elif job.scenario == scenario.name and isinstance(results, list):
            found |= {(job.policy, job.knowledge, at): each for at, each in zip(job.loads, results, strict=True)}
    return Board(
        scenario=actual,
        seeds=plan.seeds,
        requests=plan.requests_of(scenario),
        load=float("nan") if closed else actual.workload.rate_per_s / actual.capacity_per_s,
        policies={policy: found[policy, "reports", load] for policy in plan.policies},
        exact={policy: found[policy, "exact", load] for policy in plan.policies if ladder},
        references={name: found[(*job, load)] for name, job in _REFERENCES.items() if ladder},
        bound=pooled(actual.fleet, _arrivals(plan, actual, plan.seeds)) if ladder else None,
        sweep={
            policy: {each: found[policy, "reports", each] for each in plan.sweep}
            for policy in plan.policies
            if plan.sweep and not closed
        },
        timelines=timelines,
    )
