"""Of very many workers a decision looks at a sample."""

from collections import Counter

import pytest
from support.fleets import make_router, model, report

from balancer.kernel.settings import Limits, Settings
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Withdrawn, WorkerAdded, WorkerRemoved
from balancer.scheduler.router import Router
from policies.base import Policy, Request
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice

SAMPLED, MANY = 6, 100


def fleet(workers: int = MANY, policy: Policy | None = None, **settings: object) -> Router:
    settings = {"sampled_workers": SAMPLED, "sticky_keys": False} | settings
    return make_router(workers, policy or RandomChoice(), Settings(**settings))  # type: ignore[arg-type]  # of its fields


def looked_at(router: Router, request: Request, now_s: float = 0.0) -> frozenset[str]:
    view = router.view(request, now_s)
    return frozenset(
        name for name, eligible in zip(router.fleet.names, view.eligible.tolist(), strict=True) if eligible
    )


def test_up_to_sixteen_times_as_many_are_all_looked_at() -> None:
    router = fleet(16 * SAMPLED)
    assert len(looked_at(router, Request("m", number=1))) == 16 * SAMPLED
    router.observe(WorkerAdded("more"), 0.0)
    router.observe(report("more", 1, [model()]), 0.0)
    assert 0 < len(looked_at(router, Request("m", number=1))) <= 4 * SAMPLED


def test_each_request_looks_at_others_and_all_get_as_many() -> None:
    router, sizes, picked = fleet(), [], Counter[str]()
    for number in range(2000):
        sizes.append(len(looked_at(router, Request("m", number=number))))
        decision = router.route(Request("m"), 0.0)
        picked[decision.worker] += 1
        router.observe(Withdrawn(decision.number), 0.0)
    assert sum(sizes) / len(sizes) == pytest.approx(SAMPLED, rel=0.1)
    assert min(sizes) > 0
    assert len(picked) == MANY
    assert max(picked.values()) < 3 * 2000 / MANY


def test_the_least_loaded_of_those_looked_at_is_picked() -> None:
    router = fleet(policy=LeastRequests())
    for _ in range(200):
        seen = looked_at(router, Request("m", number=router.next_number))
        in_flight = router.in_flight_by_worker()
        assert in_flight[router.route(Request("m"), 0.0).worker] == min(in_flight[name] for name in seen)


def test_a_key_has_the_same_workers_and_most_of_them_when_others_come_or_go() -> None:
    router = fleet()
    keys = range(1, 40)
    before = {key: looked_at(router, Request("m", number=1, key=key)) for key in keys}
    assert before == {key: looked_at(router, Request("m", number=2, key=key)) for key in keys}
    gone = router.fleet.names[3]
    router.observe(WorkerRemoved(gone), 0.0)
    for key in keys:
        assert before[key] - {gone} <= looked_at(router, Request("m", number=1, key=key))


def test_a_key_that_a_hash_places_has_its_worker_of_all() -> None:
    many, all_of_them = fleet(sticky_keys=True), fleet(sticky_keys=True, sampled_workers=0)
    for key in range(1, 40):
        assert many.route(Request("m", key=key), 0.0).worker == all_of_them.route(Request("m", key=key), 0.0).worker


def test_who_has_most_of_a_prompt_is_looked_at() -> None:
    router = fleet()
    prefix = ((7, 64.0), (9, 128.0))
    request = Request("m", prompt_tokens=128.0, prefix=prefix)
    first = router.route(request, 0.0)
    for number in range(1, 50):
        asked = Request("m", number=number, prompt_tokens=128.0, prefix=prefix)
        assert first.worker in looked_at(router, asked)


def test_limits_hold_for_all_and_nobody_is_refused_while_one_has_room() -> None:
    router = fleet(limits=Limits(max_pending_per_worker=1))
    workers = [router.route(Request("m"), 0.0).worker for _ in range(MANY)]
    assert sorted(workers) == sorted(router.fleet.names)
    with pytest.raises(RoutingError):
        router.route(Request("m"), 0.0)
