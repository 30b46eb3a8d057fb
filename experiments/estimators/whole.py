"""Runs that are played as a whole: by the reference that minds others, or by balancers that hold requests.

Apart from `measure.py`, which older trees run too.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.estimators.measure import WARM_UP_SHARE, Found, load_of
from experiments.holding.measure import measure
from policies.base import FloatArray
from simulator.scenario import Scenario
from simulator.scoreboard import metrics
from simulator.scoreboard.social import run_social
from simulator.spec import FleetSpec


def measure_social(scenario: Scenario, seeds: Sequence[int], requests: int) -> Found:
    """Latencies by the reference that minds others."""
    arrivals = [scenario.arrivals(seed, requests) for seed in seeds]
    latency = metrics.measure(run_social(scenario, arrivals, seeds), WARM_UP_SHARE).latency
    return _found(scenario, latency.mean_s, latency.p99_s)


def measure_held(scenario: Scenario, fleet: FleetSpec, seeds: Sequence[int], requests: int) -> Found:
    """Latencies of the scenario's requests on this fleet, whose balancers hold them until a worker has room."""
    held = measure(scenario, fleet, seeds, requests)
    return _found(scenario, held.mean_s, held.p99_s)


def _found(scenario: Scenario, mean_s: FloatArray, p99_s: FloatArray) -> Found:
    """Of what nobody expected anything of."""
    unknown = [float("nan")] * len(mean_s)
    return {
        "load": load_of(scenario),
        "mean_s": mean_s.tolist(),
        "p99_s": p99_s.tolist(),
        "real_over_expected": unknown,
    }
