import numpy as np
import pytest
from support.views import FakeView, make_view, probabilities

from policies.base import Request
from policies.consistent_hash import ConsistentHash
from policies.hashing import key_of

KEYS = np.array([key_of(f"user-{number}") for number in range(20_000)], np.uint64)[:, None]
UNBOUNDED = ConsistentHash(balance_factor=float("inf"))


def fleet(n: int, **columns: object) -> FakeView:
    return make_view(n, name_hash=[key_of(f"worker-{place}") for place in range(n)], **columns)  # type: ignore[arg-type]  # columns are arrays


def owners(view: FakeView, policy: ConsistentHash = UNBOUNDED) -> np.ndarray:
    result = policy.probabilities(Request("m", key=KEYS), view)
    assert set(np.unique(result)) <= {0.0, 1.0}
    return result.argmax(axis=-1)


def test_a_worker_that_joins_takes_its_share_and_moves_nothing_else() -> None:
    before, after = owners(fleet(9)), owners(fleet(10))
    moved = before != after
    assert moved.mean() == pytest.approx(1 / 10, abs=0.01)
    assert (after[moved] == 9).all()


def test_a_worker_that_leaves_moves_only_its_own_keys() -> None:
    before = owners(fleet(10))
    after = owners(fleet(10, eligible=[place != 4 for place in range(10)]))
    assert (before[before != after] == 4).all()
    assert not (after == 4).any()


def test_keys_are_shared_by_weight() -> None:
    shares = np.bincount(owners(fleet(4, weight=[1, 1, 2, 4])), minlength=4) / len(KEYS)
    assert shares == pytest.approx([1 / 8, 1 / 8, 2 / 8, 4 / 8], abs=0.012)


def test_the_order_of_workers_does_not_matter() -> None:
    view, order = fleet(10), np.random.default_rng(0).permutation(10)
    assert (order[owners(view.map(order))] == owners(view)).all()


def test_a_busy_worker_hands_its_key_to_the_next_one() -> None:
    policy, request = ConsistentHash(floor=0.0), Request("m", key=key_of("user-1"))
    idle = np.array(probabilities(policy, fleet(4), request))
    home = int(idle.argmax())
    foreign = [place != home for place in range(4)]
    following = int(np.argmax(probabilities(policy, fleet(4, eligible=foreign), request)))
    # Mean 4: the bound is ceil(1.25 * 17 / 4) = 6, this request included.
    for held, expected in ((5, home), (6, following)):
        load = np.full(4, (16 - held) / 3)
        load[home] = held
        assert int(np.argmax(probabilities(policy, fleet(4, pending=load), request))) == expected


def test_at_low_load_every_key_stays_on_its_worker() -> None:
    """Six requests in flight anywhere among four workers move no key; without the floor some hundreds of them."""
    generator, keys = np.random.default_rng(0), KEYS[:1000]
    home = ConsistentHash(balance_factor=float("inf"))
    for policy, moves in ((ConsistentHash(), False), (ConsistentHash(floor=0.0), True)):
        pending = generator.multinomial(6, [0.25] * 4, size=1000).astype(float)
        view = make_view(4, leading=(1000,), name_hash=[key_of(f"worker-{i}") for i in range(4)], pending=pending)
        request = Request("m", key=keys)
        moved = (policy.probabilities(request, view) != home.probabilities(request, view)).any(axis=-1).sum()
        assert (moved > 100) == moves
        assert moves or moved == 0


def test_beyond_the_floor_the_bound_holds() -> None:
    request = Request("m", key=3)
    home = int(np.argmax(probabilities(UNBOUNDED, fleet(4), request)))
    for held, stays in ((7, True), (8, False)):
        load = np.zeros(4)
        load[home] = held
        assert (int(np.argmax(probabilities(ConsistentHash(), fleet(4, pending=load), request))) == home) == stays


def test_a_request_without_a_key_goes_without_the_floor() -> None:
    for number in range(40):
        request, load = Request("m", number=number), np.zeros(4)
        load[int(np.argmax(probabilities(UNBOUNDED, fleet(4), request)))] = 2
        view = fleet(4, pending=load)
        assert probabilities(ConsistentHash(), view, request) == probabilities(ConsistentHash(floor=0.0), view, request)
        assert load[int(np.argmax(probabilities(ConsistentHash(), view, request)))] == 0


def test_the_bound_holds_for_every_key_and_follows_weight() -> None:
    loads, weight = np.zeros(3), np.array([1.0, 1.0, 2.0])
    policy = ConsistentHash(load="in_flight")
    for number in range(400):  # one hot key: all that keeps it from one worker is the bound
        view = fleet(3, in_flight=loads, weight=weight)
        loads[np.argmax(probabilities(policy, view, Request("m", number=number, key=7)))] += 1
    assert (loads <= np.ceil(1.25 * 400 * weight / 4)).all()
    assert loads.max() >= 1.25 * 400 / 4 - 1  # and the key did stick up to there


def test_load_is_pending_unless_in_flight_is_asked_for() -> None:
    view, request = fleet(2, pending=[0, 90], in_flight=[90, 0]), Request("m", key=3)
    assert probabilities(ConsistentHash(), view, request) == [1, 0]
    assert probabilities(ConsistentHash(load="in_flight"), view, request) == [0, 1]


def test_unusable_loads_leave_the_keys_own_worker() -> None:
    request = Request("m", key=5)
    expected = probabilities(UNBOUNDED, fleet(3), request)
    assert probabilities(ConsistentHash(), fleet(3, pending=np.nan), request) == expected
    assert probabilities(ConsistentHash(), fleet(3, pending=np.inf), request) == expected


def test_without_a_key_the_number_spreads() -> None:
    picks = {int(np.argmax(probabilities(UNBOUNDED, fleet(4), Request("m", number=number)))) for number in range(100)}
    assert picks == {0, 1, 2, 3}
