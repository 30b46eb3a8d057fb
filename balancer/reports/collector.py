"""Receives the report streams of all agents: the gRPC service `balancer.telemetry.v1.Reports`."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from balancer import bounds
from balancer.bounds import OutOfBoundsError, shown
from balancer.log_throttle import LogThrottle
from balancer.reports import report_pb2
from balancer.reports.codec import ReportDecoder, in_flight_of
from balancer.reports.prompts import encode_prompts
from balancer.scheduler.events import Event, ReportsLost, SentPrompt
from balancer.scheduler.peers import AtWorker

logger = logging.getLogger(__name__)

SERVICE = report_pb2.DESCRIPTOR.services_by_name["Reports"].full_name
ACKNOWLEDGE_EVERY = 10
"""Reports for each acknowledgement; the agent's window (`balancer.reports.sending.WINDOW`) is a few of them."""
ACKNOWLEDGE_WITHIN_S = 0.5
"""At the first report after that time in any case: an agent takes a balancer for away that says nothing for 2 s."""
SILENCE_S = 1.0
"""A stream that carried nothing for so long is given up: a host that lost its power sends no FIN."""
_WOKEN_AT_ONCE = 16
"""Streams, before other work of the loop has its turn."""
_LAST_WRITE_S = 1.0
"""For the acknowledgement that was on its way when its stream was ended, to an agent that may not read any more."""
SERVER_OPTIONS = (
    # An agent pings every 2 s while nothing comes from us; by default gRPC takes that for abuse and hangs up.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.max_receive_message_length", bounds.MAX_REPORT_BYTES),
)
OWN_SERVER_OPTIONS = (("grpc.max_concurrent_streams", bounds.MAX_STREAMS_PER_CONNECTION),)
"""Beside those, for a server of reports alone: Envoy opens a stream of ext_proc for each request."""

_Context = grpc.aio.ServicerContext[report_pb2.WorkerReport, report_pb2.ReportAck]
MaySpeak = Callable[[Any, str], str]
"""Given a call's context and the worker that its first report names: why it may not speak for it; empty: it may."""


def _anybody(_context: object, _worker: str) -> str:
    return ""


def _nothing(_worker: str) -> AtWorker:
    return AtWorker()


def _none(_worker: str) -> tuple[SentPrompt, ...]:
    return ()


@dataclass(slots=True)
class ReportCounts:
    """What a collector has seen since it was made; all cumulative but `streams`."""

    streams: int = 0
    reports: int = 0
    bytes: int = 0
    """Of serialised reports and questions, without gRPC's and HTTP/2's framing."""
    questions: int = 0
    """Of agents, what is in flight at their workers; all were answered."""
    invalid: int = 0
    """Reports out of bounds; each ended its stream."""
    silent: int = 0
    """Streams given up because nothing came."""
    refused: int = 0
    """Streams whose sender may not speak for the worker that it named."""
    taken_over: int = 0
    """Streams ended because a newer one speaks for their worker."""
    too_many: int = 0
    """Streams refused because as many were open as there may be."""


class _EndedError(Exception):
    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


