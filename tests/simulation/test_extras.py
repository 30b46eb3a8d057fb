"""Sequences, streams, clients that give up, and models that come and go: examples that can be worked out by hand."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulation.builders import arrivals_of, fleet_of, model_of

from balancer.kernel.settings import HeldModel, HoldingSettings, Limits, Settings
from balancer.scheduler.keys import OF_SEQUENCES
from dev.reference import Simulation, simulate
from policies.hashing import hash_draw, key_of, mix, rendezvous_cost
from policies.round_robin import RoundRobin
from simulator.arrivals import Arrivals
from simulator.result import Result, Status
from simulator.run import run
from simulator.spec import CacheSpec, Fault, FleetSpec, NetworkSpec

Simulate = Callable[..., Result]
SIMULATORS: dict[str, Simulate] = {
    "reference": simulate,
    "engine": lambda fleet, arrivals, policy, seed: run(fleet, [arrivals], policy, seeds=[seed]),
}
EVERYWHERE = pytest.mark.parametrize("simulate", SIMULATORS.values(), ids=SIMULATORS)
OK, ERROR, UNAVAILABLE, NO_WORKER = Status.OK, Status.ERROR, Status.UNAVAILABLE, Status.NO_WORKER
SHED, CANCELLED = Status.SHED, Status.CANCELLED


def ran(simulate: Simulate, fleet: FleetSpec, arrivals: Arrivals) -> Result:
    return simulate(fleet, arrivals, RoundRobin(), 1)


def statuses(result: Result) -> list[Status]:
    return [Status(status) for status in result.status[0]]


def latencies_ms(result: Result) -> Any:
    return pytest.approx((result.latency_s[0] * 1e3).tolist(), abs=1e-6)


def home(fleet: FleetSpec, key: int) -> int:
    """Of a sequence with that key."""
    draws = np.array([hash_draw(np.uint64(key_of(worker.name)), np.uint64(mix(key))) for worker in fleet.workers])
    return int(rendezvous_cost(draws, np.ones(len(draws))).argmin())


def sequence(times_s: list[float], key: int = 7, **columns: Any) -> Arrivals:
    """One sequence, which the first request starts."""
    starts = [True] + [False] * (len(times_s) - 1)
    return arrivals_of(times_s, key=key, sequence=0, starts=starts, **columns)


# Sequences.


@EVERYWHERE
@pytest.mark.parametrize("key", [7, 8, 9, 10])
def test_a_sequence_belongs_to_one_worker_whatever_the_policy_and_the_queue(simulate: Simulate, key: int) -> None:
    fleet = fleet_of(model_of(0.010), workers=5)
    result = ran(simulate, fleet, sequence([0.0] * 6, key))

    assert set(result.worker[0]) == {home(fleet, key)}
    assert latencies_ms(result) == [10, 20, 30, 40, 50, 60]


def test_the_reference_places_sequences_by_the_routers_own_hash() -> None:
    """And not because a sticky key would go there as well."""
    fleet = fleet_of(model_of(0.010), workers=3, settings=Settings(sticky_keys=False))
    simulation = Simulation(fleet, sequence([0.0, 0.001]), RoundRobin(), 1)
    simulation.run()

    assert set(simulation.decided) == {home(fleet, 7)}
    assert simulation.roles == ["hash", "hash"]
    assert OF_SEQUENCES.balance_factor == np.inf


@EVERYWHERE
def test_a_request_of_a_sequence_that_nobody_started_is_refused_at_once(simulate: Simulate) -> None:
    result = ran(simulate, fleet_of(model_of(0.010)), arrivals_of([0.0, 1.0], key=7, sequence=0, starts=[False, True]))

    assert statuses(result) == [ERROR, OK]
    assert latencies_ms(result) == [0, 10]


@EVERYWHERE
def test_a_crash_loses_the_sequence_and_its_next_requests_fail(simulate: Simulate) -> None:
    fleet = fleet_of(model_of(0.010), workers=2)
    crash = Fault("crash", fleet.workers[home(fleet, 7)].name, 0.5, 1.0)
    fleet = dataclasses.replace(fleet, faults=(crash,))
    result = ran(simulate, fleet, sequence([0.0, 0.4, 1.0, 2.0]))

    # While it is down the balancer has no other worker for it; back again, the worker knows nothing of it.
    assert statuses(result) == [OK, OK, UNAVAILABLE, ERROR]
    assert result.attempts[0].tolist() == [1, 1, 1, 1]


@EVERYWHERE
def test_a_sequence_stays_with_a_worker_that_drains(simulate: Simulate) -> None:
    fleet = fleet_of(model_of(0.010), workers=2)
    leaving = dataclasses.replace(fleet, faults=(Fault("leave", fleet.workers[home(fleet, 7)].name, 0.5),))

    assert statuses(ran(simulate, leaving, sequence([0.0, 1.0]))) == [OK, OK]


@EVERYWHERE
def test_a_worker_that_joins_takes_sequences_over_which_fail_then(simulate: Simulate) -> None:
    fleet = fleet_of(model_of(0.010), workers=2)
    keys = {home(fleet, key): key for key in range(1, 30)}
    workers = (fleet.workers[0], dataclasses.replace(fleet.workers[1], present=False))
    joining = dataclasses.replace(fleet, workers=workers, faults=(Fault("join", "w1", 0.5, 0.1),))

    assert statuses(ran(simulate, joining, sequence([0.0, 1.0], keys[0]))) == [OK, OK]
    assert statuses(ran(simulate, joining, sequence([0.0, 1.0], keys[1]))) == [OK, ERROR]


@EVERYWHERE
def test_a_sequence_is_shed_where_its_own_worker_is_full(simulate: Simulate) -> None:
    fleet = fleet_of(model_of(0.010), workers=3, settings=Settings(limits=Limits(max_pending_per_worker=2.0)))

    assert statuses(ran(simulate, fleet, sequence([0.0] * 3))) == [OK, OK, SHED]


# Streams.


@EVERYWHERE
def test_responses_come_evenly_over_the_time_on_the_device(simulate: Simulate) -> None:
    fleet = fleet_of(model_of(0.010, host_s=(0.002,)), network=NetworkSpec(to_worker_s=0.001, to_client_s=0.003))
    result = ran(simulate, fleet, arrivals_of([0.0, 0.0, 0.0], responses=[4, 0, 4], first_share=[0.25, 1.0, 0.5]))

    assert latencies_ms(result) == [16, 28, 40]
    assert result.first_s[0] * 1e3 == pytest.approx([1 + 2 + 2.5 + 3, np.nan, 1 + 36 - 5 + 3], nan_ok=True)


def test_the_balancer_learns_no_latency_from_a_stream() -> None:
    def latency_s(responses: int) -> float:
        simulation = Simulation(fleet_of(model_of(0.010)), arrivals_of([0.0], responses=responses), RoundRobin(), 1)
        simulation.run()
        return float(simulation.world.routers[0].fleet.latency.latency_s[0])

    assert latency_s(0) > 0
    assert latency_s(3) == 0


# Clients that give up.


@EVERYWHERE
def test_one_that_waits_leaves_the_queue_and_one_that_executes_goes_on(simulate: Simulate) -> None:
    result = ran(simulate, fleet_of(model_of(0.010)), arrivals_of([0.0] * 3, patience_s=[0.004, 0.006, np.inf]))

    assert statuses(result) == [CANCELLED, CANCELLED, OK]
    # The first one's execution is paid for, the second one's is not.
    assert latencies_ms(result) == [4, 6, 20]
    assert result.executions[0].tolist() == [2]
    assert result.busy_s[0] == pytest.approx([0.020])
    assert result.worker[0].tolist() == [-1, -1, 0]


@EVERYWHERE
def test_one_that_is_answered_at_that_very_moment_is_answered(simulate: Simulate) -> None:
    assert statuses(ran(simulate, fleet_of(model_of(0.0078125)), arrivals_of([0.0], patience_s=0.0078125))) == [OK]


@EVERYWHERE
def test_one_on_its_way_never_reaches_the_worker(simulate: Simulate) -> None:
    fleet = fleet_of(model_of(0.010), network=NetworkSpec(to_worker_s=0.005))
    result = ran(simulate, fleet, arrivals_of([0.0, 0.0], patience_s=[0.002, np.inf]))

    assert latencies_ms(result) == [2, 15]
    assert result.executions[0].tolist() == [1]


@EVERYWHERE
def test_one_that_is_held_leaves_the_line(simulate: Simulate) -> None:
    holding = HoldingSettings({"m": HeldModel(window_batches=0.0)}, order="arrival")
    fleet = fleet_of(model_of(0.010), settings=Settings(holding=holding))
    result = ran(simulate, fleet, arrivals_of([0.0] * 3, patience_s=[np.inf, 0.004, np.inf]))

    assert statuses(result) == [OK, CANCELLED, OK]
    assert result.attempts[0].tolist() == [1, 0, 1]
    assert result.executions[0].tolist() == [2]


@EVERYWHERE
def test_a_client_of_a_closed_loop_goes_on_when_it_has_given_up(simulate: Simulate) -> None:
    fleet = fleet_of(model_of(0.010))
    result = ran(simulate, fleet, arrivals_of([0.0] * 3, patience_s=[0.004, np.inf, np.inf], clients=1))

    assert (result.arrival_s[0] * 1e3).tolist() == pytest.approx([0, 4, 20])


# Models that come and go.


@EVERYWHERE
def test_a_model_that_is_unloaded_serves_what_waits_and_then_nothing_until_it_is_back(simulate: Simulate) -> None:
    fleet = fleet_of(model_of(0.125), faults=(Fault("unload", "w0", 0.1, 1.0, model="m"),), retries=0)
    # Before the next report the balancer knows nothing of it.
    result = ran(simulate, fleet, arrivals_of([0.0, 0.01, 0.1001, 0.5, 1.5]))

    assert statuses(result) == [OK, OK, UNAVAILABLE, NO_WORKER, OK]
    assert latencies_ms(result) == [125, 240, 0, 0, 125]


@EVERYWHERE
def test_a_model_that_is_loaded_serves_from_the_next_report_on(simulate: Simulate) -> None:
    models = (model_of(0.010, name="a"), model_of(0.020, name="b"))
    fleet = fleet_of(*models, faults=(Fault("load", "w0", 0.5, 0.5, model="b"),))
    fleet = dataclasses.replace(fleet, workers=(dataclasses.replace(fleet.workers[0], models=("a",)),))
    result = ran(simulate, fleet, arrivals_of([0.0, 0.1, 0.75, 1.2], model=[0, 1, 1, 1]))

    assert statuses(result) == [OK, NO_WORKER, NO_WORKER, OK]
    assert result.latency_s[0][3] == pytest.approx(0.020)


@EVERYWHERE
def test_unloading_a_model_loses_its_sequences_alone(simulate: Simulate) -> None:
    models = (model_of(0.010, name="a"), model_of(0.010, name="b"))
    fleet = fleet_of(*models, faults=(Fault("unload", "w0", 0.5, 0.1, model="b"),))
    arrivals = arrivals_of(
        [0.0, 0.0, 1.0, 1.0],
        model=[0, 1, 0, 1],
        key=[5, 6, 5, 6],
        sequence=[0, 1, 0, 1],
        starts=[True, True, False, False],
    )

    assert statuses(ran(simulate, fleet, arrivals)) == [OK, OK, OK, ERROR]


@EVERYWHERE
def test_another_worker_has_the_model_and_takes_what_fails(simulate: Simulate) -> None:
    fleet = fleet_of(
        model_of(0.010), workers=2, faults=(Fault("unload", "w0", 0.1, model="m"),), cache=CacheSpec(2, 0.5)
    )
    result = ran(simulate, fleet, arrivals_of([0.1001, 0.1001, 0.5, 0.5]))

    assert statuses(result) == [OK] * 4
    assert set(result.worker[0]) == {1}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("unload", "w0", 0.0, model="x"), "has model 'x'"),
        (Fault("slow", "w0", 0.0, amount=2.0, model="m"), "leave it out"),
    ],
)
def test_faults_that_do_not_fit_are_named(fault: Fault, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ran(SIMULATORS["engine"], fleet_of(model_of(0.010), faults=(fault,)), arrivals_of([0.0]))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"sequence": 0}, "key of a request of a sequence is 0"),
        ({"sequence": 2, "key": 1}, "sequence of arrivals runs from 2 to 2"),
        ({"sequence": 0, "key": [1, 2]}, "differ in key"),
        ({"responses": -1}, "responses of arrivals runs from -1"),
        ({"first_share": 0.0}, "first_share of arrivals runs from 0.0"),
        ({"patience_s": 0.0}, "patience_s of a request is 0.0"),
    ],
)
def test_extras_that_do_not_fit_are_named(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ran(SIMULATORS["engine"], fleet_of(model_of(0.010)), arrivals_of([0.0, 0.0], **columns))
