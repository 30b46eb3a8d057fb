"""What reports make of the fleet: who may be picked for which model, and which models are known."""

import numpy as np
import pytest
from support.fleets import make_router, model, report

from balancer import bounds
from balancer.kernel.python_kernel import Kernel
from balancer.kernel.settings import EstimatorSettings, ModelSettings, Settings
from balancer.kernel.state import FleetState
from balancer.scheduler.errors import NoEligibleWorker, UnknownModel
from balancer.scheduler.events import Finished, ReportsLost, WorkerAdded, WorkerRemoved, WorkersAdded
from balancer.scheduler.fleet import ANY_MODEL
from balancer.scheduler.router import Router
from balancer.scheduler.snapshot import reasons
from policies.base import Request
from policies.expected_latency import ExpectedLatency
from policies.hashing import key_of
from policies.least_requests import LeastRequests
from policies.round_robin import RoundRobin

M = Request("m")


def test_not_ready_and_draining_workers_get_nothing() -> None:
    router = make_router(3)
    router.observe(report("w0", 2, ready=False), 0.1)
    router.observe(WorkerAdded("w1", draining=True), 0.1)
    assert {router.route(M, 0.1).worker for _ in range(5)} == {"w2"}
    assert reasons(router, M, 0.1) == {"w0": ["not ready"], "w1": ["draining"], "w2": []}


def test_stale_workers_are_avoided_while_others_are_fresh_and_used_when_none_is() -> None:
    router = make_router(2)
    router.observe(report("w0", 2), 5.0)
    assert {router.route(M, 5.1).worker for _ in range(4)} == {"w0"}
    assert "last report is 5.1 s old" in reasons(router, M, 5.1)["w1"][0]
    assert {router.route(M, 50.0).worker for _ in range(20)} == {"w0", "w1"}


def test_a_broken_report_stream_makes_a_worker_stale_at_once() -> None:
    router = make_router(2)
    assert {router.route(M, 0.1).worker for _ in range(2)} == {"w0", "w1"}
    router.observe(ReportsLost("w0"), 0.1)
    assert {router.route(M, 0.1).worker for _ in range(4)} == {"w1"}
    assert "its report stream broke" in reasons(router, M, 0.1)["w0"][0]


def test_reports_that_repeat_or_come_late_change_nothing_and_lost_ones_are_counted() -> None:
    router = make_router(1)
    router.observe(report("w0", 5, [model(pending=4)]), 0.1)
    router.observe(report("w0", 4, ready=False), 0.2)
    router.observe(report("w0", 5, ready=False), 0.2)
    assert router.fleet.workers[0].ready
    assert router.fleet.queue.reported_pending[0] == 4
    assert router.fleet.reports == {"accepted": 2, "lost": 3, "late": 2}


def test_requests_of_others_are_taken_to_have_as_many_rows_as_those_that_were_executed() -> None:
    executed = model(pending=2, succeeded=10, max_batch_rows=8, batches=((4, 5, 1.0), (8, 1, 0.3)))
    fleet = make_router(1, models=[executed]).fleet
    column = fleet.models["m"]
    # 28 rows of ten requests, so 5.6 of the two that wait.
    expected_s = fleet.service.fixed_s[0, column] + 5.6 * fleet.service.per_row_s[0, column]
    assert fleet.queue.peer_work_s[0] == pytest.approx(expected_s)


def test_a_new_incarnation_starts_its_counters_anew() -> None:
    router = make_router(1, models=[model(batches=((1, 100, 1.0),))])
    router.observe(report("w0", 1, [model(batches=((1, 3, 0.3),))], incarnation=2), 1.0)
    assert router.fleet.workers[0].batches["m", "1", 1] == (3, 0.3)


def test_what_an_older_incarnation_executed_is_no_part_of_what_the_new_one_did() -> None:
    router = make_router(1, models=[model(batches=((1, 100, 1.0), (4, 100, 1.0)))])
    router.observe(report("w0", 0, [model(batches=((1, 10, 0.1),))], incarnation=2), 1.0)
    assert router.fleet.workers[0].batches == {("m", "1", 1): (10, 0.1)}


def executions_learned(router: Router, batches: tuple[tuple[int, int, float], ...]) -> float:
    """From one more report of the first worker."""
    before = float(router.fleet.service.weight.sum())
    number = router.fleet.workers[0].number + 1
    router.observe(report("w0", number, [model(batches=batches)]), 1.0)
    return float(router.fleet.service.weight.sum()) - before


