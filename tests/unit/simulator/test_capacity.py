"""Capacity: against values worked out by hand."""

import dataclasses

import pytest

from simulator.capacity import capacity_per_s
from simulator.spec import BatchingSpec, DeviceSpec, FleetSpec, ModelSpec, ServiceTime, SimulatedWorker
from simulator.workload.draws import Shares
from simulator.workload.workload import ModelTraffic, Workload

# In the best batch, of 8, a row takes 2.5 ms at speed 1; the line goes on as it ends.
TABLE = ServiceTime((1, 4), (0.010, 0.014))
A = ModelSpec("a", {"*": TABLE}, batching=BatchingSpec(max_batch_rows=8))
B = ModelSpec("b", {"*": ServiceTime((1,), (0.004,))})


def fleet(*workers: SimulatedWorker, models: tuple[ModelSpec, ...] = (A, B)) -> FleetSpec:
    return FleetSpec(models, workers)


def asking(**shares: float) -> Workload:
    return Workload(1, tuple(ModelTraffic(name, share) for name, share in shares.items()))


def per_row_s() -> float:
    return (0.014 + 4 * (0.004 / 3)) / 8


def test_one_worker_in_its_best_batches() -> None:
    assert capacity_per_s(fleet(SimulatedWorker("w")), asking(a=1)) == pytest.approx(1 / per_row_s())


def test_speeds_add_up() -> None:
    three = fleet(SimulatedWorker("x"), SimulatedWorker("y"), SimulatedWorker("z", speed=4))
    assert capacity_per_s(three, asking(a=1)) == pytest.approx(6 / per_row_s())


def test_rows_cost_what_they_are() -> None:
    workload = Workload(1, (ModelTraffic("a", rows=Shares({1: 1, 3: 1})),))
    assert capacity_per_s(fleet(SimulatedWorker("w")), workload) == pytest.approx(0.5 / per_row_s())


def test_models_share_a_device_by_their_time() -> None:
    expected = 1 / (0.25 * per_row_s() + 0.75 * 0.004)
    assert capacity_per_s(fleet(SimulatedWorker("w")), asking(a=1, b=3)) == pytest.approx(expected)


def test_a_model_is_limited_by_the_workers_that_have_it() -> None:
    # Of b, 250 a second fit on its only worker, which then has no time for a; the other has: 500 in all.
    loaded = fleet(SimulatedWorker("x", models=("a",)), SimulatedWorker("y", models=("a", "b")))
    assert capacity_per_s(loaded, asking(a=1, b=1)) == pytest.approx(500)


def test_work_goes_where_the_device_is_relatively_best() -> None:
    # Each model is quick on one device: split so, each worker serves 100 a second; mixed, less.
    a = ModelSpec("a", {"X": ServiceTime((1,), (0.01,)), "Y": ServiceTime((1,), (0.04,))})
    b = ModelSpec("b", {"X": ServiceTime((1,), (0.04,)), "Y": ServiceTime((1,), (0.01,))})
    two = fleet(SimulatedWorker("x", "X"), SimulatedWorker("y", "Y"), models=(a, b))
    assert capacity_per_s(two, asking(a=1, b=1)) == pytest.approx(200)


def test_the_host_phase_limits_what_instances_yield() -> None:
    slow_host = ModelSpec("a", {"*": ServiceTime((1,), (0.010,), (0.015,))})
    worker = SimulatedWorker("w")
    assert capacity_per_s(fleet(worker, models=(slow_host,)), asking(a=1)) == pytest.approx(1 / 0.025)
    three = dataclasses.replace(slow_host, instances=3)
    assert capacity_per_s(fleet(worker, models=(three,)), asking(a=1)) == pytest.approx(1 / 0.010)


def test_sharing_gains_where_executions_do_not_hinder_each_other() -> None:
    for interference, gain in ((1.0, 1.0), (0.0, 2.0), (0.5, 4 / 3)):
        worker = SimulatedWorker("w", sharing=DeviceSpec(concurrency=5, interference=interference))
        free = dataclasses.replace(B, instances=2)
        assert capacity_per_s(fleet(worker, models=(free,)), asking(b=1)) == pytest.approx(gain * 250)


def test_absent_workers_do_not_count() -> None:
    two = fleet(SimulatedWorker("x"), SimulatedWorker("y", present=False))
    assert capacity_per_s(two, asking(b=1)) == pytest.approx(250)


def test_256_workers_are_as_quick_as_their_kinds() -> None:
    many = fleet(*(SimulatedWorker(f"w{i}", speed=1 + i % 4) for i in range(256)))
    assert capacity_per_s(many, Workload(1, (ModelTraffic("b"),))) == pytest.approx(640 * 250)


@pytest.mark.parametrize(
    ("workers", "named"),
    [
        ([SimulatedWorker("w", models=("b",))], "model 'a' gets requests, but no present worker has it: load it"),
        ([SimulatedWorker("w", present=False)], "model 'a' gets requests, but no present worker has it"),
    ],
)
def test_a_model_that_nobody_has_is_named(workers: list[SimulatedWorker], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        capacity_per_s(fleet(*workers), asking(a=1, b=1))


def test_a_device_that_was_not_measured_is_named() -> None:
    only_x = ModelSpec("a", {"X": TABLE})
    with pytest.raises(ValueError, match="model 'a' has no service time on 'Y': add it"):
        capacity_per_s(fleet(SimulatedWorker("w", "Y"), models=(only_x,)), asking(a=1))
