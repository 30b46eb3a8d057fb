import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.reports import ReceivedEvents, collecting, report_of
from support.waiting import eventually

from balancer import bounds
from balancer.reports import report_pb2
from balancer.reports.collector import SERVICE
from balancer.reports.replicas import Replicas, peers
from balancer.reports.sending import WINDOW
from balancer.scheduler.events import Event, Report, ReportsLost, SentPrompt
from balancer.scheduler.peers import AtWorker, UntoldPrompts

_PATIENCE_S = 60.0


@contextlib.asynccontextmanager
async def running(replicas: Replicas, *, offering: bool = True, asking: bool = False) -> AsyncIterator[None]:
    """The streams run, and are offered a report every 10 ms; `asking`: balancers are asked what they have in flight."""

    async def offer() -> None:
        for number in itertools.count():
            if asking:
                await replicas.ask(_PATIENCE_S)
            replicas.offer(report_of("w", number))
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(replicas.run()), *([asyncio.create_task(offer())] if offering else [])]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_restarted_balancer_is_found_again() -> None:
    first, second = ReceivedEvents(), ReceivedEvents()
    async with contextlib.AsyncExitStack() as stack:
        async with collecting(first) as (_, address):
            await stack.enter_async_context(running(Replicas([address])))
            before = await first.report(lambda report: report.number > 20)
        async with collecting(second, port=int(address.rpartition(":")[2])):
            again = await second.report(lambda report: True)
    assert again.number > before.number
    assert again.models == report_of("w", again.number).models


async def test_a_balancer_that_is_not_there_yet_is_waited_for() -> None:
    received = ReceivedEvents()
    async with collecting(received) as (_, address):
        pass
    async with running(Replicas([address])), collecting(received, port=int(address.rpartition(":")[2])):
        await received.report(lambda report: True)


async def test_each_balancer_receives_what_all_others_have_in_flight() -> None:
    counts: list[dict[str, int]] = [{"a": 1}, {"a": 20, "b": 3}, {}]
    received = [ReceivedEvents() for _ in counts]
    async with contextlib.AsyncExitStack() as stack:
        balancers = [
            await stack.enter_async_context(collecting(each, at_worker=lambda _, i=i: AtWorker(counts[i], 10.0 * i)))
            for i, each in enumerate(received)
        ]
        replicas = Replicas([address for _, address in balancers])
        await stack.enter_async_context(running(replicas, asking=True))
        reports = [await each.report(lambda report: bool(report.peers_in_flight)) for each in received]
        assert [dict(each.peers_in_flight or ()) for each in reports] == [
            {"a": 20, "b": 3},
            {"a": 1},
            {"a": 21, "b": 3},
        ]
        assert [each.peers_waiting_tokens for each in reports] == [30.0, 20.0, 10.0]

        counts[1] = {"b": 2}
        await received[0].report(lambda report: report.peers_in_flight == (("b", 2),))
        counts[1] = {}
        await received[0].report(lambda report: report.peers_in_flight == ())


async def test_each_balancer_hears_of_the_prompts_that_others_sent_and_one_that_comes_late_of_all() -> None:
    sent = [SentPrompt("m", 100.0 + i, ((2**64 - 1 - i, 64.0),)) for i in range(2)]
    untold, received, listed = [UntoldPrompts() for _ in sent], [ReceivedEvents() for _ in range(3)], {"w": False}
    async with contextlib.AsyncExitStack() as stack:
        balancers = [
            await stack.enter_async_context(collecting(each, prompts=mine.take, knows=lambda _: True))
            for mine, each in zip(untold, received[:2], strict=True)
        ]
        async with collecting(received[2]) as (_, late):
            pass
        replicas = Replicas([*(address for _, address in balancers), late])
        await stack.enter_async_context(running(replicas, asking=True))
        for each in received[:2]:
            await each.report(lambda report: True)
        for mine, prompt in zip(untold, sent, strict=True):
            mine.add("w", prompt)
        for each, prompt in zip(received[:2], reversed(sent), strict=True):
            report = await each.report(lambda report: bool(report.peers_prompts))
            assert report.peers_prompts == (prompt,)
        port = int(late.rpartition(":")[2])
        await stack.enter_async_context(collecting(received[2], port=port, knows=listed.__getitem__))
        await received[2].report(lambda report: report.balancers > 0, after=20)
        assert not any(event.peers_prompts for event in received[2].events if isinstance(event, Report))
        listed["w"] = True
        report = await received[2].report(lambda report: bool(report.peers_prompts))
        assert set(report.peers_prompts) == set(sent)
        # None of it is told again.
        told = [event.peers_prompts for each in received for event in each.events if isinstance(event, Report)]
        assert sum(map(len, told)) == 1 + 1 + 2


