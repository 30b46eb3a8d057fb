"""What each policy must achieve in a small fleet: same arrivals for all, seeds fixed, differences large."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from simulation.builders import arrivals_of, fleet_of, model_of

from policies import BUILTIN
from simulator.compare.metrics import RunMetrics, measure
from simulator.result import FloatArray, Status
from simulator.run import run
from simulator.scenario import load_scenario
from simulator.spec import NetworkSpec, Reports, SimulatedWorker

HETEROGENEOUS = (1.0, 1.0, 2.0, 4.0)
# The slowest serves 8 rows in 26 ms, so all together some 2,460 rows a second.
BUSY_PER_S = 1500.0
# 10 ms, and 2 ms a row.
BATCHING = model_of(*(0.010 + 0.002 * rows for rows in range(1, 9)), max_batch_rows=8)


def latencies_s(name: str, speeds: Sequence[float], rate_per_s: float, requests: int, balancers: int = 1) -> FloatArray:
    """Of Poisson arrivals, all served."""
    fleet = fleet_of(
        BATCHING,
        workers=[SimulatedWorker(f"w{w}", speed=speed) for w, speed in enumerate(speeds)],
        balancers=balancers,
        network=NetworkSpec(outcome_s=0.005),
        reports=Reports(0.05),
    )
    time_s = np.random.default_rng(0).exponential(1 / rate_per_s, requests).cumsum()
    arrivals = arrivals_of(time_s.tolist(), balancer=[k % balancers for k in range(requests)])
    result = run(fleet, [arrivals], BUILTIN[name]())
    assert np.all(result.status == Status.OK)
    served: FloatArray = result.latency_s[0]
    return served


@pytest.mark.parametrize("balancers", [1, 3])
def test_expected_latency_beats_the_load_blind_and_the_speed_blind(balancers: int) -> None:
    mean_ms = {
        name: 1e3 * latencies_s(name, HETEROGENEOUS, BUSY_PER_S, 2000, balancers).mean()
        for name in ("round_robin", "random", "least_requests", "wlpr", "power_of_two", "expected_latency")
    }
    best = mean_ms.pop("expected_latency")
    assert best < 0.9 * min(mean_ms.values()), mean_ms


def test_least_requests_uses_a_homogeneous_fleet_evenly_and_beats_random() -> None:
    least, random = (latencies_s(name, (1.0,) * 4, 600.0, 2000).mean() for name in ("least_requests", "random"))
    assert least < random


def shared_prompts(name: str, balancers: int = 1, **prompts: int) -> RunMetrics:
    """150 long prompts before short questions, on eight equal workers."""
    shipped = load_scenario("shared-prompts")
    (traffic,) = shipped.workload.traffic
    assert traffic.prompts is not None  # the scenario says so
    traffic = replace(traffic, prompts=replace(traffic.prompts, **prompts))
    fleet, workload = replace(shipped.fleet, balancers=balancers), replace(shipped.workload, traffic=(traffic,))
    arrivals = [replace(shipped, fleet=fleet, workload=workload).arrivals(seed, 2000) for seed in range(3)]
    return measure(run(fleet, arrivals, BUILTIN[name](), seeds=range(3)))


def test_four_balancers_keep_what_one_gains_by_prefixes() -> None:
    blind = shared_prompts("least_requests").prompts.cached.mean()
    one, four = (shared_prompts("expected_latency", balancers) for balancers in (1, 4))
    assert one.prompts.cached.mean() > blind + 0.05
    assert four.prompts.cached.mean() - blind >= 0.8 * (one.prompts.cached.mean() - blind)
    assert four.first_mean_s.mean() < 1.2 * one.first_mean_s.mean()


def test_a_prompt_that_all_begin_with_does_not_crowd_a_worker() -> None:
    found = shared_prompts("expected_latency", key_tokens=0, common_tokens=6000)
    assert found.prompts.cached.mean() > 0.9
    assert found.worker_requests.max() < 1.3 * found.worker_requests.mean()
