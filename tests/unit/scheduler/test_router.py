import dataclasses

import numpy as np
import pytest
from support.fleets import make_router, model, report

from balancer import bounds
from balancer.kernel.settings import Limits, ModelSettings, Settings
from balancer.scheduler.errors import NoEligibleWorker, Shed, UnknownModel
from balancer.scheduler.events import Finished, ReportsLost, Withdrawn, WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from balancer.scheduler.snapshot import reasons
from policies.base import FleetView, FloatArray, Policy, Request
from policies.consistent_hash import ConsistentHash
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin

M = Request("m")


def test_propensity_is_the_probability_that_the_policy_gave() -> None:
    assert make_router(4, RandomChoice()).route(M, 0.1).propensity == 0.25


def test_fallbacks_are_the_other_eligible_workers_the_least_pending_first() -> None:
    router = make_router(5, LeastRequests())
    for worker, requests in (("w0", 3), ("w1", 2), ("w3", 1)):
        for _ in range(requests):
            router.route(M, 0.1, {worker})
    router.observe(report("w4", 2, ready=False), 0.1)
    assert router.route(M, 0.1)[1:3] == ("w2", ("w3", "w1"))
    router.configure(LeastRequests(), Settings(max_fallbacks=1))
    assert router.route(M, 0.1, {"w0", "w1", "w3"})[1:3] == ("w3", ("w1",))


def test_equal_seeds_and_events_give_equal_decisions_and_other_seeds_others() -> None:
    def picks(seed: int) -> list[str]:
        router = make_router(4, RandomChoice(), seed=seed)
        return [router.route(M, 0.1).worker for _ in range(30)]

    assert picks(1) == picks(1) != picks(2)


def test_swapping_the_policy_keeps_what_is_in_flight() -> None:
    router = make_router(2, RoundRobin())
    router.route(M, 0.1)
    before = router.fleet.queue.in_flight.copy()
    router.configure(LeastRequests(), router.settings)
    np.testing.assert_array_equal(router.fleet.queue.in_flight, before)
    assert router.route(M, 0.1).policy == "least_requests"


def test_unknown_model_and_version_are_refused_in_tritons_words() -> None:
    router = make_router()
    with pytest.raises(UnknownModel, match="Request for unknown model: 'nope' is not found"):
        router.route(Request("nope"), 0.1)
    with pytest.raises(UnknownModel, match="'m' version 7 is not found"):
        router.route(Request("m", version="7"), 0.1)


def test_a_model_that_only_the_table_knows_is_unavailable_rather_than_unknown() -> None:
    router = make_router(settings=Settings(models={"later": ModelSettings()}))
    with pytest.raises(NoEligibleWorker, match="retry later"):
        router.route(Request("later"), 0.1)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (ModelSettings(versions=("2",)), "version 1 of m is not permitted"),
        (ModelSettings(devices=("A100",)), "device T4 is not one of A100"),
        (ModelSettings(memory_bytes=17), "needs 17 bytes of device memory, has 16"),
    ],
)
def test_the_model_table_keeps_workers_out_and_says_why(row: ModelSettings, why: str) -> None:
    router = make_router(1, settings=Settings(models={"m": row}))
    router.observe(report("w0", 2, device="T4", memory_bytes=16), 0.1)
    with pytest.raises(NoEligibleWorker):
        router.route(M, 0.1)
    assert any(why in reason for reason in reasons(router, M, 0.1)["w0"])


def test_limits_shed_and_priorities_shed_first() -> None:
    limits = Limits(max_pending_per_worker=2, sheddable_priority=3, sheddable_max_pending_per_worker=1)
    router = make_router(1, settings=Settings(limits=limits))
    router.route(M, 0.1)
    with pytest.raises(Shed):
        router.route(Request("m", priority=3), 0.1)
    router.route(Request("m", priority=2), 0.1)
    with pytest.raises(Shed, match="2 requests pending"):
        router.route(M, 0.1)


def test_late_requests_are_shed_where_that_is_configured() -> None:
    settings = Settings(limits=Limits(shed_late=True))
    router = make_router(1, settings=settings, models=[model(batches=((1, 10, 1.0),))])
    router.route(Request("m", deadline_s=0.2), 0.1)
    with pytest.raises(Shed, match="deadline is in 50 ms"):
        router.route(Request("m", deadline_s=0.05), 0.1)


