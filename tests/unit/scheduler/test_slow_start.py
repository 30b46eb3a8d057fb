"""A worker that joins others gets part of its requests at first, until its service times are known."""

from collections import Counter
from dataclasses import replace

import pytest
from support.fleets import make_router, model, report

from balancer.kernel.settings import Settings
from balancer.scheduler.events import Withdrawn, WorkerAdded
from balancer.scheduler.router import Router
from policies.base import Policy, Request
from policies.consistent_hash import ConsistentHash
from policies.random_choice import RandomChoice

OVER_S = 10.0
REQUESTS = 2000
KEYS = range(1, 401)


def grown(slow_start_s: float = OVER_S, policy: Policy | None = None) -> Router:
    """Three workers, and a fourth that reports first at 100 s."""
    router = make_router(3, policy or RandomChoice(), Settings(slow_start_s=slow_start_s))
    router.observe(WorkerAdded("new"), 99.0)
    take_report(router, 100.0)
    return router


def take_report(router: Router, now_s: float, **fields: object) -> None:
    """Reports of all workers."""
    for worker in router.fleet.workers:
        router.observe(report(worker.name, worker.number + 1, [model(**fields)]), now_s)


def shares(router: Router, now_s: float) -> dict[str, float]:
    """Of many requests that end at once."""
    take_report(router, now_s)
    counted: Counter[str] = Counter()
    for _ in range(REQUESTS):
        decision = router.route(Request("m"), now_s)
        router.observe(Withdrawn(decision.number), now_s)
        counted[decision.worker] += 1
    return {worker: count / REQUESTS for worker, count in counted.items()}


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.9, 1.0])
def test_its_share_grows_with_the_time_since_its_first_report(part: float) -> None:
    assert shares(grown(), 100.0 + part * OVER_S)["new"] == pytest.approx(part / 4, abs=0.03)


def test_without_a_slow_start_it_gets_all_at_once() -> None:
    assert shares(grown(0.0), 100.5)["new"] == pytest.approx(0.25, abs=0.03)


def test_once_its_service_times_are_known_it_gets_all() -> None:
    router = grown()
    take_report(router, 100.1, batches=((1, 10, 0.1),))
    take_report(router, 100.2, batches=((1, 40, 0.4),))
    assert router.fleet.service.weight[3, router.fleet.column("m")] >= 5
    counted = Counter(router.route(Request("m"), 100.3).worker for _ in range(REQUESTS))
    assert counted["new"] / REQUESTS == pytest.approx(0.25, abs=0.03)


def test_workers_that_came_together_share_alike_and_none_is_left_without() -> None:
    router = make_router(4, RandomChoice(), Settings(slow_start_s=OVER_S))
    for now_s in (0.0, 0.5):
        found = shares(router, now_s)
        assert all(share == pytest.approx(0.25, abs=0.04) for share in found.values())
        assert len(found) == 4


def test_beside_workers_that_are_hardly_older_it_waits_for_no_longer_than_they_did() -> None:
    router = make_router(1, RandomChoice(), Settings(slow_start_s=OVER_S))
    router.observe(WorkerAdded("new"), 1.0)
    take_report(router, 1.0)
    assert shares(router, 2.0)["new"] == pytest.approx(0.25, abs=0.03)  # half of its half


def test_the_only_worker_that_may_serve_gets_everything_from_the_start() -> None:
    router = grown()
    for name in ("w0", "w1", "w2"):
        router.observe(report(name, 1000, ready=False), 100.1)
    assert {router.route(Request("m"), 100.1).worker for _ in range(50)} == {"new"}


def test_a_worker_that_was_removed_starts_anew() -> None:
    router = grown()
    assert "new" in shares(router, 200.0)
    router = grown()
    router.fleet.remove("w0")
    router.observe(WorkerAdded("w0"), 300.0)
    take_report(router, 300.0)
    assert shares(router, 301.0)["w0"] == pytest.approx(0.1 / 4, abs=0.02)


def keyed(router: Router, now_s: float, key: int, sequence: bool = False) -> str:
    request = replace(Request("m"), key=key, sequence=sequence)
    decision = router.route(request, now_s)
    router.observe(Withdrawn(decision.number), now_s)
    return decision.worker


def test_keys_come_to_it_one_after_the_other_and_stay() -> None:
    router = grown(policy=ConsistentHash())
    found = []
    for now_s in (102.0, 105.0, 108.0, 111.0):
        take_report(router, now_s)
        found.append({key for key in KEYS if keyed(router, now_s, key) == "new"})
    assert found[0] < found[1] < found[2] < found[3]
    assert len(found[1]) == pytest.approx(len(found[3]) / 2, rel=0.3)


def test_another_balancer_gives_it_the_same_keys() -> None:
    one, other = grown(policy=ConsistentHash()), grown(policy=ConsistentHash())
    for _ in range(100):
        other.observe(Withdrawn(other.route(Request("m"), 104.0).number), 104.0)
    assert [keyed(one, 104.0, key) for key in KEYS] == [keyed(other, 104.0, key) for key in KEYS]


def test_sequences_are_where_they_will_be_from_the_start() -> None:
    before, after = grown(), grown(0.0)
    placed = [keyed(before, 100.5, key, sequence=True) for key in KEYS]
    assert placed == [keyed(after, 100.5, key, sequence=True) for key in KEYS]
    assert "new" in placed