def test_a_model_is_measured_from_its_fourth_execution_on_and_by_what_is_new() -> None:
    router = make_router(1)
    assert executions_learned(router, ((1, 3, 0.001),)) == 0
    assert executions_learned(router, ((1, 3, 0.001), (2, 1, 0.001))) == pytest.approx(1, rel=0.01)
    assert executions_learned(router, ((1, 3, 0.001), (2, 1, 0.001))) == 0
    assert executions_learned(router, ((1, 5, 0.002), (2, 1, 0.001))) == pytest.approx(2, rel=0.03)


def test_counters_that_fall_are_no_measure_but_a_new_beginning() -> None:
    router = make_router(1)
    assert executions_learned(router, ((1, 10, 0.01),)) > 0
    assert executions_learned(router, ((1, 12, 0.001),)) == 0  # less time for more executions
    assert executions_learned(router, ((1, 8, 0.002),)) == 0
    assert executions_learned(router, ((1, 9, 0.003),)) == pytest.approx(1, rel=0.1)


def test_service_times_fade_once_a_second_and_no_more_than_ten_seconds_worth_after_a_pause() -> None:
    router = make_router(1, settings=Settings(estimators=EstimatorSettings(service_memory_s=30.0)))
    router.tick(0.0)
    router.observe(report("w0", 2, [model(batches=((1, 100, 1.0),))]), 0.0)
    weight = router.fleet.service.weight[0, router.fleet.models["m"]]
    kept = []
    for now_s in (0.9, 1.0, 1.9, 3.0, 1003.0):
        router.tick(now_s)
        kept.append(router.fleet.service.weight[0, router.fleet.models["m"]] / weight)
    assert kept == pytest.approx([1, *np.exp(np.array([-1, -1, -3, -13]) / 30)])


def test_rows_stay_with_their_workers_when_one_leaves() -> None:
    router = make_router(0)
    for i in range(4):
        router.observe(WorkerAdded(f"w{i}", weight=1.0 + i), 0.0)
        router.observe(report(f"w{i}", models=[model(pending=10.0 * i)]), 0.1 * i)
    router.observe(WorkerRemoved("w1"), 1.0)
    fleet = router.fleet
    assert fleet.names == ["w0", "w2", "w3"]
    assert [fleet.index[name] for name in fleet.names] == [0, 1, 2]
    assert fleet.weight.tolist() == [1, 3, 4]
    assert fleet.name_hash.tolist() == [key_of(name) for name in fleet.names]
    assert fleet.reported_s.tolist() == pytest.approx([0.0, 0.2, 0.3])
    assert fleet.queue.reported_pending.tolist() == [0, 20, 30]
    for array in (fleet.decision.weight[0], fleet.decision.name_hash[0], fleet.decision.reported_s):
        assert len(array) == 3


def test_without_reports_every_worker_serves_every_model() -> None:
    router = Router(RoundRobin(), Settings(reports_required=False))
    for i in range(2):
        router.observe(WorkerAdded(f"w{i}"), 0.0)
    assert {router.route(Request(f"model-{k}"), 0.1).worker for k in range(4)} == {"w0", "w1"}
    assert len(router.fleet.models) == 1


def test_pins_hold_for_workers_that_never_reported() -> None:
    settings = Settings(reports_required=False, models={"m": ModelSettings(versions=("1",))})
    router = Router(LeastRequests(), settings)
    router.observe(WorkerAdded("w"), 0.0)
    assert router.route(Request("m", version="1"), 0.1).worker == "w"
    with pytest.raises(NoEligibleWorker):
        router.route(Request("m", version="2"), 0.1)


def test_the_newest_stream_is_the_worker_whatever_numbers_older_ones_carried() -> None:
    router = make_router(1)
    router.observe(report("w0", number=2**60, incarnation=2**60, stream=1, ready=False), 0.1)
    router.observe(report("w0", number=0, incarnation=5, stream=2), 0.2)
    assert router.route(M, 0.3).worker == "w0"
    router.observe(report("w0", number=9, incarnation=2**60 + 1, stream=1, ready=False), 0.4)
    assert router.route(M, 0.5).worker == "w0"
    assert router.fleet.reports == {"accepted": 3, "late": 1}


