"""One policy in one scenario: latencies, and what was expected of each request when it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from policies.base import Policy
from simulator.arrivals import Arrivals
from simulator.batch import Batch
from simulator.result import Status
from simulator.scenario import Scenario
from simulator.spec import FleetSpec

WARM_UP_SHARE = 0.1


class Found(TypedDict):
    """Of one scenario, a number for each seed."""

    load: float
    mean_s: list[float]
    p99_s: list[float]
    real_over_expected: list[float]
    """Median over requests of the time until the answer, over `completion_s` of the worker picked."""


def measure(scenario: Scenario, policy: Policy, seeds: Sequence[int], requests: int) -> Found:
    """Run all seeds side by side."""
    arrivals = [scenario.arrivals(seed, requests) for seed in seeds]
    return measure_runs(scenario.fleet, arrivals, policy, seeds, load_of(scenario))


def measure_runs(
    fleet: FleetSpec, arrivals: Sequence[Arrivals], policy: Policy, seeds: Sequence[int], load: float
) -> Found:
    """The same of arrivals that are there, as many in each run."""
    requests = len(arrivals[0])
    batch = Batch([fleet] * len(seeds), arrivals, seeds)
    expected_s = np.full((len(seeds), requests), np.nan)
    waiting = batch.start()
    while waiting:
        view = batch.view()
        picks = batch.draw(batch.probabilities(policy, view))
        sent = np.flatnonzero(batch.waiting & (picks >= 0))
        expected_s[sent, batch.deciding[sent]] = view.completion_s[sent, picks[sent]]
        waiting = batch.step(picks)
    result, first = batch.result(), int(requests * WARM_UP_SHARE)
    ok = (result.status == Status.OK) & (result.attempts == 1)
    real_s = result.latency_s - fleet.network.to_worker_s - fleet.network.to_client_s
    found: Found = {"load": load, "mean_s": [], "p99_s": [], "real_over_expected": []}
    for e in range(len(seeds)):
        kept = np.flatnonzero(ok[e, first:]) + first
        latency_s = result.latency_s[e, kept]
        found["mean_s"].append(float(latency_s.mean()))
        found["p99_s"].append(float(np.quantile(latency_s, 0.99)))
        found["real_over_expected"].append(float(np.median(real_s[e, kept] / np.maximum(expected_s[e, kept], 1e-9))))
    return found


def load_of(scenario: Scenario) -> float:
    """Share of the capacity; infinite for a closed loop."""
    return float("inf") if scenario.workload.clients else scenario.workload.rate_per_s / scenario.capacity_per_s
