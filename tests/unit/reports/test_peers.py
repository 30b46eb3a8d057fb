"""Balancers tell each other of their picks, over real connections."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.fleets import make_router
from support.reports import ReceivedEvents
from support.reports import calling as any_calling

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.reports import report_pb2
from balancer.reports.hearing import Hearing, decode_picks, decode_waits
from balancer.reports.telling import METHOD, Tellers
from balancer.scheduler.events import Finished, PeerLost, PeerPicks, PeerTold
from balancer.scheduler.peers import OwnPicks
from balancer.scheduler.router import Router
from policies.base import Request

Call = grpc.aio.StreamStreamCall[report_pb2.PicksTold, report_pb2.PeerAck]


@contextlib.asynccontextmanager
async def hearing(
    seen: ReceivedEvents, identity: int = 1, silence_s: float = 30.0
) -> AsyncIterator[tuple[Hearing, str]]:
    server = grpc.aio.server()
    found = Hearing(identity, seen, silence_s=silence_s)
    found.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield found, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


calling = functools.partial(any_calling, method=METHOD, message=report_pb2.PicksTold, answer=report_pb2.PeerAck)
"""A stream of our own."""


@contextlib.asynccontextmanager
async def telling(address: str, router: Router, looks: bool = False) -> AsyncIterator[None]:
    """`looks`: others than this process pick."""
    picks = OwnPicks(router.fleet)
    tellers = Tellers([address], None, 2, picks)
    router.moved = tellers.moved
    tasks = [asyncio.create_task(tellers.run())]
    if looks:
        router.moved = lambda: None
        tasks.append(asyncio.create_task(tellers.look(picks, lambda: True)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def last(event: object, sent: int, done: int) -> bool:
    return isinstance(event, PeerTold) and PeerPicks("w0", "m", sent, sent, done, done) in event.picks


@pytest.mark.parametrize("looks", [False, True], ids=["the process picks", "Envoys pick"])
async def test_a_peer_is_told_what_was_and_what_comes_and_hears_the_end(looks: bool) -> None:
    router, seen = make_router(1), ReceivedEvents()
    first = router.route(Request("m"), 0.0)
    async with hearing(seen) as (found, address):
        async with telling(address, router, looks):
            await seen.until(lambda event: last(event, 1, 0))
            assert found.counts.peers == 1
            router.route(Request("m"), 0.0)
            await seen.until(lambda event: last(event, 2, 0))
            router.observe(Finished(first.number, "w0", 0.1, True), 0.1)
            await seen.until(lambda event: last(event, 2, 1))
        await seen.until(lambda event: event == PeerLost("2"))
        assert found.counts.peers == 0


async def test_where_nothing_is_sent_a_peer_still_shows_that_it_lives() -> None:
    seen = ReceivedEvents()
    async with hearing(seen) as (_, address), telling(address, make_router(1)):
        for after in range(3):
            await seen.until(lambda event: event == PeerTold("2", ()), after=after)


async def test_a_balancer_that_meets_itself_is_no_peer() -> None:
    seen = ReceivedEvents()
    async with hearing(seen, identity=2) as (found, address), calling(address) as call:
        await call.write(report_pb2.PicksTold(balancer=2))
        assert await call.code() is grpc.StatusCode.ALREADY_EXISTS
        assert found.counts.peers == 0
    assert not seen.events


async def test_the_newest_stream_of_a_peer_is_the_peer() -> None:
    seen = ReceivedEvents()
    async with hearing(seen) as (found, address), calling(address) as first:
        await first.write(report_pb2.PicksTold(balancer=7))
        await seen.until(lambda event: event == PeerTold("7", ()))
        async with calling(address) as second:
            await second.write(report_pb2.PicksTold(balancer=7))
            await seen.until(lambda event: event == PeerTold("7", ()), after=1)
            assert await first.code() is not grpc.StatusCode.OK
            assert found.counts.peers == 1
            assert PeerLost("7") not in seen.events
            await second.done_writing()
            await seen.until(lambda event: event == PeerLost("7"))


async def test_who_says_nothing_is_heard_no_longer() -> None:
    seen = ReceivedEvents()
    async with hearing(seen, silence_s=0.1) as (_, address), calling(address) as call:
        await call.write(report_pb2.PicksTold(balancer=7))
        await seen.until(lambda event: event == PeerLost("7"))
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


HOSTILE: dict[str, Any] = {
    "picks.sent": {"sent": 2**60, "done": 2**60},
    "picks.done": {"sent": 1, "done": 2},
    "picks.worker": {"worker": "w" * 300},
    "picks.model": {"model": "m" * 300},
    "picks.sent_rows": {"sent_rows": float("nan")},
    "picks.done_rows": {"done_rows": -1.0},
}


@pytest.mark.parametrize("field", HOSTILE)
def test_what_is_out_of_bounds_is_refused_by_its_field(field: str) -> None:
    with pytest.raises(OutOfBoundsError, match=f"^{field}: .* is refused") as refused:
        decode_picks(report_pb2.PicksTold(picks=[report_pb2.WorkerPicks(**HOSTILE[field])]))
    assert refused.value.field == field


@pytest.mark.parametrize(("field", "told"), [("waits.worker", ("w" * 300, 1)), ("waits.waiting_tokens", ("w", -1))])
def test_tokens_out_of_bounds_are_refused(field: str, told: tuple[str, float]) -> None:
    waits = [report_pb2.WorkerWaits(worker=told[0], waiting_tokens=told[1])]
    with pytest.raises(OutOfBoundsError, match=f"^{field}: .* is refused"):
        decode_waits(report_pb2.PicksTold(waits=waits))


def test_no_peer_has_more_in_flight_than_a_balancer_awaits_nor_tells_more_at_once_than_may_be() -> None:
    for picks in (
        [report_pb2.WorkerPicks(sent=bounds.MAX_IN_FLIGHT + 1)],
        [report_pb2.WorkerPicks()] * (bounds.MAX_PICKS_TOLD + 1),
    ):
        with pytest.raises(OutOfBoundsError):
            decode_picks(report_pb2.PicksTold(picks=picks))


async def test_a_message_out_of_bounds_ends_its_stream() -> None:
    seen, fields = ReceivedEvents(), list[str]()
    async with hearing(seen) as (found, address), calling(address) as call:
        found._refused = fields.append
        await call.write(report_pb2.PicksTold(balancer=7))
        await call.write(report_pb2.PicksTold(picks=[report_pb2.WorkerPicks(done=1)]))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await seen.until(lambda event: event == PeerLost("7"))
    assert fields == ["picks.done"]
