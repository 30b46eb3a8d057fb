"""Whoever is held leaves once, in the order that was promised, and what was planned for it leaves no trace."""

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fleets import model, report

from balancer.kernel.settings import HeldModel, HoldingSettings, Limits, Order, Settings
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Event, Finished, ReportsLost, WorkerAdded, WorkerRemoved
from balancer.scheduler.holding.waiting import Departure, Waiting
from balancer.scheduler.router import Router
from policies import BUILTIN
from policies.base import FleetView, FloatArray, HeldRequests, Request
from policies.least_requests import LeastRequests

NAMES = ["a", "b", "c"]
MODELS = ["m", "n"]

workers = st.sampled_from(NAMES)
reports = st.builds(
    lambda worker, number, pending, balancers: report(
        worker,
        number,
        [model(name, pending=pending, executing=1.0, max_batch_rows=4, instances=2) for name in MODELS],
        balancers=balancers,
    ),
    workers,
    st.integers(0, 50),
    st.integers(0, 9),
    st.integers(1, 3),
)
membership = st.one_of(
    st.builds(WorkerAdded, workers, draining=st.booleans()),
    st.builds(WorkerRemoved, workers),
    st.builds(ReportsLost, workers),
)
finishes = st.builds(Finished, st.integers(0, 60), st.sampled_from(NAMES), st.floats(0, 9), st.booleans())
requests = st.builds(
    Request,
    st.sampled_from(MODELS),
    rows=st.integers(1, 4),
    priority=st.integers(0, 3),
    deadline_s=st.sampled_from([math.inf, 0.05, 0.5]),
    tenant=st.sampled_from(["", "x", "y"]),
)
leaving = st.integers(0, 20)
steps = st.lists(st.one_of(reports, finishes, membership, leaving, requests, requests, requests), max_size=60)
holdings = st.builds(
    HoldingSettings,
    models=st.dictionaries(
        st.sampled_from(MODELS), st.builds(HeldModel, st.sampled_from([0.0, 1.0]), st.booleans()), min_size=1
    ),
    order=st.sampled_from(["arrival", "deadline", "priority", "fair", "shortest"]),
    detour=st.sampled_from([1.0, 1.5, math.inf]),
    max_requests=st.sampled_from([100, 3]),
    max_bytes=st.sampled_from([1000, 5]),
    max_s=st.sampled_from([10.0, 0.3]),
    overflow=st.sampled_from(["refuse", "place"]),
)


def fleet_state(router: Router) -> dict[str, Any]:
    fleet = router.fleet
    return {
        f"{part}.{field.name}": getattr(getattr(fleet, part), field.name).copy()
        for part in ("queue", "service", "latency", "tokens")
        for field in dataclasses.fields(getattr(fleet, part))
    }


class Front:
    """Holds requests as a front end does, and checks that each leaves once."""

    def __init__(self, name: str, holding: HoldingSettings, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self.router = Router(BUILTIN[name](), Settings(holding=holding, limits=limits, reports_required=False))
        self.waiting = Waiting(self.router)
        self.held: dict[int, Request] = {}
        self.now_s = 0.0

    def ask(self, request: Request) -> Decision | RoutingError | None:
        """The answer, or None where it is held."""
        try:
            if not self.waiting.holds(request):
                return self.router.route(request, self.now_s)
            place = self.waiting.hold(request, self.now_s, size_bytes=1)
        except RoutingError as error:
            return error
        assert place not in self.held
        self.held[place] = request
        return None

    def let_go(self, gone: list[Departure]) -> list[tuple[Request, Decision | RoutingError]]:
        return [(self.held.pop(left.place), left.outcome) for left in gone]

    def dispatch(self) -> list[tuple[Request, Decision | RoutingError]]:
        gone = self.let_go(self.waiting.expire(self.now_s))
        before, number = fleet_state(self.router), self.router.next_number
        found = self.let_go(self.waiting.dispatch(self.now_s))
        if self.router.next_number == number:
            for name, array in fleet_state(self.router).items():
                np.testing.assert_array_equal(array, before[name], err_msg=name)
        self.check()
        return gone + found

    def check(self) -> None:
        assert self.waiting.waiters.keys() == self.held.keys()
        assert self.waiting.size_bytes == len(self.held)
        assert not self.router.failures


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(sorted(BUILTIN)), holdings, st.sampled_from([Limits(), Limits(4.0), Limits(shed_late=True)]), steps
)
def test_whoever_is_held_leaves_once_and_plans_leave_no_trace(
    name: str, holding: HoldingSettings, limits: Limits, some: list[Event | Request | int]
) -> None:
    front = Front(name, holding, limits)
    for worker in NAMES[:2]:
        front.router.observe(WorkerAdded(worker), 0.0)
        front.router.observe(report(worker, 0, [model(each, max_batch_rows=4) for each in MODELS]), 0.0)
    left: Counter[str] = Counter()
    for step in some:
        front.now_s += 0.05
        if isinstance(step, Request):
            front.ask(step)
        elif isinstance(step, int):
            front.waiting.withdraw(step)
            front.held.pop(step, None)
        else:
            front.router.observe(step, front.now_s)
        left.update(type(outcome).__name__ for _, outcome in front.dispatch())
    front.let_go(front.waiting.place_all(front.now_s))
    front.check()
    assert not front.held
    assert front.waiting.due_s == math.inf