def test_columns_of_models_go_some_minutes_after_the_last_worker_lost_them() -> None:
    router = make_router(1, settings=Settings(outcome_timeout_s=1e4), models=[model("m"), model("old")])
    column = router.fleet.models["old"]
    old = router.route(Request("old"), 0.1)
    number = 2
    for now_s in range(0, 700, 100):
        router.observe(report("w0", number=number, models=[model("m")]), float(now_s))
        router.tick(float(now_s))
        number += 1
    # A request for it is still in flight, so far.
    assert "old" in router.fleet.models
    router.observe(Finished(old.number, old.worker, 0.1, True), 700.0)
    router.tick(702.0)
    assert "old" not in router.fleet.models
    with pytest.raises(UnknownModel):
        router.route(Request("old"), 702.0)
    router.observe(report("w0", number=number, models=[model("m"), model("new")]), 703.0)
    assert router.fleet.models["new"] == column
    assert router.fleet.service.weight[0, column] == 0


def test_models_of_silent_workers_are_not_forgotten() -> None:
    router = make_router(1)
    router.observe(ReportsLost("w0"), 1.0)
    router.tick(10_000.0)
    assert router.route(M, 10_000.0).worker == "w0"


def test_a_fleet_has_so_many_models_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_FLEET_MODELS", 5)
    router = make_router(1, models=[model(f"m{i}") for i in range(10)])
    assert len(router.fleet.models) == 5
    assert router.fleet.service.weight.shape == (1, 5)
    assert router.fleet.reports["models_left_out"] == 6
    with pytest.raises(UnknownModel):
        router.route(Request("m9"), 0.1)


def test_what_clients_name_is_not_kept() -> None:
    router = make_router(2)
    for i in range(100):
        with pytest.raises(UnknownModel):
            router.route(Request("m", version=f"{i + 2}"), 0.1)
        with pytest.raises(UnknownModel):
            router.route(Request(f"x{i}"), 0.1)
    assert len(router.fleet._servable) + len(router.fleet._eligible) <= 2


@pytest.mark.parametrize("known_before", [False, True])
def test_what_a_worker_executed_before_it_was_watched_makes_it_no_slower(known_before: bool) -> None:
    """Loading and tuning are in such a total: a worker that is listed anew, or whose agent is new, would be avoided."""
    fast = model(batches=((1, 1000, 0.3),))
    router = make_router(3, ExpectedLatency(), models=[fast])
    loaded = model(batches=((1, 8, 0.5),))
    if known_before:
        router.observe(report("w2", 1, [loaded], incarnation=2), 0.1)
    else:
        router.observe(WorkerRemoved("w2"), 0.1)
        router.observe(WorkerAdded("w2"), 0.1)
        router.observe(report("w2", 1, [loaded]), 0.1)
    router.tick(1.0)
    assert {router.route(M, 1.0).worker for _ in range(3)} == {"w0", "w1", "w2"}


class CountedFits(Kernel):
    """Counts how often the estimates of the whole fleet are fitted."""

    fits = 0

    def fade(self, x: FleetState, share: float) -> None:
        self.fits += 1
        super().fade(x, share)


def test_workers_that_come_together_are_fitted_once_and_end_as_those_that_come_one_by_one() -> None:
    profiles = {("slow", ANY_MODEL): (0.2, 0.01)}
    settings = Settings(estimators=EstimatorSettings(profiles=profiles))
    added = [WorkerAdded(f"w{number}", 1.0 + number % 3, ("slow", "fast")[number % 2]) for number in range(12)]
    counted, together = CountedFits(), Router(LeastRequests(), settings)
    together.fleet.kernel = counted
    alone = Router(LeastRequests(), settings)
    together.observe(WorkersAdded(tuple(added)), 0.0)
    assert counted.fits == 1
    for event in added:
        alone.observe(event, 0.0)
    assert together.fleet.names == alone.fleet.names
    for name, array in together.fleet.block.arrays.items():
        np.testing.assert_array_equal(array, alone.fleet.block.arrays[name], err_msg=name)


def test_a_device_that_a_report_names_is_fitted_where_something_was_measured_of_it() -> None:
    settings = Settings(estimators=EstimatorSettings(profiles={("T4", "m"): (0.2, 0.01)}))
    router = make_router(3, settings=settings)
    router.fleet.kernel = counted = CountedFits()
    router.observe(report("w0", 2, device="A100"), 0.1)
    assert counted.fits == 0
    router.observe(report("w1", 2, device="T4"), 0.1)
    assert counted.fits == 1
    column = router.fleet.models["m"]
    assert router.fleet.service.prior_fixed_s[1, column] == 0.2
