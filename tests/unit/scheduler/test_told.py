"""What peers tell of their picks counts as own picks do, once each, and no longer than they are heard."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.fleets import make_router, model, report

from balancer.scheduler.events import PeerLost, PeerPicks, PeerTold, WorkerAdded, WorkerRemoved
from balancer.scheduler.peers import OwnPicks, is_told_all
from balancer.scheduler.router import Router
from policies.base import Request

MOST = 100


def tell(router: Router, *picks: PeerPicks, peer: str = "other") -> None:
    router.observe(PeerTold(peer, picks), 0.0)


def picks(sent: int, done: int, worker: str = "w0", name: str = "m", rows: float = 1.0) -> PeerPicks:
    return PeerPicks(worker, name, sent, sent * rows, done, done * rows)


def in_flight(router: Router) -> list[float]:
    found: list[float] = router.fleet.queue.in_flight.tolist()
    return found


def test_it_counts_beside_own_picks_and_is_not_told_on() -> None:
    router = make_router(2)
    router.route(Request("m"), 0.0, subset=("w1",))
    tell(router, picks(3, 1, "w1"))
    assert in_flight(router) == [0, 3]
    assert router.fleet.own_requests(1).sum() == 1
    assert router.fleet.at_worker("w1").in_flight == {"m": 1}
    tell(router, picks(4, 4, "w1"))
    assert in_flight(router) == [0, 1]
    assert OwnPicks(router.fleet).since(OwnPicks(router.fleet).nothing_told(), MOST) == [picks(1, 0, "w1")]


def test_rows_count_too() -> None:
    router = make_router(1, models=[model(max_batch_rows=8)])
    tell(router, picks(2, 0, rows=4))
    assert router.fleet.queue.known_rows.sum() == 8


def test_what_was_told_before_is_not_counted_again_and_peers_are_told_apart() -> None:
    router = make_router(1)
    for _ in range(3):
        tell(router, picks(5, 2))
    tell(router, picks(1, 0), peer="third")
    assert in_flight(router) == [4]


def test_of_a_peer_that_begins_anew_only_what_it_has_now_counts() -> None:
    router = make_router(1)
    tell(router, picks(1000, 990))
    tell(router, picks(2, 1))
    assert in_flight(router) == [1]


def test_a_peer_that_is_lost_counts_no_more() -> None:
    router = make_router(1)
    router.route(Request("m"), 0.0)
    tell(router, picks(7, 0))
    router.observe(PeerLost("other"), 0.0)
    router.observe(PeerLost("other"), 0.0)
    assert in_flight(router) == [1]


def test_of_workers_and_models_that_are_not_known_nothing_counts_until_they_are() -> None:
    router = make_router(1)
    tell(router, picks(3, 0, "w9"), picks(3, 0, name="nobody's"))
    assert in_flight(router) == [0]
    router.observe(WorkerAdded("w9"), 0.0)
    tell(router, picks(4, 2, "w9"))
    assert in_flight(router) == [0, 2]


def test_another_worker_of_that_name_has_nothing_of_the_one_before() -> None:
    router = make_router(2)
    tell(router, picks(5, 0))
    router.observe(WorkerRemoved("w0"), 0.0)
    router.observe(WorkerAdded("w0"), 0.0)
    assert in_flight(router) == [0, 0]
    # The peer has it removed as well, and then sends to the new one.
    tell(router, picks(1, 0))
    assert in_flight(router) == [0, 1]
    router.observe(PeerLost("other"), 0.0)
    assert in_flight(router) == [0, 0]


def test_with_all_peers_heard_nobody_else_is_supposed_to_send() -> None:
    """Of the balancers that a worker reports to, those that tell are known, and the others supposed to do as we do."""
    router = make_router(1)
    tell(router)
    for number, (balancers, supposed) in enumerate(((2, 1), (3, 2), (1, 1)), 10):
        router.observe(report("w0", number, [model()], balancers=balancers), 0.0)
        assert router.fleet.queue.balancers[0] == supposed
    router.observe(PeerLost("other"), 0.0)
    router.observe(report("w0", 20, [model()], balancers=2), 0.0)
    assert router.fleet.queue.balancers[0] == 2


def waits(router: Router, row: int = 0) -> float:
    return float(router.fleet.prefixes.peer_waiting_tokens[row])


def test_tokens_that_wait_are_told_and_summed_and_reports_do_not_forget_them() -> None:
    router = make_router(2)
    for peer, tokens in (("other", 300.0), ("third", 40.0), ("other", 200.0)):
        router.observe(PeerTold(peer, (), (("w0", tokens), ("w9", 1.0))), 0.0)
    router.observe(report("w0", 10, [model()], balancers=3), 0.0)
    assert waits(router) == 240
    router.observe(PeerLost("other"), 0.0)
    assert waits(router) == 40


def test_a_peer_is_told_of_tokens_that_wait_once() -> None:
    router = make_router(2)
    own = OwnPicks(router.fleet)
    told = own.nothing_told()
    router.fleet.prefixes.waiting_tokens[1] = 7
    assert [(own.since(told, MOST), own.waits_since(told)) for _ in range(2)] == [([], [("w1", 7.0)]), ([], [])]


def test_an_agent_need_not_ask_a_balancer_that_is_told_all() -> None:
    router = make_router(1)
    assert not is_told_all(router.fleet, "w0")
    tell(router)
    router.observe(report("w0", 10, [model()], balancers=2), 0.0)
    assert is_told_all(router.fleet, "w0")
    assert not is_told_all(router.fleet, "w9")
    router.observe(report("w0", 11, [model()], balancers=3), 0.0)
    assert not is_told_all(router.fleet, "w0")


def test_what_a_hostile_peer_tells_neither_takes_long_nor_grows_nor_ends_own_requests() -> None:
    router = make_router(1)
    router.route(Request("m"), 0.0)
    for k in range(20):
        tell(router, picks(200_000, 0), *(picks(200_000, 0, f"w{k}-{i}") for i in range(50)))
        router.observe(PeerTold("other", (), tuple((f"w{k}-{i}", 1.0) for i in range(50))), 0.0)
        assert in_flight(router) == [1001]
        tell(router, picks(200_000, 200_000))
        assert in_flight(router) == [1]
        tell(router, picks(0, 0))
    assert router._told._waits == {"other": {}}
    assert len(router._told._picks["other"]) == 1


def test_workers_that_are_gone_are_forgotten() -> None:
    router = make_router(2)
    tell(router, picks(1, 0), picks(1, 0, "w1"))
    router.observe(PeerTold("other", (), (("w1", 1.0),)), 0.0)
    router.observe(WorkerRemoved("w1"), 0.0)
    tell(router)
    assert list(router._told._picks["other"]) == [("w0", "m")]
    assert router._told._waits == {"other": {}}


@dataclass
class Peer:
    """A balancer that tells another one, over a stream that carries what it likes of it."""

    router: Router = field(default_factory=lambda: make_router(3))
    numbers: list[int] = field(default_factory=list)


@given(
    st.lists(st.tuples(st.sampled_from(["send", "send", "end", "tell", "tell", "reconnect"]), st.integers(0, 2))),
    st.sampled_from([1, 2, MOST]),
)
def test_whenever_all_is_told_the_other_has_in_flight_what_the_peer_has(
    steps: list[tuple[str, int]], most: int
) -> None:
    peer, other = Peer(), make_router(3)
    own = OwnPicks(peer.router.fleet)
    told = own.nothing_told()
    column = peer.router.fleet.models["m"]
    for what, w in [*steps, ("all", 0)]:
        if what == "send":
            peer.router.fleet.sent(f"w{w}", column, 1.0 + w, 0.0)
        elif what == "end" and peer.router.fleet.own_requests(w).any():
            peer.router.fleet.ended(f"w{w}", column, 1.0 + w, 0.0)
        elif what == "tell":
            tell(other, *own.since(told, most))
        elif what == "reconnect":
            told = own.nothing_told()
        while what == "all" and (rest := own.since(told, most)):
            tell(other, *rest)
    for name in ("in_flight", "known_requests", "known_rows"):
        np.testing.assert_allclose(getattr(other.fleet.queue, name), getattr(peer.router.fleet.queue, name))
    assert not other.fleet.own_requests(0).any()