def one_worker(order: Order, **fields: Any) -> Front:
    """That executes one request of a model that does not batch, in 100 ms, and holds all others."""
    front = Front("least_requests", HoldingSettings({"m": HeldModel(0.0)}, order=order, **fields))
    front.router.observe(WorkerAdded("a"), 0.0)
    seconds = [(1, 20, 2.0)]
    front.router.observe(report("a", 0, [model("m", batches=[(1, 10, 0.0)])]), 0.0)
    front.router.observe(report("a", 1, [model("m", batches=seconds)]), 0.0)
    return front


def served(front: Front, count: int, then: list[tuple[float, Request]] | None = None) -> list[Request]:
    """Who executes, one after the other, each for 100 ms; `then`: who comes later."""
    order: list[Request] = []
    coming = sorted(then or [], key=lambda one: one[0])
    running: Decision | None = None
    while len(order) < count:
        while coming and coming[0][0] <= front.now_s + 1e-9:
            assert front.ask(coming.pop(0)[1]) is None
        for request, outcome in front.dispatch():
            assert isinstance(outcome, Decision), outcome
            assert running is None
            order.append(request)
            running = outcome
        front.now_s += 0.1
        if running is not None:
            front.router.observe(Finished(running.number, running.worker, 0.1, True), front.now_s)
            running = None
    return order


@pytest.mark.parametrize("order", ["arrival", "deadline", "fair"])
def test_without_anything_to_tell_them_apart_they_leave_as_they_came(order: Order) -> None:
    front = one_worker(order)
    requests = [Request("m", key=number) for number in range(12)]
    front.router.configure(front.router.policy, dataclasses.replace(front.router.settings, sticky_keys=False))
    for request in requests:
        assert front.ask(request) is None
    assert served(front, 12) == requests


def test_the_earliest_deadline_goes_first_and_what_cannot_be_met_last() -> None:
    front = one_worker("deadline")
    hopeless, late, soon = (Request("m", deadline_s=s) for s in (0.01, 5.0, 0.35))
    unnamed = Request("m")
    for request in (hopeless, late, unnamed, soon):
        assert front.ask(request) is None
    assert served(front, 4) == [soon, unnamed, late, hopeless]


def test_the_most_important_goes_first_until_another_has_waited_for_long() -> None:
    front = one_worker("priority", longest_wait_s=0.45)
    unimportant, important = Request("m", priority=3), Request("m", priority=1)
    assert front.ask(unimportant) is None
    later = [(0.1 * i, important) for i in range(10)]
    assert served(front, 8, later).index(unimportant) == 5


