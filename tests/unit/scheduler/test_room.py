"""How many requests the fleet has room for."""

from support.fleets import make_router, model, report

from balancer.scheduler.events import WorkerRemoved
from balancer.scheduler.room import room
from policies.base import Request


def test_a_worker_has_room_for_two_full_batches_an_instance() -> None:
    router = make_router(3, models=[model(max_batch_rows=8, instances=2), model("single")])
    found = room(router.fleet, 0.0)
    assert found["m"] == (3 * 2 * 8 * 2, 0.0)
    assert found["single"].requests == 3 * 2


def test_requests_of_many_rows_take_as_much_room_as_they_have_rows() -> None:
    router = make_router(2, models=[model(max_batch_rows=8)])
    router.route(Request("m", rows=4.0), 0.0)
    assert room(router.fleet, 0.0)["m"] == (2 * 2 * 8 / 4, 1.0)
    router.route(Request("m", rows=100.0), 0.0)
    assert room(router.fleet, 0.0)["m"].requests == 2, "one at each worker always fits"


def test_workers_that_get_nothing_have_no_room() -> None:
    router = make_router(3)
    one = room(router.fleet, 0.0)["m"].requests / 3
    router.observe(report("w0", 2, draining=True), 0.1)
    assert room(router.fleet, 0.1)["m"].requests == 2 * one
    router.observe(report("w1", 2, [model(ready=False)]), 0.2)
    assert room(router.fleet, 0.2)["m"].requests == one
    router.observe(WorkerRemoved("w2"), 0.3)
    assert room(router.fleet, 0.3)["m"].requests == 0


def test_a_generating_worker_has_room_for_what_its_memory_holds() -> None:
    def holding(held: int, number: int) -> float:
        router.observe(report("w0", number, [model(memory_tokens=10_000, held_tokens=held)]), 0.0)
        return room(router.fleet, 0.0)["m"].requests

    router = make_router(1, models=[model(memory_tokens=10_000)])
    assert holding(0, 2) == 1, "what one takes, nobody knows yet"
    for _ in range(4):
        router.route(Request("m"), 0.0)
    assert holding(1_000, 3) <= 2 * 4 + 1, "it grows step by step"
    assert holding(6_000, 4) < holding(1_000, 5)
    assert holding(9_500, 6) < 4 + 1, "beyond nine tenths some have to end first"
