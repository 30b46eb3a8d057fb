"""Environments of one batch share nothing: each runs as it would alone."""

import numpy as np
import pytest
from simulation.builders import arrivals_of, fleet_of, model_of

from balancer.kernel.compiled.numba_records import Native
from policies import BUILTIN
from simulator.batch import Batch
from simulator.engine import deciders
from simulator.engine.allocate import allocate
from simulator.run import run
from simulator.scenario import load_scenario
from simulator.spec import ModelSpec, ServiceTime, SimulatedWorker


@pytest.mark.parametrize("compiled", [True, False])
def test_fleets_of_other_sizes_beside_change_nothing(compiled: bool) -> None:
    names = ["two-balancers", "four-balancers", "churn", "several-models", "priorities"]
    scenarios = [load_scenario(name) for name in names]
    fleets = [scenario.fleet for scenario in scenarios]
    arrivals = [scenario.arrivals(seed=1, requests=400) for scenario in scenarios]
    policy = BUILTIN["expected_latency"]()
    together = run(fleets, arrivals, policy, seeds=[7] * len(names), compiled=compiled)
    for e, (fleet, one) in enumerate(zip(fleets, arrivals, strict=True)):
        alone = run(fleet, [one], policy, seeds=[7], compiled=compiled)
        for field in ("picked", "worker", "status", "latency_s"):
            np.testing.assert_array_equal(getattr(together, field)[e], getattr(alone, field)[0], err_msg=names[e])


def test_what_does_not_fit_is_refused_by_name() -> None:
    fleet = load_scenario("homogeneous-steady").fleet
    with pytest.raises(ValueError, match="rows of request 0 is 1000: its model takes 1 to"):
        run(fleet, [arrivals_of([0.0], rows=[1000])], BUILTIN["random"]())


def test_environments_can_be_loaded_with_ever_new_service_times() -> None:
    policy = BUILTIN["round_robin"]()
    arrivals = arrivals_of([0.0, 1.0])
    fleets = [fleet_of(model_of(0.010 + 0.001 * i)) for i in range(10)]
    batch = Batch(fleets[:2], [arrivals] * 2, [0, 0])
    batch.start()
    for fleet in fleets[2:]:
        batch.load(0, fleet, arrivals, 0)
    while batch.waiting.any():
        batch.step(batch.draw(batch.probabilities(policy)))
    latency_s = batch.result().latency_s
    for e, fleet in enumerate([fleets[-1], fleets[1]]):
        np.testing.assert_array_equal(latency_s[e], run(fleet, [arrivals], policy, seeds=[0]).latency_s[0])


def test_a_policy_is_compiled_once_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled is found again by whoever compiles the same policy anew."""
    policy = BUILTIN["round_robin"]()
    for _ in range(2):
        monkeypatch.setattr(deciders, "_functions", {})
        run(fleet_of(model_of(0.01)), [arrivals_of([0.0, 1.0])], policy)
        (found,) = deciders._functions.values()
    assert found.cache_hits == 1


@pytest.mark.parametrize(("requests", "retries"), [(1, 2), (40, 0)])
def test_one_engine_serves_all_fleets(requests: int, retries: int) -> None:
    """For arrays of another type, all would be compiled once more."""
    fleets = fleet_of(model_of(0.01), retries=retries), load_scenario("several-models").fleet
    one, other = (
        Native(allocate([fleet], [arrivals_of(range(count))]))
        for fleet, count in zip(fleets, (requests, 400), strict=True)
    )
    assert one.numba_type == other.numba_type


def test_more_service_times_at_once_than_there_is_room_for_are_refused() -> None:
    workers = [SimulatedWorker("w0", "a"), SimulatedWorker("w1", "b")]
    one, two = ServiceTime((1,), (0.01,)), ServiceTime((1,), (0.02,))
    models = [ModelSpec("m", dict(zip("ab", pair, strict=True))) for pair in ((one, one), (one, two))]
    alike, unlike = (fleet_of(model, workers=workers) for model in models)
    batch = Batch([alike], [arrivals_of([0.0])], [0])
    with pytest.raises(ValueError, match="more than the 1 service times that the environments were made for"):
        batch.load(0, unlike, arrivals_of([0.0]), 0)