def test_only_an_eligible_worker_can_save_a_request_from_being_late() -> None:
    router = make_router(2, settings=Settings(limits=Limits(shed_late=True)))
    router.observe(WorkerAdded("w1", draining=True), 0.0)
    router.route(M, 0.1)
    with pytest.raises(Shed, match="would take 20 ms at best"):
        router.route(Request("m", deadline_s=0.015), 0.1)


def test_a_pin_is_held_against_the_latest_version_by_number() -> None:
    router = make_router(1, settings=Settings(models={"m": ModelSettings(versions=("10",))}))
    router.observe(report("w0", 2, [model(version="9"), model(version="10")]), 0.1)
    assert router.route(M, 0.1).worker == "w0"
    router.configure(router.policy, Settings(models={"m": ModelSettings(versions=("9",))}))
    with pytest.raises(NoEligibleWorker, match="name the version"):
        router.route(M, 0.1)
    assert router.route(Request("m", version="9"), 0.1).worker == "w0"


def test_a_subset_is_honoured_and_an_empty_one_means_nobody() -> None:
    router = make_router(3)
    assert {router.route(M, 0.1, subset={"w2"}).worker for _ in range(3)} == {"w2"}
    with pytest.raises(NoEligibleWorker):
        router.route(M, 0.1, subset=set())


def test_a_sequence_stays_on_its_worker_without_memory_and_has_no_fallback() -> None:
    routers = [make_router(5, RoundRobin()), make_router(5, RandomChoice(), seed=9)]
    for key in range(20):
        request = Request("m", key=key, sequence=True)
        decisions = [router.route(request, 0.1) for router in routers for _ in range(4)]
        assert len({decision.worker for decision in decisions}) == 1
        assert not any(decision.fallbacks for decision in decisions)


def test_a_sequence_stays_while_its_worker_drains_or_reports_late() -> None:
    router = make_router(4)
    request = Request("m", key=3, sequence=True)
    worker = router.route(request, 0.1).worker
    router.observe(WorkerAdded(worker, draining=True), 0.2)
    router.observe(ReportsLost(worker), 0.2)
    assert router.route(request, 0.3).worker == worker


def test_a_routing_key_sticks_under_any_policy_unless_configured_otherwise() -> None:
    router = make_router(5, RoundRobin())
    assert len({router.route(Request("m", key=11), 0.1).worker for _ in range(2)}) == 1
    router.configure(RoundRobin(), dataclasses.replace(router.settings, sticky_keys=False))
    assert len({router.route(Request("m", key=11), 0.1).worker for _ in range(5)}) == 5


def test_a_policy_that_places_keys_itself_does_so() -> None:
    router = make_router(5, ConsistentHash(floor=0.0, balance_factor=1.01))
    workers = {router.route(Request("m", key=11), 0.1).worker for _ in range(5)}
    assert len(workers) > 1  # it has no room for more of one key, where a sticky key would stay


@dataclasses.dataclass(frozen=True)
class BrokenPolicy(Policy):
    name = "broken"
    summary = source = ""
    answer: object = None

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        if isinstance(self.answer, Exception):
            raise self.answer
        return np.array(self.answer, float)


@pytest.mark.parametrize("answer", [[0.5, 0.6], [np.nan, 1.0], [2.0, -1.0], [0.0, 1.0], ValueError("no")])
def test_an_invalid_policy_is_replaced_by_the_least_pending_worker(answer: object) -> None:
    router = make_router(2, BrokenPolicy(answer=answer))
    router.observe(report("w1", 2, ready=False), 0.1)
    assert router.route(M, 0.1).worker == "w0"
    assert router.failures["broken"] == 1
    assert router.last_failure


def test_a_policy_that_gives_nothing_sheds() -> None:
    with pytest.raises(Shed, match="broken"):
        make_router(2, BrokenPolicy(answer=[0.0, 0.0])).route(M, 0.1)


def test_outcomes_that_never_come_stop_counting() -> None:
    router = make_router(1, settings=Settings(outcome_timeout_s=10.0))
    router.route(M, 0.0)
    router.route(M, 5.0)
    router.tick(10.0)
    assert router.fleet.queue.in_flight[0] == 1
    assert router.outcomes["expired"] == 1


def test_a_worker_that_returns_under_its_name_has_nothing_of_what_it_had_before() -> None:
    router = make_router(1)
    old = router.route(M, 0.1)
    router.observe(WorkerRemoved("w0"), 0.2)
    router.observe(WorkerAdded("w0"), 0.3)
    router.observe(report("w0"), 0.3)
    router.route(M, 0.4)
    router.observe(Finished(old.number, "w0", 0.1, True), 0.5)
    router.observe(Withdrawn(old.number), 0.6)
    assert router.fleet.queue.in_flight.tolist() == [1]
    router.tick(1000.0)
    assert router.outcomes == {"unmatched": 1, "expired": 1}


