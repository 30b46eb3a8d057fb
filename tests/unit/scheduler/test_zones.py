"""Workers of the balancer's zone first, others where they are done sooner by more than a bound."""

from collections import Counter
from dataclasses import replace

import pytest
from support.fleets import make_router

from balancer.kernel.settings import Limits, Settings, ZoneSettings
from balancer.scheduler.events import Sent, Withdrawn, WorkerAdded, WorkersAdded
from balancer.scheduler.router import Router
from balancer.scheduler.snapshot import snapshot
from policies.base import Policy, Request
from policies.consistent_hash import ConsistentHash
from policies.round_robin import RoundRobin

ZONES = {"w0": "a", "w1": "a", "w2": "b", "w3": "b"}
SERVICE_S = 0.01
"""Of a worker of which nothing is known."""


def placed(own: str, bound_s: float = 2.5 * SERVICE_S, policy: Policy | None = None, **more: object) -> Router:
    settings = Settings(zones=ZoneSettings(own, bound_s), **more)  # type: ignore[arg-type]  # of any of its fields
    router = make_router(4, policy or RoundRobin(), settings)
    router.observe(WorkersAdded(tuple(WorkerAdded(name, zone=zone) for name, zone in ZONES.items())), 0.0)
    return router


def picked(router: Router, requests: int = 8) -> set[str]:
    """Each request ends before the next."""
    found = Counter[str]()
    for _ in range(requests):
        decision = router.route(Request("m"), 0.1)
        router.observe(Withdrawn(decision.number), 0.1)
        found[decision.worker] += 1
    return set(found)


def load(router: Router, *workers: str, requests: int = 1) -> None:
    """Requests that stay there."""
    for worker in workers:
        for _ in range(requests):
            router.observe(Sent(10_000 + router.in_flight_by_worker().total(), worker, "m"), 0.1)


def test_it_goes_far_where_all_near_workers_are_full() -> None:
    router = placed("a", bound_s=3600.0, limits=Limits(max_pending_per_worker=2))
    load(router, "w0", "w1", requests=2)
    assert picked(router) == {"w2", "w3"}


def test_another_zone_is_taken_over_while_it_runs() -> None:
    router = placed("a")
    router.configure(router.policy, Settings(zones=ZoneSettings("b", 0.025)))
    assert picked(router) == {"w2", "w3"}


def test_keys_and_sequences_belong_to_one_worker_whichever_zone_asks() -> None:
    one, other = placed("a", policy=ConsistentHash()), placed("b", policy=ConsistentHash())
    for sequence in (False, True):
        requests = [replace(Request("m"), key=key, sequence=sequence) for key in range(1, 50)]
        found = [[router.route(request, 0.1).worker for request in requests] for router in (one, other)]
        assert found[0] == found[1]
        assert set(found[0]) == set(ZONES)


@pytest.mark.parametrize("own", ["a", ""])
def test_the_page_says_where_each_stands(own: str) -> None:
    assert {each["worker"]: each["zone"] for each in snapshot(placed(own), 0.1)} == ZONES
