"""Receives the report streams of all agents: the gRPC service `balancer.telemetry.v1.Reports`."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from balancer.core.events import Event, ReportsLost
from balancer.telemetry import report_pb2
from balancer.telemetry.codec import InvalidReportError, ReportDecoder

logger = logging.getLogger(__name__)

SERVICE = report_pb2.DESCRIPTOR.services_by_name["Reports"].full_name
ACKNOWLEDGE_EVERY = 10
"""Reports for each acknowledgement; the agent's window (`balancer.telemetry.streams.WINDOW`) is a few of them."""
SILENCE_S = 1.0
"""A stream that carried nothing for so long is given up: a host that lost its power sends no FIN."""
SERVER_OPTIONS = (
    # An agent pings every 2 s while nothing comes from us; by default gRPC takes that for abuse and hangs up.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
)
"""For the server that the collector is added to."""

_Context = grpc.aio.ServicerContext[report_pb2.WorkerReport, report_pb2.ReportAck]


@dataclass(slots=True)
class Counts:
    """What a collector has seen since it was made; all cumulative but `streams`."""

    streams: int = 0
    """Open now."""
    reports: int = 0
    bytes: int = 0
    """Of serialised reports, without gRPC's and HTTP/2's framing."""
    invalid: int = 0
    """Reports refused; each ended its stream."""
    silent: int = 0
    """Streams given up because nothing came."""
    refused: int = 0
    """Streams refused at once: too many, or not allowed to speak for the worker."""
    taken_over: int = 0
    """Streams ended because their worker opened another."""


@dataclass(eq=False, slots=True)
class _Stream:
    decoder: ReportDecoder
    task: asyncio.Task[None]
    silence_s: float
    received: int = 0
    heard_s: float = 0.0
    """On the loop's clock."""
    silent: bool = False
    timer: asyncio.TimerHandle | None = None

    def watch(self, due_s: float = math.inf) -> None:
        """End the stream's task once nothing was heard for `silence_s`; looks again by itself until then.

        A timer for each report would cost more than the report: one a stream looks when the last was heard.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - due_s > self.silence_s / 4:
            # It was this process that stood still; what was sent meanwhile is still to be read.
            self.heard_s = now_s
        quiet_s = now_s - self.heard_s
        if quiet_s < self.silence_s:
            due_s = self.heard_s + self.silence_s
            self.timer = loop.call_at(due_s, self.watch, due_s)
        else:
            self.silent = True
            self.task.cancel()

    def unwatch(self) -> None:
        """Stop looking."""
        if self.timer is not None:
            self.timer.cancel()


class Collector:
    """Turns every worker's stream into `Report` events, and its end into `ReportsLost`.

    A worker may have several streams for a while: after a break on the way its agent may be back before the old
    connection is known to be dead. Its reports are lost only once no stream of the same or a newer incarnation is
    left. Which reports are late or repeated is for the core to tell, by incarnation and number.
    """

    def __init__(self, on_event: Callable[[Event], None], silence_s: float = SILENCE_S) -> None:
        self.counts = Counts()
        self._on_event = on_event
        self._silence_s = silence_s
        self._streams: dict[str, set[_Stream]] = {}

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service; call it before the server starts."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=report_pb2.WorkerReport.FromString,
            response_serializer=report_pb2.ReportAck.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Stream": handler}),))

    async def _stream(self, _: object, context: _Context) -> None:
        task = asyncio.current_task()
        assert task is not None  # grpc.aio runs each handler as a task
        stream = _Stream(ReportDecoder(), task, self._silence_s, heard_s=asyncio.get_running_loop().time())
        stream.watch()
        self.counts.streams += 1
        try:
            await self._receive(stream, context)
        except InvalidReportError as error:
            self.counts.invalid += 1
            logger.warning("report refused: %s", error, extra={"peer": context.peer()})
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            if not stream.silent:
                raise
            task.uncancel()
            self.counts.silent += 1
            logger.warning("worker %s: no report for %s s", stream.decoder.worker, self._silence_s)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no report for {self._silence_s} s")
        finally:
            stream.unwatch()
            self.counts.streams -= 1
            self._forget(stream)

    async def _receive(self, stream: _Stream, context: _Context) -> None:
        counts, decoder, on_event = self.counts, stream.decoder, self._on_event
        clock = asyncio.get_running_loop().time
        streams: set[_Stream] | None = None
        while isinstance(message := await context.read(), report_pb2.WorkerReport):
            stream.heard_s = clock()
            report = decoder.decode(message)
            counts.reports += 1
            counts.bytes += message.ByteSize()
            if streams is None:
                streams = self._streams.setdefault(report.worker, set())
                streams.add(stream)
            on_event(report)
            if stream.received % ACKNOWLEDGE_EVERY == 0:
                await context.write(report_pb2.ReportAck(received=stream.received + 1))
            stream.received += 1

    def _forget(self, stream: _Stream) -> None:
        worker = stream.decoder.worker
        streams = self._streams.get(worker)
        if streams is None or stream not in streams:
            return
        streams.discard(stream)
        if not streams:
            del self._streams[worker]
        if all(other.decoder.incarnation < stream.decoder.incarnation for other in streams):
            logger.info("worker %s: report stream ended", worker)
            self._on_event(ReportsLost(worker))
