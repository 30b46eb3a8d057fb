"""The reference does what the engine's page says, in examples that can be worked out by hand."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import pytest
from simulation.builders import arrivals_of, fleet_of, model_of
from simulation.equality import assert_told, example

from balancer.kernel.settings import Settings
from dev.reference import Simulation
from dev.reference.clock import Stream, draw
from policies.base import FleetView, FloatArray, Policy, Request
from policies.least_requests import LeastRequests
from simulator.arrivals import Arrivals
from simulator.result import Result, Status
from simulator.spec import (
    Autoscale,
    CacheSpec,
    ColdStart,
    DeviceSpec,
    Fault,
    FleetSpec,
    NetworkSpec,
    Noise,
    Reports,
    SimulatedWorker,
)


@dataclasses.dataclass(frozen=True)
class First(Policy):
    """The first eligible worker; remembers what it saw reported."""

    name: ClassVar[str] = "first"
    summary: ClassVar[str] = "The first eligible worker."
    source: ClassVar[str] = "tests"
    seen: list[FloatArray] = dataclasses.field(default_factory=list)

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        self.seen.append(fleet.reported_pending.copy())
        chosen: FloatArray = np.zeros(len(fleet.eligible))
        chosen[fleet.eligible.argmax()] = 1.0
        return chosen


def run(fleet: FleetSpec, arrivals: Arrivals, seed: int = 1) -> Result:
    return Simulation(fleet, arrivals, First(), seed).run()


def batching(*device_s: float, **fields: Any) -> FleetSpec:
    """A worker that takes up to four rows, in 10 ms unless told otherwise."""
    return fleet_of(model_of(*(device_s or (0.010,)), **({"max_batch_rows": 4, "queue_delay_s": 0.005} | fields)))


def sharing(expected_ms: list[float], **fields: Any) -> Any:
    fleet = fleet_of(model_of(0.010, instances=2), workers=[SimulatedWorker("w0", sharing=DeviceSpec(**fields))])
    return example(f"two instances, {fields}", fleet, arrivals_of([0.0, 0.005]), ms=expected_ms)


def faulty(kind: Any, expected_ms: float) -> Any:
    fleet = fleet_of(model_of(0.010), faults=(Fault(kind, "w0", 0.005, 0.004, 2.0),))
    return example(f"{kind} while it executes", fleet, arrivals_of([0.0]), ms=[expected_ms])


OK, ERROR, UNAVAILABLE = Status.OK, Status.ERROR, Status.UNAVAILABLE
FULL = fleet_of(model_of(0.010, max_queue_requests=1), workers=2)
BATCHER = [
    example("an incomplete batch waits for the oldest's delay", batching(), arrivals_of([0.0, 0.002]), ms=[15, 13]),
    example("a full batch starts at once", batching(), arrivals_of([0.0] * 4), ms=[10] * 4),
    example(
        "a preferred size starts at once",
        batching(preferred_rows=(2,)),
        arrivals_of([0.0, 0.001, 0.002]),
        ms=[11, 10, 19],
    ),
    example(
        "the longest preferred prefix starts, the rest waits for its delay",
        batching(queue_delay_s=0.1, preferred_rows=(1, 2)),
        arrivals_of([0.0, 0.008, 0.009, 0.0095]),
        ms=[10, 12, 11, 20.5],
    ),
    example(
        "while it is busy as well",
        batching(queue_delay_s=0.1, preferred_rows=(2,)),
        arrivals_of([0.0, 0.0, 0.008, 0.009, 0.0095]),
        ms=[10, 10, 12, 11, 110],
    ),
    example("one that cannot take the next starts", batching(), arrivals_of([0.0, 0.001], rows=[3, 2]), ms=[11, 20]),
    example("one beyond the preferred starts", batching(preferred_rows=(2,)), arrivals_of([0.0], rows=3), ms=[10]),
    example(
        "higher levels go first, zero is the default level",
        fleet_of(model_of(0.010, priority_levels=3, default_priority=2)),
        arrivals_of([0.0, 0.001, 0.002, 0.003], priority=[1, 9, 0, 1]),
        ms=[10, 39, 28, 17],
    ),
    example(
        "a full queue sends the request to the fallback",
        FULL,
        arrivals_of([0.0] * 5),
        picked=[0] * 5,
        worker=[0, 0, 1, 1, -1],
        attempts=[1, 1, 2, 2, 2],
        status=[OK] * 4 + [UNAVAILABLE],
    ),
    example(
        "without retries it is unavailable",
        dataclasses.replace(FULL, retries=0),
        arrivals_of([0.0] * 3),
        status=[OK, OK, UNAVAILABLE],
    ),
    example(
        "a timeout rejects when the next batch is formed",
        fleet_of(model_of(0.010, timeout_s=0.005)),
        arrivals_of([0.0, 0.001, 0.008]),
        status=[OK, UNAVAILABLE, OK],
        ms=[10, 9, 12],
    ),
    example(
        "a timeout that delays puts the request behind all others",
        fleet_of(model_of(0.010, timeout_s=0.005, timeout_action="delay", priority_levels=2)),
        arrivals_of([0.0, 0.001, 0.008], priority=[1, 1, 2]),
        ms=[10, 29, 12],
    ),
]
DEVICE = [
    sharing([10, 15]),
    sharing([15, 15], concurrency=2, interference=1.0),
    sharing([12.5, 12.5], concurrency=2, interference=0.5),
    sharing([10, 10], concurrency=2, interference=0.0),
    faulty("slow", 12),
    faulty("stall", 14),
    example(
        "host phases overlap with the device",
        fleet_of(model_of(0.010, host_s=(0.004,), instances=2)),
        arrivals_of([0.0, 0.0]),
        ms=[14, 24],
    ),
    example(
        # The first executes alone (5 ms), then the other two together, of mean work 1.75.
        "scaled by speed and the mean work of the rows",
        fleet_of(model_of(0.010, max_batch_rows=4), workers=[SimulatedWorker("w0", speed=2.0)]),
        arrivals_of([0.0, 0.0, 0.0], rows=[1, 3, 1], work=[1, 2, 1]),
        ms=[5, 13.75, 13.75],
    ),
    example(
        "noise is drawn by execution",
        fleet_of(model_of(0.010, noise=Noise("exponential"))),
        arrivals_of([0.0, 1.0]),
        ms=[10 * -math.log1p(-draw(1, Stream.NOISE_1, k)) for k in range(2)],
    ),
    example(
        "a cached key saves its share until another takes its place",
        fleet_of(model_of(0.010), cache=CacheSpec(1, 0.5)),
        arrivals_of([0.0, 0.1, 0.2, 0.3, 0.4], key=[5, 5, 6, 5, 0]),
        ms=[10, 5, 10, 10, 10],
    ),
    example(
        "delays on the way count for the client",
        fleet_of(model_of(0.010), network=NetworkSpec(to_worker_s=0.001, to_client_s=0.002)),
        arrivals_of([0.0]),
        ms=[13],
    ),
]
JOINS = fleet_of(
    model_of(0.001),
    workers=[SimulatedWorker("w0", present=False), SimulatedWorker("w1")],
    faults=(Fault("join", "w0", 0.1, 0.1), Fault("leave", "w1", 0.3)),
)
WORKERS = [
    example(
        "clients of a closed loop send when they have their answers",
        fleet_of(model_of(0.010), network=NetworkSpec(to_client_s=0.001)),
        arrivals_of([0.0] * 5, clients=2),
        arrival_s=[0, 0, 0.011, 0.021, 0.031],
    ),
    example(
        "a crash loses what is there, and the worker comes back cold",
        fleet_of(model_of(0.010), faults=(Fault("crash", "w0", 0.005, 0.010),), cold=ColdStart(1, 3.0)),
        arrivals_of([0.0, 0.001, 0.007, 0.02, 0.1]),
        status=[ERROR, ERROR, UNAVAILABLE, OK, OK],
        ms=[5, 4, 0, 30, 10],
    ),
    # The router's rows are in order of arrival, so the newcomer is its second.
    example("a worker joins when it has loaded", JOINS, arrivals_of([0.15, 0.25, 0.31]), picked=[1, 1, 0]),
    example(
        "a worker leaves at once",
        fleet_of(model_of(0.001), workers=2, faults=(Fault("leave", "w0", 0.1),)),
        arrivals_of([0.09, 0.11, 2.0]),
        picked=[0, 1, 1],
    ),
    example(
        # Reports that were on their way when it began do not arrive either.
        "a silent worker is avoided until it reports again",
        fleet_of(
            model_of(0.001), workers=2, faults=(Fault("silent", "w0", 0.1, 0.1),), reports=Reports(0.05, delay_s=0.049)
        ),
        arrivals_of([0.09, 0.11, 0.12, 0.13, 0.14, 0.15, 0.248, 0.25]),
        picked=[0, 1, 1, 1, 1, 1, 1, 0],
    ),
    example(
        "nobody eligible ends at once",
        fleet_of(model_of(0.001), faults=(Fault("leave", "w0", 0.0),)),
        arrivals_of([0.1]),
        status=[Status.NO_WORKER],
        ms=[0],
        attempts=[0],
        picked=[-1],
    ),
    example(
        "a stall for good leaves requests unfinished",
        fleet_of(model_of(0.010), faults=(Fault("stall", "w0", 0.005),)),
        arrivals_of([0.0, 0.001]),
        status=[Status.UNFINISHED] * 2,
        ms=[math.nan] * 2,
    ),
]


@pytest.mark.parametrize(("fleet", "arrivals", "expected"), [*BATCHER, *DEVICE, *WORKERS])
def test_examples(fleet: FleetSpec, arrivals: Arrivals, expected: dict[str, Any]) -> None:
    assert_told(run(fleet, arrivals), expected)


def test_a_balancer_hears_of_others_requests_with_the_next_report_and_its_delay() -> None:
    fleet = fleet_of(
        model_of(0.010), balancers=2, reports=Reports(0.05, delay_s=0.03), faults=(Fault("stall", "w0", 0.0, 0.2),)
    )
    times_s = [k / 1000 for k in range(1, 100)]
    policy = First()
    Simulation(fleet, arrivals_of([0.0, 0.0, *times_s], balancer=[1, 1] + [0] * 99), policy, 1).run()
    sampled_s = draw(1, Stream.PHASE, 0) * 0.05

    # Two of the other balancer and the own ones so far; the first of all executes. The answers of the balancers take
    # longer than a report waits for them.
    heard_s = sampled_s + 0.005 + 0.03
    expected = [0 if t < heard_s else 1 + math.floor(sampled_s * 1000) for t in times_s if t < heard_s + 0.05]
    assert [int(seen[0]) for seen in policy.seen[2:]][: len(expected)] == expected


def test_several_balancers_are_asked_before_a_report_goes() -> None:
    fleet = fleet_of(model_of(0.010), balancers=2, reports=Reports(0.05, delay_s=0.002))
    assert fleet.report_delay_s == pytest.approx(3 * 0.002)
    assert dataclasses.replace(fleet, balancers=1).report_delay_s == 0.002
    assert dataclasses.replace(fleet, reports=Reports(0.05, delay_s=1.0)).report_delay_s == pytest.approx(1.005)


def test_lost_reports_do_not_arrive_and_late_ones_are_ignored() -> None:
    arrivals = arrivals_of(np.arange(0, 3, 0.01).tolist())
    lost = Simulation(fleet_of(model_of(0.001), reports=Reports(loss=1.0)), arrivals, First(), 1)
    late = Simulation(fleet_of(model_of(0.001), reports=Reports(jitter_s=0.1)), arrivals, First(), 1)
    for simulation in (lost, late):
        assert not simulation.run().status.any()
    lost_reports, late_reports = (s.world.routers[0].fleet.reports for s in (lost, late))

    assert lost_reports == {"accepted": 1}
    assert late_reports["late"] > 5
    assert late_reports["accepted"] > 20


def test_a_share_of_requests_is_answered_with_an_error() -> None:
    fleet = fleet_of(model_of(0.001), faults=(Fault("errors", "w0", 0.0, amount=0.5),))
    result = run(fleet, arrivals_of(np.arange(0, 4, 0.01).tolist()))
    failed = result.status[0] == Status.ERROR

    assert 0.4 < failed.mean() < 0.6
    assert np.all(result.worker[0] == 0)
    assert np.all(result.latency_s[0][failed] == 0.0)


def test_the_autoscaler_adds_a_worker_under_load_and_drains_it_after() -> None:
    fleet = fleet_of(
        model_of(0.010),
        workers=[SimulatedWorker("w0"), SimulatedWorker("w1", present=False)],
        autoscale=Autoscale(0.05, up_pending=3.0, down_pending=0.5, load_s=0.1),
    )
    simulation = Simulation(fleet, arrivals_of([*[0.0] * 50, 0.149, 0.151, 1.0]), LeastRequests(), 1)
    result = simulation.run()
    w1 = simulation.world.workers[1]

    assert result.worker[0, 50:].tolist() == [0, 1, 0]
    assert (w1.state, w1.draining) == ("up", True)


def test_no_requests_make_an_empty_result() -> None:
    result = run(fleet_of(model_of(0.010)), arrivals_of([]))

    assert result.latency_s.shape == (1, 0)
    assert result.end_s.tolist() == [0.0]


def test_sums_and_timeline() -> None:
    fleet = fleet_of(model_of(0.010, 0.020, max_batch_rows=2), workers=2, settings=Settings(sticky_keys=False))
    result = Simulation(fleet, arrivals_of([0.0, 0.0, 0.0]), First(), 1, timeline_period_s=0.012).run()

    assert result.executions.tolist() == [[2, 0]]
    assert result.busy_s[0] == pytest.approx([0.030, 0.0])
    assert result.end_s[0] == pytest.approx(0.030)
    assert result.pending_integral_s[0] == pytest.approx(0.010 + 2 * 0.030)
    assert result.timeline_s == pytest.approx([0.012, 0.024])
    assert result.timeline_pending.tolist() == [[[2, 0], [2, 0]]]


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    fleet = fleet_of(model_of(0.010, noise=Noise("lognormal", 0.3)))
    arrivals = arrivals_of(np.arange(0, 1, 0.01).tolist())
    first, again, other = (run(fleet, arrivals, seed).latency_s for seed in (1, 1, 2))

    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