def test_a_withdrawn_request_no_longer_counts_and_speaks_against_nobody() -> None:
    router = make_router(1)
    decision = router.route(M, 0.1)
    router.observe(Withdrawn(decision.number), 0.2)
    assert not router.fleet.queue.in_flight.any()
    assert not router.fleet.latency.errors.any()


def in_sequence(key: int, **fields: object) -> Request:
    return Request("m", key=key, sequence=True, **fields)  # type: ignore[arg-type]  # a test double


def test_limits_hold_for_sequences_at_the_worker_that_each_belongs_to() -> None:
    router = make_router(3, settings=Settings(limits=Limits(max_pending_per_worker=2)))
    worker = router.route(in_sequence(7), 0.1).worker
    assert router.route(in_sequence(7), 0.1).worker == worker
    with pytest.raises(Shed, match="has 2 requests pending"):
        router.route(in_sequence(7), 0.1)
    # Another sequence belongs to another worker, which has room.
    elsewhere = next(key for key in range(100) if _placed(router, key) not in {"", worker})
    assert router.route(in_sequence(elsewhere), 0.1).worker != worker


def _placed(router: Router, key: int) -> str:
    try:
        return router.fleet.names[int(router.answer_now(in_sequence(key), 0.1).probabilities.argmax())]
    except Shed:
        return ""


def test_a_sequence_is_refused_in_words_once_the_last_worker_has_left() -> None:
    router = make_router(1)
    router.observe(WorkerRemoved("w0"), 0.1)
    with pytest.raises(NoEligibleWorker):
        router.route(in_sequence(7), 0.1)
    assert not router.failures


def test_a_sequence_that_would_be_late_is_shed_like_any_other() -> None:
    slow = model(batches=((1, 100, 100.0),), succeeded=100)
    router = make_router(2, settings=Settings(limits=Limits(shed_late=True)), models=[slow])
    with pytest.raises(Shed, match="the deadline is in 10 ms"):
        router.route(in_sequence(1, deadline_s=0.01), 0.1)


def test_what_a_client_got_wrong_and_a_client_that_left_say_nothing_of_the_worker() -> None:
    router = make_router(1)
    slow = router.route(M, 0.1)
    router.observe(Finished(slow.number, slow.worker, 1.0, True), 1.1)
    before = router.fleet.latency.latency_s.copy(), router.fleet.latency.errors.copy()
    for void in ("client", "deadline"):
        for _ in range(50):
            decision = router.route(M, 1.2)
            router.observe(Finished(decision.number, decision.worker, 0.0001, False, void), 1.2)  # type: ignore[arg-type]
    np.testing.assert_array_equal(before, (router.fleet.latency.latency_s, router.fleet.latency.errors))
    assert not router.fleet.queue.in_flight.any()


def test_a_failure_that_a_request_may_have_caused_counts_where_no_client_can_have_aimed_it() -> None:
    def error_rate_after(workers: int, request: Request) -> float:
        router = make_router(workers)
        for _ in range(20):
            decision = router.route(request, 0.1)
            router.observe(Finished(decision.number, decision.worker, 0.001, False, "request"), 0.2)
        return float(router.fleet.latency.errors.max())

    assert error_rate_after(2, M) > 0
    # At one by a key, by a sequence, or by a model that only it has.
    assert error_rate_after(2, Request("m", key=7)) == 0
    assert error_rate_after(2, in_sequence(7)) == 0
    assert error_rate_after(1, M) == 0


def test_a_stopping_worker_gets_nothing_new_but_keeps_its_sequences() -> None:
    router = make_router(2)
    key = next(key for key in range(100) if router.answer_now(in_sequence(key), 0.1).probabilities[0] > 0)
    router.observe(report("w0", number=2, draining=True), 0.2)
    assert {router.route(M, 0.3).worker for _ in range(4)} == {"w1"}
    assert router.route(in_sequence(key), 0.3).worker == "w0"


def test_requests_without_outcome_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_IN_FLIGHT", 10)
    router = make_router(1)
    for _ in range(30):
        router.route(M, 0.1)
    assert router.fleet.queue.in_flight[0] == 10
    assert router.outcomes["expired"] == 20
