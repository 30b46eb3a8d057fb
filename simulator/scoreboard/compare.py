"""Run policies on scenarios, with all that they are compared to: on equal arrivals, in several processes if wanted."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from policies import BUILTIN
from policies.base import Policy
from simulator.arrivals import Arrivals
from simulator.run import run
from simulator.scenario import Scenario
from simulator.scoreboard.metrics import Metrics, measure
from simulator.scoreboard.pooled import Pooled, pooled

FloatArray = npt.NDArray[np.float64]
Knowledge = Literal["reports", "exact", "clairvoyant"]

REFERENCE = "expected_latency"
"""The policy, with its default options, that the references with more knowledge follow."""

_BURST_SHARE = 1 / 40
_SAMPLES = 300


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    scenarios: tuple[Scenario, ...]
    policies: Mapping[str, Policy]
    """By the name to show: as the user spelled policy and options."""
    seeds: tuple[int, ...]
    requests: int | None = None
    """Of each run; None: as the scenario says."""
    load: float | None = None
    """Share of the capacity; None: as the scenario says. A closed loop has none, nor a sweep or a timeline."""
    ladder: bool = True
    """Whether to run the references for regret."""
    sweep: tuple[float, ...] = ()
    """Loads at which each policy runs once more."""
    timelines: bool = False
    """Whether to record the queues of the first seed through its largest burst."""

    def requests_of(self, scenario: Scenario) -> int:
        """Requests of one run of the scenario."""
        return scenario.requests if self.requests is None else self.requests

    def jobs(self) -> list[Job]:
        """All runs, each once; a run is one policy on one scenario with all seeds."""
        jobs: dict[Job, None] = {}
        for scenario in self.scenarios:
            closed = scenario.workload.clients > 0
            load = None if closed else self.load
            for policy in self.policies:
                jobs[Job(scenario.name, policy, "reports", load)] = None
                if self.ladder:
                    jobs[Job(scenario.name, policy, "exact", load)] = None
                if self.timelines and not closed:
                    jobs[Job(scenario.name, policy, "reports", load, timeline=True)] = None
                for each in () if closed else self.sweep:
                    jobs[Job(scenario.name, policy, "reports", each)] = None
            if self.ladder:
                jobs[Job(scenario.name, REFERENCE, "exact", load)] = None
                jobs[Job(scenario.name, REFERENCE, "clairvoyant", load)] = None
        return list(jobs)

    def total(self) -> int:
        """Requests of all jobs together."""
        requests = {scenario.name: self.requests_of(scenario) for scenario in self.scenarios}
        return sum(requests[job.scenario] * (1 if job.timeline else len(self.seeds)) for job in self.jobs())


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a plan."""

    scenario: str
    policy: str
    knowledge: Knowledge
    load: float | None
    timeline: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Queues through the largest burst of one run; `t` samples."""

    time_s: FloatArray
    """From the start of the run; `(t,)`."""
    pending: FloatArray
    """Requests queued or executing at each worker; `(t, n)`."""
    arrivals_per_s: FloatArray
    """Requests between a sample and the one before; `(t,)`."""


@dataclass(frozen=True, slots=True, eq=False)
class Board:
    """All that was found in one scenario."""

    scenario: Scenario
    seeds: tuple[int, ...]
    requests: int
    load: float
    """Share of the capacity; NaN in a closed loop."""
    policies: dict[str, Metrics]
    """By the policy's shown name, as production knows the fleet: through reports."""
    exact: dict[str, Metrics]
    """The same policies where every queue is known without delay; empty without the ladder, as are the next two."""
    references: dict[str, Metrics]
    """`exact queues` and `clairvoyant`: `REFERENCE` with that knowledge."""
    bound: Pooled | None
    sweep: dict[str, dict[float, Metrics]]
    """By policy and load."""
    timelines: dict[str, Timeline]


