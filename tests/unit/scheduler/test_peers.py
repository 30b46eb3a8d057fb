"""What other balancers have in flight at a worker, as their reports tell it: hand-computed."""

from collections import Counter

import pytest
from support.fleets import make_router, model, report

from balancer.scheduler.peers import AtWorker
from balancer.scheduler.router import Router
from policies.base import Request

M = Request("m")


def executing(**fields: object) -> Router:
    """One worker, of batches of 8, after two own picks and a report that tells of 3 that wait and 2.5 that execute."""
    router = make_router(1, models=[model(max_batch_rows=8)])
    for _ in range(2):
        router.route(M, 0.0)
    versions = fields.pop("versions", ("1",))
    models = [
        model(version=version, max_batch_rows=8, pending=3, executing=2.5)
        for version in versions  # type: ignore[attr-defined]  # a test double
    ]
    router.observe(report("w0", 2, models, **fields), 1.0)
    return router


def peers(router: Router) -> float:
    return float(router.fleet.queue.peer_in_flight[0])


def test_what_others_have_in_flight_takes_the_place_of_the_average_that_executes() -> None:
    # Of 2 own requests and 9 of others, 3 wait: 8 execute.
    counts = executing(balancers=2, peers_in_flight=(("m", 9),))
    assert peers(counts) == 9
    # As many by the average.
    assert peers(executing(balancers=2)) == pytest.approx(3 + 2.5 - 2)


def test_what_executes_by_it_is_counted_in_batches() -> None:
    """Work: 3 rows wait, 8 execute: a batch each."""
    router = executing(balancers=2, peers_in_flight=(("m", 9),))
    queue, service, m = router.fleet.queue, router.fleet.service, router.fleet.models["m"]
    fixed_s, per_row_s = service.fixed_s[0, m], service.per_row_s[0, m]
    assert queue.known_work_s[0] + queue.peer_work_s[0] == pytest.approx(2 * fixed_s + 11 * per_row_s)


def test_models_that_others_have_nothing_of_are_left_out() -> None:
    """All 2 own requests may wait among the 3 that do; somebody else's queue is seen all the same."""
    assert peers(executing(balancers=2, peers_in_flight=())) == 3 - 2
    assert peers(executing(balancers=2, peers_in_flight=(("another", 7),))) == 3 - 2


def test_a_lone_balancer_goes_by_its_own_counts() -> None:
    assert peers(executing(balancers=1, peers_in_flight=(("m", 9),))) == 3 - 2


def test_nobody_knows_which_of_several_versions_others_requests_are_of() -> None:
    known = executing(balancers=2, versions=("1", "2"), peers_in_flight=(("m", 9),))
    assert peers(known) == peers(executing(balancers=2, versions=("1", "2"))) == pytest.approx(2 * 5.5 - 2)


def test_a_balancer_says_what_it_has_in_flight_itself() -> None:
    router, models = make_router(2, models=[model("m"), model("n"), model("idle")]), ("m", "n", "m", "m")
    picks = [(router.route(Request(name), 0.0).worker, name) for name in models]
    for worker in ("w0", "w1"):
        in_flight = Counter(name for pick, name in picks if pick == worker)
        assert router.fleet.at_worker(worker) == AtWorker(dict(in_flight), 0.0)
    assert router.fleet.at_worker("unknown") == AtWorker()
