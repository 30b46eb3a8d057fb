"""Which keys are warm, and what a hit saves: by hand, and in a fleet that is told what happened."""

import math

import numpy as np
import pytest
from support.estimators import allocate

from balancer.kernel.estimators import caches
from balancer.kernel.estimators.caches import PLACES, WAYS, Caches
from balancer.kernel.estimators.service import Service
from balancer.kernel.settings import EstimatorSettings, Settings
from balancer.kernel.state import RequestFeatures
from balancer.kernel.worker_columns import bid_of, is_home
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.events import Finished, ModelReport, Report, WorkerAdded
from balancer.scheduler.router import Router
from policies import BUILTIN
from policies.base import FloatArray, Request
from policies.hashing import mix

A, B = np.uint64(1001), np.uint64(1002)
"""Workers, by the hash of their name."""
MEMORY = 10.0


def key(place: int, number: int = 1) -> np.uint64:
    """One of the keys of a place."""
    return np.uint64(place + PLACES * number)


def test_a_key_is_warm_where_it_went_until_new_ones_drive_it_out() -> None:
    c = allocate(Caches, 2, 1)
    caches.note(c, 0, key(3), A, 0, MEMORY, 1.0)
    assert c.new_keys.tolist() == [1.0, 0.0]
    assert caches.warm(c, 0, key(3), A, 0, MEMORY) == 1.0
    assert caches.warm(c, 0, key(3), B, 1, MEMORY) == 0.0
    for number in range(5):
        caches.note(c, 0, key(10 + number), A, 0, MEMORY, 2.0)
    assert caches.warm(c, 0, key(3), A, 0, MEMORY) == pytest.approx(math.exp(-5 / MEMORY))
    # It comes again: new to the worker with the rest of the probability, and warm from then on.
    caches.note(c, 0, key(3), A, 0, MEMORY, 3.0)
    assert c.new_keys[0] == pytest.approx(6 + 1 - math.exp(-5 / MEMORY))
    assert caches.warm(c, 0, key(3), A, 0, MEMORY) == 1.0


def test_the_oldest_of_a_place_makes_room_and_nothing_grows() -> None:
    c = allocate(Caches, 1, 1)
    size = c.key.nbytes
    for number in range(WAYS + 1):
        caches.note(c, 0, key(7, 1 + number), A, 0, 1e9, float(number + 1))
    found = [caches.warm(c, 0, key(7, 1 + number), A, 0, 1e9) for number in range(WAYS + 1)]
    assert found[0] == 0.0
    assert all(each > 0.99 for each in found[1:])
    assert c.key.nbytes == size


def test_a_worker_that_starts_anew_has_no_key_and_nor_has_another_of_its_name() -> None:
    c = allocate(Caches, 2, 1)
    for holder, r in ((A, 0), (B, 1)):
        caches.note(c, 0, key(3), holder, r, MEMORY, 1.0)
    caches.lose_all(c, 0, MEMORY)
    assert caches.warm(c, 0, key(3), A, 0, MEMORY) < 1e-9
    assert caches.warm(c, 0, key(3), B, 1, MEMORY) == 1.0
    c.new_keys[1] = 0.0
    assert caches.warm(c, 0, key(3), B, 1, MEMORY) == 0.0


def test_what_was_not_served_is_taken_back() -> None:
    c = allocate(Caches, 1, 1)
    caches.note(c, 0, key(3), A, 0, MEMORY, 1.0)
    caches.take_back(c, 0, key(3), A)
    assert caches.warm(c, 0, key(3), A, 0, MEMORY) == 0.0


def observed(saves: float, noise: float, reports: int = 400, drift: float = 0.0) -> Caches:
    """The evidence of two workers' reports of 4 rows, in which hits come and go."""
    c, dice = allocate(Caches, 2, 1), np.random.default_rng(5)
    for number in range(reports):
        for r in range(2):
            hits = dice.random()
            gone = drift * number / reports
            c.ended_rows[r, 0], c.ended_hits[r, 0] = 4.0, 4.0 * (hits * (1 - drift) + gone)
            caches.observe(c, r, 0, 4.0, 1.2 - saves * hits - gone + noise * dice.standard_normal())
    return c


def learned(c: Caches) -> FloatArray:
    s = allocate(Service, 2, 1)
    s.fixed_s[:], s.per_row_s[:], s.weight[:] = 0.004, [[0.001], [0.003]], 100.0
    caches.learn(c, s, 0, 2, 0.0)
    return c.saved[:, 0]


@pytest.mark.parametrize("saves", [0.3, 0.7])
def test_a_saving_is_learned(saves: float) -> None:
    assert learned(observed(saves, noise=0.1)) == pytest.approx([saves, saves], rel=0.05)


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.6])
def test_nothing_is_learned_where_nothing_is_saved(noise: float) -> None:
    assert learned(observed(0.0, noise)).tolist() == [0.0, 0.0]


def test_hits_that_grow_while_a_fit_settles_are_no_saving() -> None:
    assert learned(observed(0.0, noise=0.05, drift=0.5)) == pytest.approx([0.0, 0.0], abs=0.02)