def compare(plan: Plan, *, processes: int = 1, advance: Callable[[int], None] = lambda _: None) -> list[Board]:
    """Run the plan; `advance` is called with the number of requests done since the last call.

    Raises:
        ValueError: the plan has no scenario, policy or seed, or a scenario refuses its load or requests.
    """
    for field in ("scenarios", "policies", "seeds"):
        if not getattr(plan, field):
            raise ValueError(f"{field} is empty: name at least one")
    done: dict[Job, Metrics | Timeline] = {}
    if processes == 1:
        for job in plan.jobs():
            done[job] = _execute(plan, job, advance)
    else:
        for job, found in _spread(plan, processes):
            done[job] = found
            advance(plan.requests_of(_scenario(plan, job)) * (1 if job.timeline else len(plan.seeds)))
    return [_board(plan, scenario, done) for scenario in plan.scenarios]


def _spread(plan: Plan, processes: int) -> Iterator[tuple[Job, Metrics | Timeline]]:
    # Not fork: the compiled engine's threads would not survive it.
    context = multiprocessing.get_context("forkserver")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(processes, mp_context=context))
        stack.callback(pool.shutdown, cancel_futures=True)  # first: where one failed, the others need not begin
        waiting: dict[Future[Metrics | Timeline], Job] = {pool.submit(_execute, plan, job): job for job in plan.jobs()}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _scenario(plan: Plan, job: Job) -> Scenario:
    scenario = next(each for each in plan.scenarios if each.name == job.scenario)
    return scenario if job.load is None else scenario.with_load(job.load)


def _execute(plan: Plan, job: Job, advance: Callable[[int], None] | None = None) -> Metrics | Timeline:
    scenario = _scenario(plan, job)
    seeds = plan.seeds[:1] if job.timeline else plan.seeds
    arrivals = _arrivals(plan, scenario, seeds)
    policy = plan.policies[job.policy] if job.policy in plan.policies else BUILTIN[job.policy]()
    window = burst(arrivals[0]) if job.timeline else (0.0, 0.0)
    result = run(
        scenario.fleet,
        arrivals,
        policy,
        seeds=seeds,
        knowledge=job.knowledge,
        timeline_period_s=(window[1] - window[0]) / _SAMPLES,
        progress=advance,
    )
    if not job.timeline:
        return measure(result)
    shown = (result.timeline_s >= window[0]) & (result.timeline_s <= window[1])
    time_s = result.timeline_s[shown]
    arrived = np.searchsorted(arrivals[0].time_s, time_s)
    rate = np.diff(arrived, prepend=arrived[:1]) / max(window[1] - window[0], 1e-9) * _SAMPLES
    return Timeline(time_s, result.timeline_pending[0, shown], rate)


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


def _arrivals(plan: Plan, scenario: Scenario, seeds: tuple[int, ...]) -> list[Arrivals]:
    return [scenario.arrivals(seed, plan.requests_of(scenario)) for seed in seeds]


def _board(plan: Plan, scenario: Scenario, done: Mapping[Job, Metrics | Timeline]) -> Board:
    closed = scenario.workload.clients > 0
    load = None if closed else plan.load
    actual = scenario if load is None else scenario.with_load(load)

    def metrics(policy: str, knowledge: Knowledge, at: float | None = load) -> Metrics:
        found = done[Job(scenario.name, policy, knowledge, at)]
        assert isinstance(found, Metrics)
        return found

    timelines = {}
    for policy in plan.policies if plan.timelines and not closed else ():
        found = done[Job(scenario.name, policy, "reports", load, timeline=True)]
        assert isinstance(found, Timeline)
        timelines[policy] = found
    references: dict[str, Metrics] = {}
    if plan.ladder:
        references = {
            "clairvoyant": metrics(REFERENCE, "clairvoyant"),
            "exact queues": metrics(REFERENCE, "exact"),
        }
    return Board(
        scenario=actual,
        seeds=plan.seeds,
        requests=plan.requests_of(scenario),
        load=float("nan") if closed else actual.workload.rate_per_s / actual.capacity_per_s,
        policies={policy: metrics(policy, "reports") for policy in plan.policies},
        exact={policy: metrics(policy, "exact") for policy in plan.policies if plan.ladder},
        references=references,
        bound=pooled(actual.fleet, _arrivals(plan, actual, plan.seeds)) if plan.ladder else None,
        sweep={
            policy: {each: metrics(policy, "reports", each) for each in plan.sweep}
            for policy in plan.policies
            if plan.sweep and not closed
        },
        timelines=timelines,
    )
