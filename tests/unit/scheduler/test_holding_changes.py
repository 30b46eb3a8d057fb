"""Requests that are held while `holding` changes: who waits, waits on by the order in force. Time is simulated."""

import heapq
from collections import Counter
from itertools import count
from typing import get_args

import pytest
from support.fleets import model, report
from support.fronts import one_of

from balancer.extproc.picker import Holding
from balancer.kernel.settings import HeldModel, HoldingSettings, Order, Settings
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.events import Finished, WorkerAdded
from balancer.scheduler.holding.waiting import Waiting
from balancer.scheduler.router import Router
from policies.base import Request
from policies.expected_latency import ExpectedLatency

ORDERS: tuple[Order, ...] = get_args(Order)


def held_by(order: Order, *models: str, window_batches: float = 1.0) -> Settings:
    return Settings(holding=HoldingSettings({name: HeldModel(window_batches) for name in models}, order=order))


def fleet(settings: Settings, workers: int, most_rows: int = 1) -> Router:
    router = Router(ExpectedLatency(), settings)
    for number in range(workers):
        router.observe(WorkerAdded(f"w{number}"), 0.0)
        router.observe(report(f"w{number}", 0, [model("m", max_batch_rows=most_rows), model("other")]), 0.0)
    return router


@pytest.mark.parametrize("before", ORDERS)
@pytest.mark.parametrize("after", ORDERS)
async def test_who_waits_waits_on_by_the_order_in_force(before: Order, after: Order) -> None:
    router = fleet(held_by(before, "m", window_batches=0), 1)
    holding = Holding(router, lambda: 1.0)
    running = holding.ask(Request("m"), None, 0)
    futures = {
        f"{tenant}{number}": holding.ask(
            Request("m", tenant=tenant, rows=rows, priority=priority, deadline_s=30.0 - 7 * number), None, 0
        )
        for number, (tenant, rows, priority) in enumerate(
            [("many", 1, 3), ("many", 1, 3), ("many", 1, 2), ("few", 1, 1)]
        )
    }
    router.configure(router.policy, held_by(after, "m", window_batches=0))
    left, finished = [], running
    for _ in range(4):
        holding.dispatch()
        assert len(holding.waiting) == 4 - len(left), "nobody is placed without room"
        decision = finished.result()
        assert isinstance(decision, Decision)
        router.observe(Finished(decision.number, "w0", 0.01, True), 1.0)
        holding.dispatch()
        (name,) = (name for name, future in futures.items() if future.done() and name not in left)
        left.append(name)
        finished = futures[name]
    assert (
        left
        == {
            "arrival": ["many0", "many1", "many2", "few3"],
            "deadline": ["few3", "many2", "many1", "many0"],
            "priority": ["few3", "many2", "many0", "many1"],
            "fair": ["many0", "few3", "many1", "many2"],
            "shortest": ["many0", "many1", "many2", "few3"],
        }[after]
    )


async def test_whose_model_is_held_no_more_is_placed_and_others_wait_on() -> None:
    router = fleet(held_by("arrival", "m", "other", window_batches=0), 1)
    holding = Holding(router, lambda: 1.0)
    futures = [holding.ask(Request(name), None, 0) for name in ("m", "m", "other", "m")]
    router.configure(router.policy, held_by("arrival", "m", window_batches=0))
    holding.dispatch()
    assert [future.done() for future in futures] == [True, False, True, False]
    router.configure(router.policy, Settings())
    holding.dispatch()
    assert all(future.done() for future in futures)


def share_of_few(*orders: Order, workers: int = 2, most_rows: int = 1) -> tuple[float, float]:
    """The share of the answers that 4 clients have beside 40 of another tenant, each of which waits for its answer
    before it asks again, by the last of these orders; and the share of their requests that had to wait."""
    router = fleet(held_by(orders[0], "m"), workers, most_rows)
    waiting, number, ended, waited = Waiting(router), count(), Counter[str](), Counter[str]()
    events: list[tuple[float, int, str, Finished | None]] = [
        (0.001 * client, next(number), "few" if client % 11 == 0 else "many", None) for client in range(44)
    ]
    tenants: dict[int, str] = {}
    free_s = dict.fromkeys(router.fleet.names, 0.0)
    for order in orders:
        router.configure(router.policy, held_by(order, "m"))
        ended.clear()
        waited.clear()
        for _ in range(1200):
            now_s, _, tenant, outcome = heapq.heappop(events)
            if outcome is not None:
                router.observe(outcome, now_s)
                ended[tenant] += 1
            place = waiting.hold(Request("m", tenant=tenant), now_s)
            tenants[place] = tenant
            left = waiting.dispatch(now_s)
            waited[tenant] += place not in {each.place for each in left}
            for each in left:
                assert isinstance(each.outcome, Decision)
                worker = each.outcome.worker
                # A batch executes as long as one row.
                free_s[worker] = max(free_s[worker], now_s) + 0.01 / most_rows
                done = Finished(each.outcome.number, worker, free_s[worker] - now_s, True)
                heapq.heappush(events, (free_s[worker], next(number), each.request.tenant, done))
    return ended["few"] / ended.total(), waited["few"] / ended["few"]


@pytest.mark.parametrize("before", one_of("deadline", *(order for order in ORDERS if order != "deadline")))
def test_fair_gives_the_same_whichever_order_was_in_force_before(before: Order) -> None:
    assert share_of_few(before, "fair")[0] == pytest.approx(0.5, abs=0.02)


def test_a_tenant_with_fewer_clients_than_its_share_of_the_room_has_all_that_it_asks_for() -> None:
    share, waited = share_of_few("fair", workers=3, most_rows=4)
    assert waited < 0.3
    # Three workers that execute four rows each and have room for four more: 4 of 24 requests at the workers.
    assert share == pytest.approx(4 / 24, abs=0.02)
    assert share_of_few("arrival", workers=3, most_rows=4)[0] == pytest.approx(4 / 44, abs=0.02)
