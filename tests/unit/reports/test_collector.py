import asyncio
import contextlib
import dataclasses
import functools
import time
from typing import Any

import grpc
import pytest
from support.reports import ReceivedEvents, collecting, report_of
from support.reports import calling as any_calling

from balancer.reports import report_pb2
from balancer.reports.codec import ReportEncoder
from balancer.reports.collector import Collector
from balancer.reports.intake import Intake
from balancer.reports.sending import METHOD
from balancer.scheduler.events import Event, Report, ReportsLost, WorkerAdded
from balancer.scheduler.peers import AtWorker
from balancer.scheduler.router import Router
from policies.round_robin import RoundRobin

Call = grpc.aio.StreamStreamCall[report_pb2.WorkerReport, report_pb2.ReportAck]


calling = functools.partial(any_calling, method=METHOD, message=report_pb2.WorkerReport, answer=report_pb2.ReportAck)
"""A stream of our own."""


def received(report: Report, stream: int = 1) -> Report:
    """As the collector passes it on."""
    return dataclasses.replace(report, stream=stream)


async def status_of(call: Call) -> grpc.StatusCode:
    """How the collector ended the stream; gRPC tells only once all that came before was read."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code()


async def ended(call: Call) -> grpc.StatusCode:
    """End the stream as an agent does, and wait until the collector knows."""
    await call.done_writing()
    return await status_of(call)


async def test_reports_become_events_and_the_end_of_the_stream_too() -> None:
    seen = ReceivedEvents()
    async with collecting(seen) as (collector, address), calling(address) as call:
        encoder = ReportEncoder()
        reports = [report_of("w", number) for number in range(12)]
        messages = [encoder.encode(report) for report in reports]
        for message in messages:
            await call.write(message)
        acks = [await call.read(), await call.read()]
        assert await ended(call) is grpc.StatusCode.OK

    assert seen.events == [*map(received, reports), ReportsLost("w")]
    assert acks == [report_pb2.ReportAck(received=n, answered=0) for n in (1, 11)]
    counts = collector.counts
    assert (counts.streams, counts.reports, counts.invalid, counts.silent) == (0, 12, 0, 0)
    assert counts.bytes == sum(message.ByteSize() for message in messages)


@pytest.mark.parametrize("newer", [0, 1, 2], ids=["incarnation before", "same incarnation", "incarnation after"])
async def test_the_newest_stream_of_a_worker_is_the_worker(newer: int) -> None:
    """An agent may be back on a second stream before the first is known to be dead; its clock may be set back."""
    seen = ReceivedEvents()
    async with collecting(seen) as (collector, address), calling(address) as first, calling(address) as second:
        await first.write(ReportEncoder().encode(report_of("w", 0, incarnation=1)))
        await seen.report(lambda report: report.number == 0)
        await second.write(ReportEncoder().encode(report_of("w", 1, incarnation=newer)))
        again = await seen.report(lambda report: report.number == 1)
        assert again.stream == 2
        assert await status_of(first) is grpc.StatusCode.ABORTED
        assert "another stream speaks for worker 'w' now" in (await first.details() or "")
        assert ReportsLost("w") not in seen.events
        assert (collector.counts.taken_over, collector.counts.streams) == (1, 1)
        await ended(second)
        assert seen.events[-1] == ReportsLost("w")


async def test_a_question_is_answered_with_what_is_in_flight_at_the_streams_worker() -> None:
    seen, there = ReceivedEvents(), {"w": AtWorker({"a": 3, "b": 1}, 70.0), "v": AtWorker({"a": 7})}
    async with collecting(seen, at_worker=there.__getitem__) as (collector, address), calling(address) as call:
        await call.write(ReportEncoder().encode(report_of("w", 0)))
        await call.write(report_pb2.WorkerReport(question=True))
        acks = [await call.read(), await call.read()]
        there["w"] = AtWorker()
        await call.write(report_pb2.WorkerReport(question=True))
        acks.append(await call.read())
        await ended(call)
    counts_of_w = [report_pb2.InFlight(model="a", requests=3), report_pb2.InFlight(model="b", requests=1)]
    assert acks == [
        report_pb2.ReportAck(received=1, answered=0),
        report_pb2.ReportAck(received=1, answered=1, in_flight=counts_of_w, waiting_tokens=70.0),
        report_pb2.ReportAck(received=1, answered=2),
    ]
    assert (collector.counts.reports, collector.counts.questions) == (1, 2)
    assert seen.events == [received(report_of("w", 0)), ReportsLost("w")]


async def test_a_question_before_the_first_report_is_refused() -> None:
    """Nobody knows yet for whom it speaks, and whether it may."""
    refused: list[str] = []
    async with collecting(ReceivedEvents(), refused=refused.append) as (collector, address), calling(address) as call:
        await call.write(report_pb2.WorkerReport(worker="w", question=True))
        assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert "question: True is refused; it comes after a stream's first report" in (await call.details() or "")
    assert refused == ["question"]
    assert (collector.counts.invalid, collector.counts.questions) == (1, 0)


class FakeContext:
    """Of a call whose one report has come, and whose acknowledgements are on their way until `sent` is set."""

    def __init__(self, report: report_pb2.WorkerReport) -> None:
        self._reports = [report]
        self.writing, self.sent, self.ended = asyncio.Event(), asyncio.Event(), ""

    def peer(self) -> str:
        return "a fake"

    async def read(self) -> object:
        if not self._reports:
            await asyncio.Event().wait()
        return self._reports.pop()

    async def write(self, ack: report_pb2.ReportAck) -> None:
        self.writing.set()
        await self.sent.wait()
        self.writing.clear()

    async def abort(self, code: grpc.StatusCode, why: str) -> None:
        """gRPC sends no status before a message that is on its way."""
        self.ended = "too many operations" if self.writing.is_set() else why


async def test_an_end_follows_the_acknowledgement_that_is_on_its_way() -> None:
    """Or the agent would never hear of it."""
    collector = Collector(Intake(ReceivedEvents()))
    first, second = (FakeContext(ReportEncoder().encode(report_of("w", number))) for number in range(2))
    streams = [asyncio.create_task(collector._stream(None, context)) for context in (first, second)]  # type: ignore[arg-type]  # a fake
    await first.writing.wait()
    await second.writing.wait()
    first.sent.set()
    await streams[0]
    assert "another stream speaks for worker 'w' now" in first.ended
    streams[1].cancel()
    await asyncio.wait(streams)


async def test_who_may_not_speak_for_a_worker_is_refused_and_the_worker_stays() -> None:
    seen = ReceivedEvents()

    def may_speak(context: Any, worker: str) -> str:
        return "" if worker != "w" or ("proof", "yes") in context.invocation_metadata() else "no proof"

    async with (
        collecting(seen, may_speak=may_speak) as (collector, address),
        calling(address, ("proof", "yes")) as honest,
        calling(address) as stranger,
    ):
        await honest.write(ReportEncoder().encode(report_of("w", 0)))
        await seen.report(lambda report: report.number == 0)
        await stranger.write(ReportEncoder().encode(report_of("w", 1)))
        assert await status_of(stranger) is grpc.StatusCode.PERMISSION_DENIED
        assert await stranger.details() == "no proof"
        assert (collector.counts.refused, collector.counts.streams) == (1, 1)
    assert [event for event in seen.events if isinstance(event, Report)] == [received(report_of("w", 0))]


async def test_an_internal_error_ends_the_stream_with_an_error_and_is_counted() -> None:
    failures = []

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    async with collecting(broken, failed=lambda: failures.append(1)) as (_, address), calling(address) as call:
        await call.write(ReportEncoder().encode(report_of("w", 0)))
        assert await status_of(call) is grpc.StatusCode.INTERNAL
    assert failures


async def test_a_report_that_begins_to_say_draining_is_acknowledged_at_once() -> None:
    seen = ReceivedEvents()
    async with collecting(seen) as (_, address), calling(address) as call:
        encoder = ReportEncoder()
        await call.write(encoder.encode(report_of("w", 0)))
        assert await call.read() == report_pb2.ReportAck(received=1, answered=0)
        await call.write(encoder.encode(dataclasses.replace(report_of("w", 1), draining=True)))
        assert await call.read() == report_pb2.ReportAck(received=2, answered=0)


async def test_a_malformed_report_ends_its_stream_alone() -> None:
    seen = ReceivedEvents()
    async with collecting(seen) as (collector, address), calling(address) as good, calling(address) as bad:
        encoder = ReportEncoder()
        await good.write(encoder.encode(report_of("w", 0)))
        await bad.write(report_pb2.WorkerReport(all_models=True))
        assert await status_of(bad) is grpc.StatusCode.INVALID_ARGUMENT
        assert "worker: '' is refused" in (await bad.details() or "")
        await good.write(encoder.encode(report_of("w", 1)))
        await seen.report(lambda report: report.number == 1)
        assert collector.counts.invalid == 1
        assert ReportsLost("w") not in seen.events


async def test_a_malformed_report_after_good_ones_loses_the_worker() -> None:
    seen = ReceivedEvents()
    async with collecting(seen) as (_, address), calling(address) as call:
        await call.write(ReportEncoder().encode(report_of("w", 0)))
        await call.write(report_pb2.WorkerReport(worker="other", incarnation=1))
        assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert seen.events == [received(report_of("w", 0)), ReportsLost("w")]


async def test_what_is_no_report_at_all_ends_its_stream_and_is_counted() -> None:
    seen, refused = ReceivedEvents(), list[str]()
    async with (
        collecting(seen, refused=refused.append) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
        call = method()
        await call.write(b"\xff\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (seen.events, refused) == ([], ["message"])


async def test_a_silent_stream_is_given_up() -> None:
    """As after a power failure: the connection stands, and nothing comes."""
    seen = ReceivedEvents()
    async with collecting(seen, silence_s=1.0) as (collector, address), calling(address) as call:
        await call.write(ReportEncoder().encode(report_of("w", 0)))
        assert await status_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert seen.events[-1] == ReportsLost("w")
        assert collector.counts.silent == 1


async def test_a_stream_that_never_speaks_is_given_up() -> None:
    seen = ReceivedEvents()
    async with collecting(seen, silence_s=1.0) as (_, address), calling(address) as call:
        assert await status_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert seen.events == []


async def test_a_balancer_that_stood_still_itself_does_not_take_that_for_silence() -> None:
    seen = ReceivedEvents()
    async with collecting(seen, silence_s=1.0) as (_, address), calling(address) as call:
        encoder = ReportEncoder()
        await call.write(encoder.encode(report_of("w", 0)))
        await seen.report(lambda report: report.number == 0)
        time.sleep(1.5)  # Blocks the loop, as a long pause of the machine does.
        await call.write(encoder.encode(report_of("w", 1)))
        await seen.report(lambda report: report.number == 1)
    assert [type(event) for event in seen.events[:2]] == [Report, Report]


async def test_lost_and_repeated_reports_count_once() -> None:
    """Over a break, after which the agent begins anew with what it has; the core tells by incarnation and number."""
    router = Router(RoundRobin())
    router.observe(WorkerAdded("w"), 0.0)
    seen = ReceivedEvents()

    def on_event(event: Event) -> None:
        router.observe(event, 0.0)
        seen(event)

    async with collecting(on_event) as (_, address), calling(address) as call, calling(address) as after_break:
        encoder = ReportEncoder()
        for number in (0, 4, 4, 2):
            counts_of_w = len(seen.events)
            await call.write(encoder.encode(report_of("w", number, executions=10 + 10 * number)))
            await seen.report(lambda _: True, after=counts_of_w)
        await after_break.write(ReportEncoder().encode(report_of("w", 5, executions=60)))
        await seen.report(lambda report: report.number == 5)
    assert router.fleet.reports == {"accepted": 3, "lost": 3, "late": 2}
