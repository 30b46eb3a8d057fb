"""What picks, outcomes, reports and time make of the fleet's state: tokens, work and latencies, up to date at once."""

import numpy as np
import pytest
from support.fleets import make_router, model, report

from balancer.kernel.settings import EstimatorSettings, Settings, TokenSettings
from balancer.kernel.view import LiveView
from balancer.scheduler.events import Finished, Withdrawn, WorkerRemoved
from balancer.scheduler.router import Router
from policies.base import Request

M = Request("m")
BUCKETS = Settings(estimators=EstimatorSettings(tokens=TokenSettings(capacity=10, refill_per_s=100, target_pending=4)))


def tokens(router: Router, now_s: float) -> float:
    view = LiveView(router.fleet, np.ones(len(router.fleet.workers), bool), 0, Request(""), now_s)
    return float(view.tokens[0])


def test_a_bucket_is_refilled_by_what_is_pending_after_each_pick_outcome_and_report() -> None:
    router = make_router(1, settings=BUCKETS)
    decisions = [router.route(M, 1.0) for _ in range(3)]
    assert tokens(router, 1.0) == 7  # each pick took one
    assert tokens(router, 1.04) == pytest.approx(8)  # 25 a second with three pending
    router.observe(Finished(decisions[0].number, "w0", 0.01, True), 1.04)
    assert tokens(router, 1.06) == pytest.approx(9)  # 50 a second with two
    router.observe(Withdrawn(decisions[1].number), 1.04)
    assert tokens(router, 1.05) == pytest.approx(8.75)  # 75 a second with one
    # Four pending at a worker that others use as well: one is ours, and nothing is refilled.
    router.observe(report("w0", 2, [model(pending=4)], balancers=2), 1.04)
    assert tokens(router, 9.0) == pytest.approx(8)


def executed(number: int, seconds: float, **fields: object) -> dict[str, object]:
    """A model that has executed so many batches of one row, of so many seconds each."""
    return {"batches": ((1, number, number * seconds),), "succeeded": number, **fields}


def work_of_one(router: Router) -> float:
    """Seconds that a batch of one row takes, as far as is known."""
    service, m = router.fleet.service, router.fleet.models["m"]
    return float(service.fixed_s[0, m] + service.per_row_s[0, m])


def test_a_report_that_teaches_service_times_counts_the_own_work_anew() -> None:
    router = make_router(1, models=[model(**executed(10, 0.010))])
    for _ in range(3):
        router.route(M, 0.1)
    before_s = float(router.fleet.queue.known_work_s[0])
    router.observe(report("w0", 2, [model(**executed(500, 0.080))]), 0.2)
    assert router.fleet.queue.known_work_s[0] == pytest.approx(3 * work_of_one(router))
    assert router.fleet.queue.executing_s[0] == pytest.approx(work_of_one(router))
    assert router.fleet.queue.known_work_s[0] > 3 * before_s


def test_service_times_that_fade_count_the_own_work_anew() -> None:
    settings = Settings(estimators=EstimatorSettings(service_memory_s=1.0))
    router = make_router(1, settings=settings)
    router.tick(0.0)
    router.observe(report("w0", 2, [model(**executed(500, 0.080))]), 0.1)
    for _ in range(3):
        router.route(M, 0.1)
    before_s = float(router.fleet.queue.known_work_s[0])
    for now_s in range(2, 30, 2):
        router.tick(float(now_s))
    assert router.fleet.queue.known_work_s[0] == pytest.approx(3 * work_of_one(router))
    assert router.fleet.queue.known_work_s[0] < before_s / 3


def test_a_report_has_batch_sizes_and_instances() -> None:
    router = make_router(1, models=[model(max_batch_rows=4, instances=2)])
    for _ in range(2 + 4):
        router.route(M, 0.1)
    # Two execute side by side, the other four share a batch, and all have the device one after the other.
    service, m = router.fleet.service, router.fleet.models["m"]
    fixed_s, per_row_s = service.fixed_s[0, m], service.per_row_s[0, m]
    assert router.fleet.queue.executing_s[0] == pytest.approx(2 * fixed_s + 2 * per_row_s)
    assert router.fleet.queue.known_work_s[0] == pytest.approx(3 * fixed_s + 6 * per_row_s)
    # With other balancers the seconds are those that Triton counts, in which each instance waits for the other.
    router.observe(report("w0", 2, [model(max_batch_rows=4, instances=2)], balancers=2), 0.2)
    assert router.fleet.queue.known_work_s[0] == pytest.approx((3 * fixed_s + 6 * per_row_s) / 2)


