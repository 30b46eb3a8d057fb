"""Attacks by whoever may open report streams, on a real collector."""

import contextlib
from collections.abc import AsyncIterator

import grpc
from support.reports import ReceivedEvents, collecting, report_of
from support.waiting import eventually

from balancer import bounds
from balancer.reports import report_pb2
from balancer.reports.codec import ReportEncoder
from balancer.reports.sending import METHOD

Method = grpc.aio.StreamStreamMultiCallable[report_pb2.WorkerReport, report_pb2.ReportAck]


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Method]:
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel.stream_stream(
            METHOD,
            request_serializer=report_pb2.WorkerReport.SerializeToString,
            response_deserializer=report_pb2.ReportAck.FromString,
        )


async def test_a_stranger_cannot_hold_thousands_of_streams_on_one_connection() -> None:
    async with collecting(ReceivedEvents()) as (collector, address), connected(address) as method:
        calls = [method() for _ in range(10 * bounds.MAX_STREAMS_PER_CONNECTION)]
        await eventually(lambda: collector.counts.streams == bounds.MAX_STREAMS_PER_CONNECTION, "streams are open")
        # An agent on a connection of its own is served meanwhile, by when all those calls were tried.
        async with connected(address) as honest:
            call = honest()
            await call.write(ReportEncoder().encode(report_of("w", 0)))
            assert await call.read() == report_pb2.ReportAck(received=1, answered=0)
        assert collector.counts.streams <= bounds.MAX_STREAMS_PER_CONNECTION + 1
        for call in calls:
            call.cancel()


async def test_a_stranger_cannot_hold_more_streams_than_there_may_be() -> None:
    refused: list[str] = []
    async with (
        collecting(ReceivedEvents(), max_streams=8, refused=refused.append) as (collector, address),
        connected(address) as method,
    ):
        calls = [method() for _ in range(20)]
        await eventually(lambda: collector.counts.too_many == 12, "what is too much is refused")
        assert collector.counts.streams == 8
        done = [call for call in calls if call.done()]
        assert {await call.code() for call in done} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        for call in calls:
            call.cancel()
    assert refused == ["streams"] * 12
