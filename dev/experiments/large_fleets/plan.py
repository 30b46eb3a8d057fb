"""What is played, and what comes of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from policies import BUILTIN
from simulator.result import Status
from simulator.run import run
from simulator.scenario import Scenario, load_scenario

_HERE = Path(__file__).parent
SAMPLED = 32
"""Workers that a decision looks at by default."""
_SAMPLED = (8, 16, SAMPLED, 60, 0)
_SEEDS = (0, 1, 2)
_TOLD_S = 0.002
_WARM_UP = 0.2
"""Share of the time at the start that does not count: the fleet is empty."""


class Setup(NamedTuple):
    fleet: str
    workers: int
    balancers: int
    told: bool
    """Whether balancers tell each other of their picks, which takes 2 ms."""
    report_every_s: float
    policy: str
    sampled: int
    """Workers that a decision looks at; 0: all."""


class Figures(NamedTuple):
    mean_ms: float
    mean_least_ms: float
    """Of the seeds."""
    mean_most_ms: float
    p99_ms: float
    late: float
    """Share that misses its deadline, or fails."""


def setups() -> Iterator[Setup]:
    alone = [(1, False, 0.05)]
    together = [(4, True, 0.05), (16, True, 0.05), (16, True, 1.0), (16, False, 0.05)]
    for sampled in (0, SAMPLED):  # these take as long as all others
        yield Setup("gpus", 10_240, 16, True, 0.25, "expected_latency", sampled)
    for fleet in ("gpus", "speeds"):
        for balancers, told, every_s in alone + together:
            for policy in ("expected_latency", "least_requests"):
                for sampled in _SAMPLED:
                    yield Setup(fleet, 1024, balancers, told, every_s, policy, sampled)


def scenario_of(setup: Setup) -> Scenario:
    found = load_scenario(_HERE / f"{setup.fleet}.yaml")
    times = setup.workers // len(found.fleet.workers)
    workers = tuple(
        replace(worker, name=f"{worker.name}-{number}") for number in range(times) for worker in found.fleet.workers
    )
    fleet = replace(
        found.fleet,
        workers=workers,
        balancers=setup.balancers,
        peers_s=_TOLD_S if setup.told else None,
        reports=replace(found.fleet.reports, period_s=setup.report_every_s),
        settings=replace(found.fleet.settings, sampled_workers=setup.sampled),
    )
    workload = found.workload if times == 1 else found.workload.at_rate(times * found.workload.rate_per_s)
    return replace(found, fleet=fleet, workload=workload, requests=times * found.requests)


def figures(setup: Setup) -> Figures:
    scenario = scenario_of(setup)
    seeds = _SEEDS if setup.workers == 1024 else _SEEDS[:1]
    result = run(scenario.fleet, [scenario.arrivals(seed) for seed in seeds], BUILTIN[setup.policy](), seeds=seeds)
    counts = result.arrival_s > _WARM_UP * result.arrival_s[:, -1:]
    ok = result.status == Status.OK
    means_ms = [1e3 * latency_s[of].mean() for latency_s, of in zip(result.latency_s, counts & ok, strict=True)]
    late = ~ok | (result.latency_s > result.deadline_s)
    p99_ms = 1e3 * np.percentile(result.latency_s[counts & ok], 99)
    return Figures(np.mean(means_ms).item(), min(means_ms), max(means_ms), float(p99_ms), float(late[counts].mean()))
