"""The reference does what the engine's page says, in examples that can be worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from simulation.builders import arrivals_of, fleet_of, model_of
from simulation.reference import Simulation
from simulation.reference.clock import Stream, draw

from balancer.core.settings import Settings
from policies.base import FleetView, FloatArray, Policy, Request
from policies.least_requests import LeastRequests
from simulator.arrivals import Arrivals
from simulator.result import Result, Status
from simulator.spec import (
    Autoscale,
    Cache,
    Cold,
    Device,
    Fault,
    FleetSpec,
    Network,
    Noise,
    Reports,
    WorkerSpec,
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


def latencies_ms(fleet: FleetSpec, arrivals: Arrivals) -> Any:
    return pytest.approx((run(fleet, arrivals).latency_s[0] * 1e3).tolist(), abs=1e-6)


def statuses(result: Result) -> list[Status]:
    return [Status(status) for status in result.status[0]]


# Batcher.


def test_an_incomplete_batch_waits_for_the_oldest_requests_delay() -> None:
    fleet = fleet_of(model_of(0.010, max_batch_rows=4, queue_delay_s=0.005))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.002])) == [15, 13]


def test_a_full_batch_starts_at_once() -> None:
    fleet = fleet_of(model_of(0.010, max_batch_rows=4, queue_delay_s=0.005))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.0, 0.0, 0.0])) == [10, 10, 10, 10]


def test_a_preferred_size_starts_at_once() -> None:
    fleet = fleet_of(model_of(0.010, max_batch_rows=4, queue_delay_s=0.005, preferred_rows=(2,)))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.001, 0.002])) == [11, 10, 19]


def test_the_longest_preferred_prefix_starts_and_the_rest_waits_for_its_delay() -> None:
    fleet = fleet_of(model_of(0.010, max_batch_rows=4, queue_delay_s=0.1, preferred_rows=(1, 2), instances=1))
    busy = fleet_of(model_of(0.010, max_batch_rows=4, queue_delay_s=0.1, preferred_rows=(2,)))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.008, 0.009, 0.0095])) == [10, 12, 11, 20.5]
    assert latencies_ms(busy, arrivals_of([0.0, 0.0, 0.008, 0.009, 0.0095])) == [10, 10, 12, 11, 110]


def test_a_batch_that_cannot_take_the_next_request_starts() -> None:
    fleet = fleet_of(model_of(0.010, max_batch_rows=4, queue_delay_s=0.005))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.001], rows=[3, 2])) == [11, 20]


def test_a_batch_beyond_the_largest_preferred_size_starts() -> None:
    fleet = fleet_of(model_of(0.010, max_batch_rows=8, queue_delay_s=0.005, preferred_rows=(2,)))

    assert latencies_ms(fleet, arrivals_of([0.0], rows=3)) == [10]


def test_higher_levels_go_first_and_zero_is_the_default_level() -> None:
    fleet = fleet_of(model_of(0.010, priority_levels=3, default_priority=2))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.001, 0.002, 0.003], priority=[1, 9, 0, 1])) == [10, 39, 28, 17]


def test_a_full_queue_sends_the_request_to_the_fallback() -> None:
    fleet = fleet_of(model_of(0.010, max_queue_requests=1), workers=2)
    result = run(fleet, arrivals_of([0.0] * 5))

    assert result.picked[0].tolist() == [0] * 5
    assert result.worker[0].tolist() == [0, 0, 1, 1, -1]
    assert result.attempts[0].tolist() == [1, 1, 2, 2, 2]
    assert statuses(result) == [Status.OK] * 4 + [Status.UNAVAILABLE]


def test_without_retries_a_full_queue_is_unavailable() -> None:
    fleet = fleet_of(model_of(0.010, max_queue_requests=1), workers=2, retries=0)

    assert statuses(run(fleet, arrivals_of([0.0] * 3)))[2] == Status.UNAVAILABLE


def test_a_timeout_rejects_when_the_next_batch_is_formed() -> None:
    fleet = fleet_of(model_of(0.010, timeout_s=0.005))
    arrivals = arrivals_of([0.0, 0.001, 0.008])

    assert statuses(run(fleet, arrivals)) == [Status.OK, Status.UNAVAILABLE, Status.OK]
    assert latencies_ms(fleet, arrivals) == [10, 9, 12]


def test_a_timeout_that_delays_puts_the_request_behind_all_others() -> None:
    fleet = fleet_of(model_of(0.010, timeout_s=0.005, timeout_action="delay", priority_levels=2))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.001, 0.008], priority=[1, 1, 2])) == [10, 29, 12]


# Device.


@pytest.mark.parametrize(
    ("sharing", "expected_ms"),
    [
        (Device(), [10, 15]),
        (Device(2, 1.0), [15, 15]),
        (Device(2, 0.5), [12.5, 12.5]),
        (Device(2, 0.0), [10, 10]),
    ],
)
def test_instances_share_the_device(sharing: Device, expected_ms: list[float]) -> None:
    fleet = fleet_of(model_of(0.010, instances=2), workers=[WorkerSpec("w0", sharing=sharing)])

    assert latencies_ms(fleet, arrivals_of([0.0, 0.005])) == expected_ms


def test_host_phases_overlap_with_the_device() -> None:
    fleet = fleet_of(model_of(0.010, host_s=(0.004,), instances=2))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.0])) == [14, 24]


@pytest.mark.parametrize(("kind", "expected_ms"), [("slow", 12), ("stall", 14)])
def test_a_fault_changes_the_pace_of_what_executes(kind: Any, expected_ms: float) -> None:
    fleet = fleet_of(model_of(0.010), faults=(Fault(kind, "w0", 0.005, 0.004, 2.0),))

    assert latencies_ms(fleet, arrivals_of([0.0])) == [expected_ms]


def test_device_seconds_are_scaled_by_speed_and_the_mean_work_of_the_rows() -> None:
    fleet = fleet_of(model_of(0.010, max_batch_rows=4), workers=[WorkerSpec("w0", speed=2.0)])

    # The first executes alone (5 ms), then the other two together, of mean work 1.75.
    assert latencies_ms(fleet, arrivals_of([0.0, 0.0, 0.0], rows=[1, 3, 1], work=[1, 2, 1])) == [5, 13.75, 13.75]


def test_noise_is_drawn_by_execution() -> None:
    fleet = fleet_of(model_of(0.010, noise=Noise("exponential")))
    factors = [-math.log1p(-draw(1, Stream.NOISE_1, k)) for k in range(2)]

    assert latencies_ms(fleet, arrivals_of([0.0, 1.0])) == [10 * factor for factor in factors]


def test_a_cached_key_saves_its_share_until_another_takes_its_place() -> None:
    fleet = fleet_of(model_of(0.010), cache=Cache(1, 0.5))

    assert latencies_ms(fleet, arrivals_of([0.0, 0.1, 0.2, 0.3, 0.4], key=[5, 5, 6, 5, 0])) == [10, 5, 10, 10, 10]


# Network, reports, clients.


def test_delays_on_the_way_count_for_the_client() -> None:
    fleet = fleet_of(model_of(0.010), network=Network(to_worker_s=0.001, to_client_s=0.002))

    assert latencies_ms(fleet, arrivals_of([0.0])) == [13]


def test_a_balancer_hears_of_others_requests_with_the_next_report_and_its_delay() -> None:
    fleet = fleet_of(
        model_of(0.010),
        balancers=2,
        reports=Reports(0.05, delay_s=0.03),
        faults=(Fault("stall", "w0", 0.0, 0.2),),
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
        assert statuses(simulation.run()) == [Status.OK] * 300
    lost_reports, late_reports = (s.world.routers[0].fleet.reports for s in (lost, late))

    assert lost_reports == {"accepted": 1}
    assert late_reports["late"] > 5
    assert late_reports["accepted"] > 20


def test_clients_of_a_closed_loop_send_when_they_have_their_answers() -> None:
    fleet = fleet_of(model_of(0.010), network=Network(to_client_s=0.001))
    result = run(fleet, arrivals_of([0.0] * 5, clients=2))

    assert result.arrival_s[0] == pytest.approx([0, 0, 0.011, 0.021, 0.031])


# Workers that come, go and fail.


def test_a_crash_loses_what_is_there_and_the_worker_comes_back_cold() -> None:
    fleet = fleet_of(model_of(0.010), faults=(Fault("crash", "w0", 0.005, 0.010),), cold=Cold(1, 3.0))
    arrivals = arrivals_of([0.0, 0.001, 0.007, 0.02, 0.1])

    assert statuses(run(fleet, arrivals)) == [Status.ERROR, Status.ERROR, Status.UNAVAILABLE, Status.OK, Status.OK]
    assert latencies_ms(fleet, arrivals) == [5, 4, 0, 30, 10]


def test_a_share_of_requests_is_answered_with_an_error() -> None:
    fleet = fleet_of(model_of(0.001), faults=(Fault("errors", "w0", 0.0, amount=0.5),))
    result = run(fleet, arrivals_of(np.arange(0, 4, 0.01).tolist()))
    failed = result.status[0] == Status.ERROR

    assert 0.4 < failed.mean() < 0.6
    assert np.all(result.worker[0] == 0)
    assert np.all(result.latency_s[0][failed] == 0.0)


def picks(fleet: FleetSpec, times_s: Sequence[float]) -> list[int]:
    return [int(worker) for worker in run(fleet, arrivals_of(times_s)).picked[0]]


def test_a_worker_joins_when_it_has_loaded_and_leaves_at_once() -> None:
    absent_first = [WorkerSpec("w0", present=False), WorkerSpec("w1")]
    joined = fleet_of(model_of(0.001), workers=absent_first, faults=(Fault("join", "w0", 0.1, 0.1),))
    left = fleet_of(model_of(0.001), workers=2, faults=(Fault("leave", "w0", 0.1),))

    # The router's rows are in order of arrival, so the newcomer is its second.
    assert picks(left, [0.09, 0.11, 2.0]) == [0, 1, 1]
    gone = dataclasses.replace(joined, faults=(*joined.faults, Fault("leave", "w1", 0.3)))
    assert picks(gone, [0.15, 0.25, 0.31]) == [1, 1, 0]


def test_a_silent_worker_is_avoided_until_it_reports_again() -> None:
    silent = Fault("silent", "w0", 0.1, 0.1)
    fleet = fleet_of(model_of(0.001), workers=2, faults=(silent,), reports=Reports(0.05, delay_s=0.049))

    # Reports that were on their way when it began do not arrive either.
    assert picks(fleet, [0.09, 0.11, 0.12, 0.13, 0.14, 0.15, 0.248, 0.25]) == [0, 1, 1, 1, 1, 1, 1, 0]


def test_nobody_eligible_ends_at_once() -> None:
    fleet = fleet_of(model_of(0.001), faults=(Fault("leave", "w0", 0.0),))
    result = run(fleet, arrivals_of([0.1]))

    assert statuses(result) == [Status.NO_WORKER]
    assert (result.latency_s[0, 0], result.attempts[0, 0], result.picked[0, 0]) == (0.0, 0, -1)


def test_the_autoscaler_adds_a_worker_under_load_and_drains_it_after() -> None:
    fleet = fleet_of(
        model_of(0.010),
        workers=[WorkerSpec("w0"), WorkerSpec("w1", present=False)],
        autoscale=Autoscale(0.05, up_pending=3.0, down_pending=0.5, load_s=0.1),
    )
    simulation = Simulation(fleet, arrivals_of([*[0.0] * 50, 0.149, 0.151, 1.0]), LeastRequests(), 1)
    result = simulation.run()
    w1 = simulation.world.workers[1]

    assert result.worker[0, 50:].tolist() == [0, 1, 0]
    assert (w1.state, w1.draining) == ("up", True)


# The run as a whole.


def test_a_stall_for_good_leaves_requests_unfinished() -> None:
    fleet = fleet_of(model_of(0.010), faults=(Fault("stall", "w0", 0.005),))
    result = run(fleet, arrivals_of([0.0, 0.001]))

    assert statuses(result) == [Status.UNFINISHED] * 2
    assert np.isnan(result.latency_s).all()


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