@dataclass(eq=False, slots=True)
class _Stream:
    context: _Context
    decoder: ReportDecoder
    task: asyncio.Task[None]
    silence_s: float
    pause_s: Callable[[], float]
    """Seconds that may pass between two reports now; 0: as few as can be."""
    prompts: Callable[[str], Iterable[SentPrompt]]
    """Those that went to a worker, and that nobody asked for before."""
    knows: Callable[[str], bool]
    told_all: Callable[[str], bool]
    number: int = 0
    """In the order of the first reports; 0: there was none yet."""
    received: int = 0
    answered: int = 0
    draining: bool = False
    received_s: float = 0.0
    ended: _EndedError | None = None
    """Why its task was cancelled, where that was our doing."""
    timer: asyncio.TimerHandle | None = None
    acknowledged_s: float = -math.inf
    granted_pause_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """gRPC takes one message after the other."""
    writing: asyncio.Future[None] | None = None
    """The last acknowledgement."""

    def watch(self, due_s: float = math.inf) -> None:
        """End the stream once nothing was received for `silence_s`; looks again by itself until then.

        A timer for each report would cost more than the report: one a stream looks when the last was received.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - due_s > self.silence_s / 4:
            # It was this process that stood still; what was sent meanwhile is still to be read.
            self.received_s = now_s
        quiet_s = now_s - self.received_s
        if quiet_s < self.silence_s:
            due_s = self.received_s + self.silence_s
            self.timer = loop.call_at(due_s, self.watch, due_s)
        else:
            self.end(grpc.StatusCode.DEADLINE_EXCEEDED, f"no report for {self.silence_s} s")

    def end(self, code: grpc.StatusCode, why: str) -> None:
        if self.ended is None:
            self.ended = _EndedError(code, why)
            self.task.cancel()

    async def acknowledge(self, there: AtWorker | None = None) -> None:
        """Acknowledge all reports that were received; `there`: the answer to a question.

        Goes on where the stream is ended meanwhile: gRPC can send no status before a message that is on its way, and
        the agent would never hear of the end.
        """
        async with self.lock:
            if self.ended is not None:
                return
            self.acknowledged_s = asyncio.get_running_loop().time()
            self.granted_pause_s = self.pause_s()
            ack = report_pb2.ReportAck(
                received=self.received,
                answered=None if self.told_all(self.decoder.worker) else self.answered,
                in_flight=in_flight_of(there.in_flight.items()) if there else (),
                waiting_tokens=there.waiting_tokens if there else 0.0,
                prompts=encode_prompts(self.prompts(self.decoder.worker)),
                knows_worker=self.knows(self.decoder.worker),
                quiet_period_s=self.granted_pause_s or None,
            )
            self.writing = asyncio.ensure_future(self.context.write(ack))
            await asyncio.shield(self.writing)

    async def written(self) -> None:
        if self.writing is not None and not self.writing.done():
            await asyncio.wait({self.writing}, timeout=_LAST_WRITE_S)
        if self.writing is not None and self.writing.done() and not self.writing.cancelled():
            self.writing.exception()  # looked at, so that nobody is told of one that does not matter any more

    def unwatch(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


async def _read(context: _Context) -> object:
    try:
        return await context.read()
    except DecodeError as error:
        raise _EndedError(grpc.StatusCode.INVALID_ARGUMENT, "message: is no WorkerReport") from OutOfBoundsError(
            "message", str(error), "is a WorkerReport"
        )


class Collector:
    """Turns every worker's stream into `Report` events, and its end into `ReportsLost`.

    A worker is whoever opened the newest stream that names it and may speak for it: after a break on the way an agent
    may be back before its old connection is known to be dead, and no number that an older stream carried can shut it
    out. The older stream is ended. Which reports of a stream are late or repeated is for the core to tell.
    """

    def __init__(
        self,
        on_event: Callable[[Event], None],
        silence_s: float = SILENCE_S,
        *,
        may_speak: MaySpeak = _anybody,
        at_worker: Callable[[str], AtWorker] = _nothing,
        told_all: Callable[[str], bool] = lambda worker: False,
        prompts: Callable[[str], Iterable[SentPrompt]] = _none,
        knows: Callable[[str], bool] = lambda worker: False,
        pause_s: Callable[[], float] = lambda: 0.0,
        refused: Callable[[str], None] = lambda field: None,
        failed: Callable[[], None] = lambda: None,
        max_streams: int = bounds.MAX_REPORT_STREAMS,
    ) -> None:
        """Nothing is opened yet.

        Args:
            on_event: Called with everything.
            silence_s: A stream that carries nothing for so long is ended.
            may_speak: Called when a stream's first report names its worker.
            at_worker: Returns what this balancer has at a worker.
            told_all: Returns whether the worker's agent need not ask for that: the other balancers are told of it.
            prompts: Returns the prompts that it sent there, of which the agent was not told yet.
            knows: Returns whether discovery lists a worker.
            pause_s: Returns how many seconds may pass between two reports now; 0: as few as can be.
            refused: Called with each report out of bounds, by the field that is; and `streams` for one stream too many.
            failed: Called with each stream that ended by an internal error.
            max_streams: Open at once.
        """
        self.counts = ReportCounts()
        self._on_event = on_event
        self._silence_s = silence_s
        self._may_speak = may_speak
        self._at_worker, self._prompts, self._knows = at_worker, prompts, knows
        self._told_all = told_all
        # Several fit into the silence after which a stream is given up.
        self._pause_s = lambda: min(pause_s(), silence_s / 3)
        self._refused = refused
        self._failed = failed
        self._max_streams = max_streams
        self._opened = 0
        self._streams: set[_Stream] = set()
        self._acknowledging: set[asyncio.Task[None]] = set()
        self._speakers: dict[str, _Stream] = {}
        self._throttle = LogThrottle(time.monotonic)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service; call it before the server starts."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=report_pb2.WorkerReport.FromString,
            response_serializer=report_pb2.ReportAck.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Stream": handler}),))

    async def _stream(self, _: object, context: _Context) -> None:
        if self.counts.streams >= self._max_streams:
            self.counts.too_many += 1
            self._refused("streams")
            why = f"{self._max_streams} report streams are open, and no more may be; is there an agent for each worker?"
            self._warn("too_many", "report stream of %s refused: %s", context.peer(), why)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        task = asyncio.current_task()
        assert task is not None  # grpc.aio runs each handler as a task
        now_s = asyncio.get_running_loop().time()
        of_all = self._silence_s, self._pause_s, self._prompts, self._knows, self._told_all
        stream = _Stream(context, ReportDecoder(), task, *of_all, received_s=now_s)
        stream.watch()
        self.counts.streams += 1
        self._streams.add(stream)
        try:
            await self._receive(stream)
            return
        except _EndedError as error:
            ended = error
        except asyncio.CancelledError:
            if stream.ended is None:
                raise
            task.uncancel()
            ended = stream.ended
        finally:
            stream.unwatch()
            self.counts.streams -= 1
            self._streams.discard(stream)
            self._forget(stream)
        self._count_end(stream, ended, context.peer())
        await stream.written()
        await context.abort(ended.code, ended.why)

    async def wake(self) -> None:
        for count, stream in enumerate([each for each in self._streams if each.granted_pause_s], 1):
            acknowledging = asyncio.create_task(self._acknowledge(stream))
            self._acknowledging.add(acknowledging)
            acknowledging.add_done_callback(self._acknowledging.discard)
            if count % _WOKEN_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _acknowledge(self, stream: _Stream) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await stream.acknowledge()  # else it ended meanwhile, which its own task is told of

    async def _receive(self, stream: _Stream) -> None:
        context = stream.context
        counts, decoder, on_event = self.counts, stream.decoder, self._on_event
        clock = asyncio.get_running_loop().time
        while isinstance(message := await _read(context), report_pb2.WorkerReport):
            stream.received_s = clock()
            if message.question:
                await self._answer(stream, message)
                continue
            try:
                number = stream.number or self._opened + 1
                report = decoder.decode(message, number)
                if not stream.number:
                    self._begin(stream, report.worker, context)
                on_event(report)
            except OutOfBoundsError as error:
                raise _EndedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
            except _EndedError:
                raise
            except Exception as error:
                self._failed()
                self._warn("failed", "a report of worker %s was not taken in", shown(decoder.worker), exc_info=True)
                raise _EndedError(grpc.StatusCode.INTERNAL, "the balancer failed to take the report in") from error
            counts.reports += 1
            counts.bytes += message.ByteSize()
            due = stream.received % ACKNOWLEDGE_EVERY == 0 or report.draining != stream.draining
            stream.draining = report.draining
            stream.received += 1
            if due or stream.received_s - stream.acknowledged_s >= ACKNOWLEDGE_WITHIN_S:
                await stream.acknowledge()

    async def _answer(self, stream: _Stream, question: report_pb2.WorkerReport) -> None:
        if not stream.number:
            why = OutOfBoundsError("question", True, "comes after a stream's first report, which names the worker")
            raise _EndedError(grpc.StatusCode.INVALID_ARGUMENT, str(why)) from why
        self.counts.questions += 1
        self.counts.bytes += question.ByteSize()
        stream.answered += 1
        await stream.acknowledge(self._at_worker(stream.decoder.worker))

    def _begin(self, stream: _Stream, worker: str, context: _Context) -> None:
        """The stream's first report is valid: from now on the stream is the worker, if it may be."""
        if why := self._may_speak(context, worker):
            raise _EndedError(grpc.StatusCode.PERMISSION_DENIED, why)
        self._opened += 1
        stream.number = self._opened
        before = self._speakers.get(worker)
        self._speakers[worker] = stream
        if before is not None:
            why = f"another stream speaks for worker {shown(worker)} now, from {context.peer()}"
            before.end(grpc.StatusCode.ABORTED, f"{why}; is there more than one agent of that name?")

    def _forget(self, stream: _Stream) -> None:
        worker = stream.decoder.worker
        if self._speakers.get(worker) is stream:
            del self._speakers[worker]
            logger.info("worker %s: report stream ended", shown(worker))
            try:
                self._on_event(ReportsLost(worker))
            except Exception:
                self._failed()
                self._warn("failed", "the end of worker %s's reports was not taken in", shown(worker), exc_info=True)

    def _count_end(self, stream: _Stream, ended: _EndedError, peer: str) -> None:
        counts = self.counts
        if isinstance(ended.__cause__, OutOfBoundsError):
            counts.invalid += 1
            self._refused(ended.__cause__.field)
        counts.silent += ended.code is grpc.StatusCode.DEADLINE_EXCEEDED
        counts.refused += ended.code is grpc.StatusCode.PERMISSION_DENIED
        counts.taken_over += ended.code is grpc.StatusCode.ABORTED
        if ended.code is not grpc.StatusCode.INTERNAL:
            who = shown(stream.decoder.worker)
            self._warn(ended.code.name, "report stream of worker %s from %s ended: %s", who, peer, ended.why)

    def _warn(self, kind: str, message: str, *values: object, exc_info: bool = False) -> None:
        """Log at most once a second of a kind: whoever can make one of these can make thousands."""
        if self._throttle.due(kind):
            logger.warning(message, *values, exc_info=exc_info)