async def test_what_a_balancer_had_in_flight_goes_with_its_stream() -> None:
    first, second = ReceivedEvents(), ReceivedEvents()
    async with collecting(first) as (_, address), contextlib.AsyncExitStack() as stack:
        async with collecting(second, at_worker=lambda _: AtWorker({"a": 5})) as (_, other):
            await stack.enter_async_context(running(Replicas([address, other]), asking=True))
            await first.report(lambda report: report.peers_in_flight == (("a", 5),))
        await first.report(lambda report: report.peers_in_flight is None, after=len(first.events))


async def test_a_balancer_allows_pauses_while_no_requests_flow_and_says_at_once_when_they_do() -> None:
    pause_s, flows, received = 0.3, asyncio.Event(), ReceivedEvents()
    async with collecting(received, pause_s=lambda: pause_s) as (collector, address):
        replicas = Replicas([address], flows=flows.set)
        async with running(replicas, offering=False):
            await flows.wait()  # a stream begins with all that there is
            assert replicas.pause_s == 0.0
            replicas.offer(report_of("w", 0))
            await eventually(lambda: replicas.pause_s == 0.3)
            flows.clear()
            pause_s = 0.0
            await collector.wake()
            await flows.wait()
            assert replicas.pause_s == 0.0


async def test_balancers_that_are_told_of_each_others_picks_are_asked_once_they_are_not() -> None:
    told, first, second = {"w": True}, ReceivedEvents(), ReceivedEvents()
    options = {"at_worker": lambda _: AtWorker({"a": 5}), "told_all": told.__getitem__}
    async with (
        collecting(first, **options) as (collector, address),
        collecting(second, **options) as (_, other),
        running(Replicas([address, other]), asking=True),
    ):
        before = await first.report(lambda report: report.number > 30)
        assert (before.peers_in_flight, collector.counts.questions) == (None, 0)
        told["w"] = False
        await first.report(lambda report: report.peers_in_flight == (("a", 5),))
        told["w"] = True
        await first.report(lambda report: report.peers_in_flight is None, after=len(first.events))


async def test_a_lone_balancer_gets_no_question() -> None:
    received = ReceivedEvents()
    async with collecting(received) as (collector, address), running(Replicas([address]), asking=True):
        report = await received.report(lambda report: report.number > 20)
        assert report.peers_in_flight is None
        assert collector.counts.questions == 0


async def test_a_balancer_whose_answers_are_out_of_bounds_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    first, second = ReceivedEvents(), ReceivedEvents()
    too_many = {f"m{i}": 1 for i in range(bounds.MAX_MODELS_IN_FLIGHT + 1)}
    async with (
        collecting(first) as (_, address),
        collecting(second, at_worker=lambda _: AtWorker(too_many)) as (odd, other),
        running(Replicas([address, other]), asking=True),
    ):
        # It hears what the other has, which hears nothing of it.
        await second.report(lambda report: report.peers_in_flight == ())
        await eventually(lambda: odd.counts.questions > 2)
        assert all(report.peers_in_flight is None for report in first.events if isinstance(report, Report))
    warnings = [record.getMessage() for record in caplog.records if "its answers are left out" in record.getMessage()]
    why = "in_flight: '257 entries' is refused; it has 256 at most"
    assert warnings == [f"balancer {other}: its answers are left out: {why}"]