def test_the_shortest_goes_first() -> None:
    front = Front("least_requests", HoldingSettings({"m": HeldModel(0.0)}, order="shortest"))
    front.router.observe(WorkerAdded("a"), 0.0)
    front.router.observe(report("a", 0, [model("m", max_batch_rows=4, batches=[(1, 10, 1.0), (4, 10, 2.0)])]), 0.0)
    large, small = Request("m", rows=4), Request("m", rows=1)
    front.ask(large)
    assert [outcome for _, outcome in front.dispatch()]
    for request in (large, small, large, small):
        assert front.ask(request) is None
    assert served(front, 0) == []
    queue = [front.held[place] for place in front.waiting.places()]
    assert queue == [small, small, large, large]


def test_a_queue_that_is_full_turns_away_who_stands_last() -> None:
    front = one_worker("fair", max_requests=10)
    many, few = Request("m", tenant="many"), Request("m", tenant="few")
    gone = []
    for i in range(220):
        assert front.ask(few if i % 11 == 0 else many) is None
        gone += front.dispatch()
    assert len(front.held) == 10
    assert Counter(request.tenant for request in front.held.values())["few"] >= 4
    turned_away = [outcome for _, outcome in gone if isinstance(outcome, RoutingError)]
    assert len(turned_away) == 220 - 10 - 1
    assert "10 requests" in str(turned_away[0])


@pytest.mark.parametrize(("weights", "share"), [({}, 0.5), ({"few": 3.0}, 0.75)])
def test_two_tenants_get_their_shares_though_one_sends_ten_times_as_much(
    weights: dict[str, float], share: float
) -> None:
    front = one_worker("fair", weights=weights, max_s=1e9)
    many, few = Request("m", tenant="many"), Request("m", tenant="few")
    requests = [few if i % 11 == 0 else many for i in range(990)]
    for request in requests:
        assert front.ask(request) is None
    count = int(90 / share)
    found = served(front, count)
    assert found.count(few) / count == pytest.approx(share, abs=0.05)


def test_a_tenant_that_was_away_is_owed_nothing() -> None:
    front = one_worker("fair", max_s=1e9)
    one, other = Request("m", tenant="one"), Request("m", tenant="other")
    for _ in range(40):
        assert front.ask(one) is None
    assert served(front, 20) == [one] * 20
    for _ in range(20):
        assert front.ask(other) is None
    found = served(front, 20)
    assert found.count(other) == pytest.approx(10, abs=1)


def test_more_tenants_than_there_are_numbers_for_share_one() -> None:
    front = one_worker("fair", max_requests=3000)
    for number in range(1500):
        assert front.ask(Request("m", tenant=str(number))) is None
    assert len(served(front, 10)) == 10


class LargestFirst(LeastRequests):
    """The most rows go first; those with three rather wait."""

    name = "largest_first"

    def holds(self, request: Request, fleet: FleetView) -> bool:
        return request.rows == 3

    def urgency(self, held: HeldRequests, fleet: FleetView) -> FloatArray:
        return held.rows


class Broken(LeastRequests):
    """Raises wherever it may say something of those who wait."""

    name = "broken"

    def holds(self, request: Request, fleet: FleetView) -> bool:
        raise RuntimeError("as asked")

    def urgency(self, held: HeldRequests, fleet: FleetView) -> FloatArray:
        return np.array([np.nan])


def test_a_policy_that_fails_keeps_nobody_waiting_and_leaves_no_trace() -> None:
    front = one_worker("arrival")
    front.router.configure(Broken(), front.router.settings)
    requests = [Request("m", tenant=str(number)) for number in range(3)]
    for request in requests:
        assert front.ask(request) is None
    (first,) = front.waiting.dispatch(0.0)
    assert isinstance(first.outcome, Decision)
    assert front.router.failures["broken"] >= 2
    assert front.router.fleet.queue.in_flight.sum() == 1


def test_a_policy_says_who_goes_first_and_who_rather_waits() -> None:
    front = one_worker("arrival")
    alone = HoldingSettings({"m": HeldModel(0.0, forming=False)}, order="arrival")
    front.router.configure(LargestFirst(), Settings(holding=alone))
    front.router.observe(report("a", 2, [model("m", max_batch_rows=4)]), 0.0)
    one, two, three = (Request("m", rows=rows) for rows in (1, 2, 3))
    for request in (one, three, two):
        assert front.ask(request) is None
    assert served(front, 2) == [two, one]
    assert list(front.held.values()) == [three]
