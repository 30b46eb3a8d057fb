"""What is judged: which policies, in which scenarios and fleets, on which seeds; run in processes, and kept."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.ablations.switches import OpenBatches
from experiments.held_out.runs import Run, Task, Watch, Way, execute, joined
from experiments.held_out.store import Store
from policies import BUILTIN
from policies.base import Policy
from simulator.capacity import capacity_per_s
from simulator.scenario import Scenario, load_scenario
from simulator.scoreboard.compare import Board
from simulator.scoreboard.metrics import WARM_UP_SHARE
from simulator.spec import WorkerSpec

BASELINE, WEIGHTED = "expected_latency", "wlpr"
"""What the bar names, and what other fleets are run with."""
TOLD = f"{WEIGHTED}, told capacities"
"""The second where every worker's weight is its capacity: as an operator runs it who measured his workers."""
BEFORE = f"{BASELINE}, open batches"
"""The first with the estimate that it had when the bar was set, which let requests join batches that execute."""
CLAIRVOYANT = "clairvoyant"
LOADS = (0.5, 0.7, 0.85)
"""Of the other fleets, as shares of their capacity."""
_FLEETS = Path(__file__).parent / "fleets"
LARGE, _SEEDS_OF_LARGE = 200, 6
"""From so many workers on, other fleets have so few seeds, for the time it takes."""
WARM_UP_OF_FLEETS = 0.5
"""Share of the requests: with few requests for each of many workers, service times take so long to be known."""
_AT_ONCE = 1300
"""Workers of all environments of a task together: more do not fit the caches, fewer waste NumPy's calls."""
_SECONDS_A_DECISION: Mapping[Way, tuple[float, float]] = {
    "plain": (5e-6, 1e-7),
    "guarded": (1.6e-5, 4e-7),
    "clairvoyant": (1.7e-5, 3e-7),
    "social": (1.7e-5, 3e-7),
}
"""Without workers, and for each of them: a guess, for the time left."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is judged."""

    scenarios: tuple[Scenario, ...]
    fleets: tuple[Scenario, ...]
    """Of other sizes, run with the subject and the two of the bar alone."""
    heuristics: Mapping[str, Policy]
    trained: Mapping[str, Policy]
    """By the name to show; the first is the subject."""
    seeds: tuple[int, ...]
    requests: int | None = None
    """Of each run; None: as the scenario says."""

    def tasks(self) -> list[Task]:
        """All runs, the longest first, so that processes end together."""
        found = [task for each in (*self.scenarios, *self.fleets) for task in self.tasks_of(each)]
        return sorted(found, key=seconds, reverse=True)

    def seeds_of(self, scenario: Scenario) -> tuple[int, ...]:
        """Fewer for the largest of the other fleets."""
        large = self._is_fleet(scenario) and len(scenario.fleet.workers) >= LARGE
        return self.seeds[:_SEEDS_OF_LARGE] if large else self.seeds

    def _is_fleet(self, scenario: Scenario) -> bool:
        return any(each is scenario for each in self.fleets)

    def requests_of(self, scenario: Scenario) -> int:
        """Requests of one run."""
        return scenario.requests if self.requests is None else self.requests

    def tasks_of(self, scenario: Scenario) -> Iterator[Task]:
        """All runs of one of the scenarios or fleets, by seeds."""
        few = self._is_fleet(scenario)
        heuristics = {name: self.heuristics[name] for name in (BASELINE, WEIGHTED)} if few else self.heuristics
        wanted: list[tuple[str, Policy, Way, Scenario]]
        wanted = [(name, policy, "plain", scenario) for name, policy in heuristics.items()]
        for name, policy in list(self.trained.items())[: 1 if few else None]:
            wanted += [(name, policy, "plain", scenario), (name, policy, "guarded", scenario)]
        if not few:
            wanted.append((BASELINE, BUILTIN[BASELINE](), "clairvoyant", scenario))
            wanted.append((BEFORE, OpenBatches(), "plain", scenario))
            wanted.append((TOLD, BUILTIN[WEIGHTED](), "plain", with_weights(scenario)))
        seeds = self.seeds_of(scenario)
        warm_up_share = WARM_UP_OF_FLEETS if few else WARM_UP_SHARE
        size = max(_AT_ONCE // len(scenario.fleet.workers), 1)
        for start in range(0, len(seeds), size):
            for label, policy, way, where in wanted:
                chosen = seeds[start : start + size]
                yield Task(where, policy, label, way, chosen, self.requests_of(scenario), warm_up_share)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """All that was found in one scenario."""

    board: Board
    """Trained policies under the name shown as they are served, with the guard; and as `bare(name)` without."""
    watches: Mapping[str, Watch]
    """What the guards of each trained policy did."""
    end_s: float
    """How long a run lasts, mean over seeds of the baseline."""


def bare(name: str) -> str:
    """What a trained policy is called where no guard is."""
    return f"{name}, no guard"


def other_fleets() -> tuple[Scenario, ...]:
    """Those beside this file, at each of `LOADS`, by size."""
    files = sorted(_FLEETS.glob("*.yaml"), key=lambda path: (int(path.stem.partition("-")[0]), path.stem))
    return tuple(_at(load_scenario(path), load) for path in files for load in LOADS)


def _at(scenario: Scenario, load: float) -> Scenario:
    return replace(scenario.with_load(load), name=f"{scenario.name} at {load:.0%}")


def with_weights(scenario: Scenario) -> Scenario:
    """The same, every worker's weight its capacity for these requests, over the mean worker's."""
    fleet, workload = scenario.fleet, scenario.workload

    @functools.cache
    def capacity(alike: WorkerSpec) -> float:
        held = tuple(each for each in workload.traffic if not alike.models or each.name in alike.models)
        return capacity_per_s(replace(fleet, workers=(alike,)), replace(workload, traffic=held))

    # Late ones as if they were there; equal ones once.
    found = [capacity(replace(worker, name="one", present=True)) for worker in fleet.workers]
    mean = sum(found) / len(found)
    workers = tuple(replace(one, weight=each / mean) for one, each in zip(fleet.workers, found, strict=True))
    return replace(scenario, name=f"{scenario.name}, told capacities", fleet=replace(fleet, workers=workers))


def seconds(task: Task) -> float:
    """What a task takes, about."""
    fixed_s, worker_s = _SECONDS_A_DECISION[task.way]
    if task.policy.trained:
        worker_s = 4e-7
    return len(task.seeds) * task.requests * (fixed_s + worker_s * len(task.scenario.fleet.workers))


def run_all(tasks: Sequence[Task], store: Store, processes: int, done: Callable[[Task], None] = lambda _: None) -> None:
    """Run what is not in the store, and keep each at once; `done` is told of each."""
    if processes == 1:
        for task in tasks:
            store.keep(task, execute(task))
            done(task)
        return
    # Not fork: the compiled engine's threads would not survive it.
    context = multiprocessing.get_context("forkserver")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(processes, mp_context=context))
        stack.callback(pool.shutdown, cancel_futures=True)  # first: where one failed, the others need not begin
        waiting = {pool.submit(execute, task): task for task in tasks}
        for future in as_completed(waiting):
            store.keep(waiting[future], future.result())
            done(waiting[future])