class FakeSlowBalancer:
    """Takes reports only while it is let, and acknowledges each."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.opened = asyncio.Event()
        self.received = ReceivedEvents()

    async def stream(self, _: object, context: Any) -> None:
        self.opened.set()
        received = 0
        while True:
            await self.let.wait()
            message = await context.read()
            if message is grpc.aio.EOF:
                return
            assert not message.question  # it has not said that it answers
            received += 1
            self.received(Report(message.worker, message.incarnation, message.number, message.ready))
            await context.write(report_pb2.ReportAck(received=received))


async def test_a_slow_balancer_gets_the_newest_and_no_queue() -> None:
    slow = FakeSlowBalancer()
    handler = grpc.stream_stream_rpc_method_handler(
        slow.stream,
        request_deserializer=report_pb2.WorkerReport.FromString,
        response_serializer=report_pb2.ReportAck.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    replicas = Replicas([f"127.0.0.1:{port}"])
    try:
        async with running(replicas, offering=False):
            number = 0
            while not slow.opened.is_set() or number < 20 * WINDOW:
                replicas.offer(report_of("w", number))
                number += 1
                await asyncio.sleep(0)
            last = number - 1
            slow.let.set()
            await slow.received.report(lambda report: report.number == last)
    finally:
        await server.stop(None)
    assert len(slow.received.events) <= WINDOW + 1


async def test_every_address_of_a_name_gets_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ReceivedEvents(), ReceivedEvents()
    addresses = ["127.0.0.1"]

    async def fake_getaddrinfo(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        if host != "balancer.test":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fake_getaddrinfo)
    monkeypatch.setattr("balancer.reports.addresses._RESOLVE_PERIOD_S", 0.05)
    async with collecting(first) as (_, address):
        port = int(address.rpartition(":")[2])
        replicas = Replicas([f"balancer.test:{port}", "nowhere.test:1"])
        async with collecting(second, address="127.0.0.2", port=port), running(replicas):
            await first.report(lambda report: report.number > 10)
            assert second.events == []
            addresses.append("127.0.0.2")
            await second.report(lambda report: True)
            # The collector has heard a report before its sender has heard that the stream stands.
            await eventually(lambda: replicas.connected == 2, "both replicas are connected")


async def test_an_address_that_left_its_name_is_dropped_when_its_stream_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    received = ReceivedEvents()
    addresses = ["127.0.0.1"]
    resolved = asyncio.Event()

    async def fake_getaddrinfo(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        resolved.set()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fake_getaddrinfo)
    monkeypatch.setattr("balancer.reports.addresses._RESOLVE_PERIOD_S", 0.02)
    lost = asyncio.Event()

    def on_event(event: Event) -> None:
        received(event)
        if isinstance(event, ReportsLost):
            lost.set()

    async with contextlib.AsyncExitStack() as stack:
        async with collecting(on_event) as (_, address):
            replicas = Replicas([f"balancer.test:{address.rpartition(':')[2]}"])
            await stack.enter_async_context(running(replicas))
            await received.report(lambda report: True)
            addresses[:] = ["127.0.0.3"]
            resolved.clear()
            await resolved.wait()
            # Still reported to: a name server's mistake must not cut a stream that works.
            await received.report(lambda report: True, after=len(received.events) + 5)
        await lost.wait()
        while "127.0.0.1" in {address.rpartition(":")[0] for address in replicas.addresses}:
            await asyncio.sleep(0.02)


def test_a_sum_of_too_many_models_or_without_one_of_the_balancers_is_none() -> None:
    half = bounds.MAX_MODELS_IN_FLIGHT // 2
    first, second = ({f"{name}{i}": 1 for i in range(half)} for name in "ab")
    assert len(peers("x", {"y": AtWorker(first), "z": AtWorker(second)})[0] or ()) == bounds.MAX_MODELS_IN_FLIGHT
    assert peers("x", {"y": AtWorker(first), "z": AtWorker({**second, "one more": 1})})[0] is None
    assert peers("x", {"y": None, "z": AtWorker(first)})[0] is None
