import contextlib
import time
from collections.abc import AsyncIterator

import grpc
import pytest
from support.reports import Heard, collecting, report_of

from balancer.core.events import Event, Report, ReportsLost, WorkerAdded
from balancer.core.router import Router
from balancer.telemetry import report_pb2
from balancer.telemetry.codec import ReportEncoder
from balancer.telemetry.streams import METHOD
from policies.round_robin import RoundRobin

Call = grpc.aio.StreamStreamCall[report_pb2.WorkerReport, report_pb2.ReportAck]


@contextlib.asynccontextmanager
async def calling(address: str) -> AsyncIterator[Call]:
    """A stream of our own, so that it carries what no agent would send."""
    async with grpc.aio.insecure_channel(address) as channel:
        method: grpc.aio.StreamStreamMultiCallable[report_pb2.WorkerReport, report_pb2.ReportAck]
        method = channel.stream_stream(
            METHOD,
            request_serializer=report_pb2.WorkerReport.SerializeToString,
            response_deserializer=report_pb2.ReportAck.FromString,
        )
        yield method()


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
    heard = Heard()
    async with collecting(heard) as (collector, address), calling(address) as call:
        encoder = ReportEncoder()
        reports = [report_of("w", number) for number in range(12)]
        messages = [encoder.encode(report) for report in reports]
        for message in messages:
            await call.write(message)
        acks = [await call.read(), await call.read()]
        assert await ended(call) is grpc.StatusCode.OK

    assert heard.events == [*reports, ReportsLost("w")]
    assert acks == [report_pb2.ReportAck(received=1), report_pb2.ReportAck(received=11)]
    counts = collector.counts
    assert (counts.streams, counts.reports, counts.invalid, counts.silent) == (0, 12, 0, 0)
    assert counts.bytes == sum(message.ByteSize() for message in messages)


@pytest.mark.parametrize(("newer", "lost"), [(1, False), (2, False), (0, True)])
async def test_reports_are_lost_with_the_last_stream_of_the_newest_incarnation(newer: int, lost: bool) -> None:
    """An agent may be back on a second stream before the first is known to be dead."""
    heard = Heard()
    async with collecting(heard) as (_, address), calling(address) as first, calling(address) as second:
        await first.write(ReportEncoder().encode(report_of("w", 0, incarnation=1)))
        await second.write(ReportEncoder().encode(report_of("w", 1, incarnation=newer)))
        await heard.report(lambda report: report.number == 1)
        await heard.report(lambda report: report.number == 0)
        await ended(first)
        assert (ReportsLost("w") in heard.events) is lost
        await ended(second)
        assert heard.events[-1] == ReportsLost("w")


async def test_a_malformed_report_ends_its_stream_alone() -> None:
    heard = Heard()
    async with collecting(heard) as (collector, address), calling(address) as good, calling(address) as bad:
        encoder = ReportEncoder()
        await good.write(encoder.encode(report_of("w", 0)))
        await bad.write(report_pb2.WorkerReport(all_models=True))
        assert await status_of(bad) is grpc.StatusCode.INVALID_ARGUMENT
        assert "field worker: is empty" in (await bad.details() or "")
        await good.write(encoder.encode(report_of("w", 1)))
        await heard.report(lambda report: report.number == 1)
        assert collector.counts.invalid == 1
        assert ReportsLost("w") not in heard.events


async def test_a_malformed_report_after_good_ones_loses_the_worker() -> None:
    heard = Heard()
    async with collecting(heard) as (_, address), calling(address) as call:
        await call.write(ReportEncoder().encode(report_of("w", 0)))
        await call.write(report_pb2.WorkerReport(worker="other", incarnation=1))
        assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert heard.events == [report_of("w", 0), ReportsLost("w")]


async def test_what_is_no_report_at_all_ends_its_stream() -> None:
    heard = Heard()
    async with collecting(heard) as (_, address), grpc.aio.insecure_channel(address) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
        call = method()
        await call.write(b"\xff\xff\xff")
        assert await call.code() is not grpc.StatusCode.OK
    assert heard.events == []


async def test_a_silent_stream_is_given_up() -> None:
    """As after a power failure: the connection stands, and nothing comes."""
    heard = Heard()
    async with collecting(heard, silence_s=0.2) as (collector, address), calling(address) as call:
        await call.write(ReportEncoder().encode(report_of("w", 0)))
        assert await status_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert heard.events[-1] == ReportsLost("w")
        assert collector.counts.silent == 1


async def test_a_stream_that_never_speaks_is_given_up() -> None:
    heard = Heard()
    async with collecting(heard, silence_s=0.2) as (_, address), calling(address) as call:
        assert await status_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert heard.events == []


async def test_a_balancer_that_stood_still_itself_does_not_take_that_for_silence() -> None:
    heard = Heard()
    async with collecting(heard, silence_s=0.2) as (_, address), calling(address) as call:
        encoder = ReportEncoder()
        await call.write(encoder.encode(report_of("w", 0)))
        await heard.report(lambda report: report.number == 0)
        time.sleep(0.5)  # Blocks the loop, as a long pause of the machine does.
        await call.write(encoder.encode(report_of("w", 1)))
        await heard.report(lambda report: report.number == 1)
    assert [type(event) for event in heard.events[:2]] == [Report, Report]


async def test_lost_repeated_and_reordered_reports_count_once() -> None:
    """Over two streams, so that the older reports really do come late; the core tells by incarnation and number."""
    router = Router(RoundRobin())
    router.observe(WorkerAdded("w"), 0.0)
    heard = Heard()

    def on_event(event: Event) -> None:
        router.observe(event, 0.0)
        heard(event)

    async with collecting(on_event) as (_, address), calling(address) as fast, calling(address) as slow:
        encoder = ReportEncoder()
        await fast.write(encoder.encode(report_of("w", 0, executions=10)))
        await fast.write(encoder.encode(report_of("w", 4, executions=50)))
        await heard.report(lambda report: report.number == 4)
        late = ReportEncoder()
        for number in (2, 4):
            told = len(heard.events)
            await slow.write(late.encode(report_of("w", number, executions=10 + 10 * number)))
            await heard.report(lambda _: True, after=told)
        await fast.write(encoder.encode(report_of("w", 5, executions=60)))
        await heard.report(lambda report: report.number == 5)
    assert router.fleet.reports == {"accepted": 3, "lost": 3, "late": 2}