def judge(plan: Plan, scenario: Scenario, store: Store) -> Judged | None:
    """What the store has of the scenario; None where something is still to be run."""
    runs: dict[tuple[str, Way], list[Run]] = {}
    for task in plan.tasks_of(scenario):
        found = store.find(task)
        if found is None:
            return None
        runs.setdefault((task.label, task.way), []).append(found)
    whole = {key: joined(parts) for key, parts in runs.items()}
    metrics = {}
    for (label, way), run in whole.items():
        if way != "clairvoyant":
            metrics[bare(label) if way == "plain" and label in plan.trained else label] = run.metrics
    load = scenario.workload.rate_per_s / scenario.capacity_per_s if not scenario.workload.clients else float("nan")
    knowing = whole.get((BASELINE, "clairvoyant"))
    return Judged(
        board=Board(
            scenario=scenario,
            seeds=plan.seeds_of(scenario),
            requests=plan.requests_of(scenario),
            load=load,
            policies=metrics,
            exact={},
            references={} if knowing is None else {CLAIRVOYANT: knowing.metrics},
            bound=None,
            sweep={},
            timelines={},
        ),
        watches={name: run.watch for (name, _), run in whole.items() if run.watch is not None},
        end_s=float(whole[BASELINE, "plain"].end_s.mean()),
    )
