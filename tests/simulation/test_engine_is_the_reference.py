"""The compiled engine does what the plain reference does: the same decisions and the same latencies, bit for bit.

In the end every balancer knows the same of every worker, bit for bit as well.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.equality import assert_equal, run_engine
from simulation.strategies import Scenario, generating_scenarios, holding_scenarios, scenarios
from support.examples import examples
from support.strangers import Softmax

from balancer.scheduler.fleet import Fleet
from dev import reference
from policies import BUILTIN, Policy
from simulator.batch import Batch
from simulator.scenario import load_scenario
from simulator.spec import FleetSpec


def assert_known_alike(batch: Batch, balancer: int, fleet: Fleet, spec: FleetSpec) -> None:
    """What the estimators of one balancer hold of the workers that it was told of, bit for bit."""
    first = balancer * len(spec.workers)
    rows = [first + w for w, worker in enumerate(spec.workers) if worker.name in fleet.index]
    own_rows = [fleet.index[worker.name] for worker in spec.workers if worker.name in fleet.index]
    columns = [fleet.models[model.name] for model in spec.models]
    for part in ("queue", "service", "latency", "tokens", "caches"):
        engines, plain = getattr(batch.sim, part), getattr(fleet, part)
        for field in dataclasses.fields(plain):
            if not field.metadata["axes"].startswith("r"):
                continue  # the table of keys knows a model by its column, which differs
            found, expected = getattr(engines, field.name)[rows], getattr(plain, field.name)[own_rows]
            if expected.ndim > 1:
                expected = expected[:, columns]
            np.testing.assert_array_equal(found, expected, err_msg=f"balancer {balancer}: {part}.{field.name}")
    np.testing.assert_array_equal(batch.sim.decision.reported_s[rows], fleet.reported_s[own_rows])


def compare(scenario: Scenario, policy: Policy, compiled: bool) -> Batch:
    fleet, arrivals, seed = scenario
    batch = Batch([fleet], [arrivals], [seed])
    run_engine(batch, policy, compiled)
    plain = reference.Simulation(fleet, arrivals, policy, seed)
    assert_equal(batch.result(), plain.run())
    for balancer, router in enumerate(plain.world.routers):
        assert batch.sim.known.number[0, balancer] == router.next_number
        assert_known_alike(batch, balancer, router.fleet, fleet)
    return batch


@settings(max_examples=examples(15), deadline=None)
@given(scenario=scenarios(), compiled=st.booleans())
def test_a_stranger_s_program(scenario: Scenario, compiled: bool) -> None:
    batch = Batch([scenario[0]], [scenario[1]], [scenario[2]])
    assert batch.run_inside(Softmax())
    compare(scenario, Softmax(), compiled)


@pytest.mark.parametrize("name", sorted(BUILTIN))
@settings(max_examples=examples(15), deadline=None)
@given(scenario=scenarios(), compiled=st.booleans())
def test_random_fleets(name: str, scenario: Scenario, compiled: bool) -> None:
    compare(scenario, BUILTIN[name](), compiled)


@settings(max_examples=examples(100), deadline=None)
@given(scenario=generating_scenarios(), name=st.sampled_from(sorted(BUILTIN)))
def test_models_that_generate(scenario: Scenario, name: str) -> None:
    compare(scenario, BUILTIN[name](), compiled=True)


@pytest.mark.parametrize("name", ["expected_latency", "least_requests", "round_robin"])
@settings(max_examples=examples(25), deadline=None)
@given(scenario=holding_scenarios())
def test_requests_that_are_held(name: str, scenario: Scenario) -> None:
    compare(scenario, BUILTIN[name](), compiled=True)


@pytest.mark.parametrize(("balancers", "requests", "compiled"), [(1, 2500, True), (1, 2500, False), (2, 8000, True)])
def test_savings_that_are_learned(balancers: int, requests: int, compiled: bool) -> None:
    shipped = load_scenario("cache-affinity")
    scenario = dataclasses.replace(shipped, fleet=dataclasses.replace(shipped.fleet, balancers=balancers))
    arrivals = scenario.arrivals(1, requests)
    batch = compare((scenario.fleet, arrivals, 1), BUILTIN["expected_latency"](), compiled)
    assert batch.sim.caches.saved.any()