def shared_device(balancers: int) -> Router:
    """Batches of two models have the device in turn, 5 and 20 ms, and each waits while the other has it."""
    router = make_router(1, models=[model("m"), model("n")])
    open_now = {name: router.route(Request(name), 0.0).number for name in ("m", "n")}
    now_s, reported = 0.0, 1
    for turn in range(1, 401):
        for name, takes_s in (("m", 0.005), ("n", 0.020)):
            now_s += takes_s
            router.observe(Finished(open_now[name], "w0", 0.025, True), now_s)
            open_now[name] = router.route(Request(name), now_s).number
        if turn % 2 == 0:
            reported += 1
            models = [model(name, batches=((1, turn, turn * 0.025),), succeeded=turn) for name in ("m", "n")]
            router.observe(report("w0", reported, models, balancers=balancers), now_s)
    return router


def test_waiting_for_a_device_that_another_model_has_is_no_service() -> None:
    service, models = (fleet := shared_device(balancers=1).fleet).service, fleet.models
    for name, takes_s in (("m", 0.005), ("n", 0.020)):
        m = models[name]
        assert service.fixed_s[0, m] + service.per_row_s[0, m] == pytest.approx(takes_s, rel=0.05)


def test_with_several_balancers_service_is_what_triton_counts() -> None:
    service, models = (fleet := shared_device(balancers=2).fleet).service, fleet.models
    for m in (models["m"], models["n"]):
        assert service.fixed_s[0, m] + service.per_row_s[0, m] == pytest.approx(0.025, rel=0.05)


def test_peers_have_what_all_models_of_a_report_have_together() -> None:
    router = make_router(1, models=[model("m"), model("n")])
    for _ in range(2):
        router.route(M, 0.1)
    models = [model("m", pending=3, executing=1), model("n", pending=1, executing=1)]
    router.observe(report("w0", 2, models, balancers=2), 0.2)
    queue = router.fleet.queue
    assert queue.reported_pending[0] == 4
    assert queue.peer_in_flight[0] == 6 - 2
    # Each of the six is a batch of one row of 10 ms, and four of them are the others'.
    assert queue.peer_work_s[0] == pytest.approx(0.060 * 4 / 6)


def test_a_worker_that_another_stood_in_for_has_an_error_and_no_latency() -> None:
    router = make_router(2)
    decision = router.route(M, 0.1)
    picked = router.fleet.index[decision.worker]
    router.observe(Finished(decision.number, f"w{1 - picked}", 5.0, True), 0.2)
    latency = router.fleet.latency
    assert latency.latency_s[picked] == 0
    assert latency.errors[picked] > 0
    assert latency.latency_s[1 - picked] == 5.0
    assert latency.errors[1 - picked] == 0


def test_a_request_that_nobody_served_is_an_error_of_the_worker_picked_and_of_no_other() -> None:
    router = make_router(2)
    decision = router.route(M, 0.1)
    picked = router.fleet.index[decision.worker]
    router.observe(Finished(decision.number, "", None, False), 0.2)
    assert router.fleet.latency.errors[picked] > 0
    assert router.fleet.latency.errors[1 - picked] == 0
    assert not router.fleet.latency.latency_s.any()


def test_an_outcome_is_learned_though_the_worker_picked_has_gone() -> None:
    router = make_router(2)
    decision = router.route(M, 0.1)
    other = next(name for name in router.fleet.names if name != decision.worker)
    router.observe(WorkerRemoved(decision.worker), 0.2)
    router.observe(Finished(decision.number, other, 0.7, True), 0.3)
    assert router.fleet.latency.latency_s.tolist() == [0.7]