def test_nothing_is_learned_of_a_few_reports() -> None:
    assert learned(observed(0.7, noise=0.1, reports=9)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("sums", [(1e-300, 1.0, -1e-300), (1.0, 0.0, -1e-300), (1e-8, 1e15, -1e3), (1e15, 1e15, -1e15)])
def test_a_saving_is_a_share_whatever_the_sums_are(sums: tuple[float, float, float]) -> None:
    for reports in (0.0, 20.0, 1e9):
        assert 0.0 <= caches.saving(reports, *sums) <= 1.0


def test_parts_of_the_speed_are_those_of_workers_that_executed() -> None:
    c, s = allocate(Caches, 3, 1), allocate(Service, 3, 1)
    s.fixed_s[:], s.per_row_s[:], s.weight[:] = 0.0, [[0.001], [0.003], [0.001]], [[9.0], [9.0], [0.0]]
    caches.learn(c, s, 0, 3, 0.1)
    assert c.part[:, 0] == pytest.approx([0.75, 0.25, 0.0])


def report(worker: str, number: int, balancers: int, executions: int, incarnation: int = 1) -> Report:
    model = ModelReport(
        "m", "1", True, succeeded=executions, max_batch_rows=4, batches=((1, executions, 0.01 * executions),)
    )
    return Report(worker, incarnation, number, True, (model,), balancers=balancers)


def fleet(balancers: int, workers: int = 4) -> Router:
    """Workers that have executed as much."""
    settings = Settings(sticky_keys=False, estimators=EstimatorSettings(key_memory=MEMORY))
    router = Router(BUILTIN["expected_latency"](), settings)
    for worker in range(workers):
        router.observe(WorkerAdded(f"w{worker}"), 0.0)
        for number in (1, 2, 3):
            router.observe(report(f"w{worker}", number, balancers, 100 * number), 0.001 * number)
    router.tick(0.01)
    return router


def cached(router: Router, number: int) -> list[float]:
    return router.view(Request("m", key=number), 0.02).cached.tolist()


def sent(router: Router, number: int | None) -> Decision:
    return router.route(Request("m", key=number), 0.02)


def test_a_pick_warms_its_key_for_its_model_and_an_outcome_elsewhere_moves_it() -> None:
    router = fleet(1)
    assert cached(router, 5) == [0.0] * 4
    decision = sent(router, 5)
    row = int(decision.worker[1:])
    assert cached(router, 5) == [float(w == row) for w in range(4)]
    assert cached(router, 6) == [0.0] * 4
    assert router.view(Request("", key=5), 0.02).cached.tolist() == [0.0] * 4
    other = (row + 1) % 4
    router.observe(Finished(decision.number, f"w{other}", 0.01, True), 0.03)
    assert cached(router, 5) == [float(w == other) for w in range(4)]
    failed = sent(router, 7)
    router.observe(Finished(failed.number, failed.worker, None, False), 0.03)
    assert cached(router, 7) == [0.0] * 4


def test_what_has_no_key_is_nowhere_and_leaves_nothing() -> None:
    router = fleet(2)
    sent(router, None)
    view = router.view(Request("m"), 0.02)
    assert view.cached.tolist() == view.saving_s.tolist() == [0.0] * 4
    assert not router.fleet.caches.key.any()


def test_a_worker_that_reports_a_new_start_is_cold() -> None:
    router = fleet(1)
    decision = sent(router, 5)
    row = int(decision.worker[1:])
    router.observe(report(decision.worker, 1, 1, 10, incarnation=2), 0.02)
    assert cached(router, 5)[row] < 1e-9


def test_balancers_that_know_nothing_of_a_key_have_one_home_for_it() -> None:
    one, other = fleet(4), fleet(4)
    homes = []
    for number in range(40):
        sent(one, 1000 + number)
        found = cached(one, number)
        assert found == cached(other, number)
        assert sorted(found)[:-1] == [0.0] * 3
        assert max(found) in {0.0, 1.0}
        homes.append(found.index(max(found)))
    assert set(homes) == {0, 1, 2, 3}


def test_home_is_the_least_bid_and_follows_the_speed() -> None:
    router = fleet(4, workers=3)
    router.fleet.caches.part[:, 1] = [0.6, 0.4, 0.0]
    homes = np.zeros(3)
    with np.errstate(over="ignore"):
        for number in range(600):
            ask = RequestFeatures(1, 1.0, mix(number), 1.0, math.inf, 0.0, 0, 0.0, 0.0)
            bids = [bid_of(router.fleet, 0, w, w, ask, 0.0) for w in range(3)]
            found = [is_home(router.fleet, 0, w, w, ask, 0.0) for w in range(3)]
            assert found[int(np.argmin(bids))] or math.exp(-min(bids)) < 0.001
            homes += found
    assert homes.sum() <= 600
    assert homes / 600 == pytest.approx([0.6, 0.4, 0.0], abs=0.06)


def test_the_policy_goes_by_what_is_saved() -> None:
    router = fleet(1)
    first = sent(router, 5)
    elsewhere = sent(router, None)
    assert elsewhere.worker != first.worker, "it has one request waiting"
    router.fleet.caches.saved[:] = 0.5
    assert sent(router, 5).worker == first.worker
    view = router.view(Request("m", key=5, rows=2), 0.02)
    service = router.fleet.service
    assert view.saving_s == pytest.approx(0.5 * 2 * (service.fixed_s[:, 1] / 4 + service.per_row_s[:, 1]))
