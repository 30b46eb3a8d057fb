"""Receives the report streams of all agents: the gRPC service `balancer.telemetry.v1.Reports`."""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import grpc
from google.protobuf.message import DecodeError

from balancer import bounds
from balancer.bounds import OutOfBoundsError, shown
from balancer.reports import report_pb2
from balancer.reports.codec import ReportDecoder, in_flight_of
from balancer.reports.intake import EndedError, Intake
from balancer.reports.prompts import encode_prompts, no_prompts
from balancer.reports.silence import SILENCE_S, Silence
from balancer.scheduler.events import SentPrompt
from balancer.scheduler.peers import AtWorker

SERVICE = report_pb2.DESCRIPTOR.services_by_name["Reports"].full_name
ACKNOWLEDGE_EVERY = 10
"""Reports for each acknowledgement; the agent's window (`balancer.reports.sending.WINDOW`) is a few of them."""
ACKNOWLEDGE_WITHIN_S = 0.5
"""At the first report after that time in any case: an agent takes a balancer for away that says nothing for 2 s."""
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


def anybody(_context: object, _worker: str) -> str:
    """May speak for any worker."""
    return ""


def _nothing(_worker: str) -> AtWorker:
    return AtWorker()


@dataclass(eq=False, slots=True)
class _Stream:
    context: _Context
    decoder: ReportDecoder
    task: asyncio.Task[None]
    pause_s: Callable[[], float]
    """Seconds that may pass between two reports now; 0: as few as can be."""
    prompts: Callable[[str], Iterable[SentPrompt]]
    """Those that went to a worker, and that nobody asked for before."""
    knows: Callable[[str], bool]
    told_all: Callable[[str], bool]
    knows_draining: Callable[[str], bool]
    number: int = 0
    """In the order of the first reports; 0: there was none yet."""
    received: int = 0
    answered: int = 0
    before_draining: int | None = None
    """How many reports came before the first one that says draining; None: the last one does not say so."""
    ended: EndedError | None = None
    """Why its task was cancelled, where that was our doing."""
    acknowledged_s: float = -math.inf
    granted_pause_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """gRPC takes one message after the other."""
    writing: asyncio.Future[None] | None = None
    """The last acknowledgement."""

    relayed: ClassVar[bool] = False

    @property
    def peer(self) -> str:
        return self.context.peer()

    def over(self, worker: str, ended: EndedError) -> None:
        del worker  # there is one alone
        if self.ended is None:
            self.ended = ended
            self.task.cancel()

    @property
    def told_of(self) -> int:
        """Reports that are acknowledged: one that begins to say draining once all know it."""
        if self.before_draining is None or self.knows_draining(self.decoder.worker):
            return self.received
        return self.before_draining

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
                received=self.told_of,
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


async def _read(context: _Context) -> object:
    try:
        return await context.read()
    except DecodeError as error:
        raise EndedError(grpc.StatusCode.INVALID_ARGUMENT, "message: is no WorkerReport") from OutOfBoundsError(
            "message", str(error), "is a WorkerReport"
        )


class Collector:
    """Takes in every agent's stream, and acknowledges its reports."""

    def __init__(
        self,
        intake: Intake,
        silence_s: float = SILENCE_S,
        *,
        may_speak: MaySpeak = anybody,
        at_worker: Callable[[str], AtWorker] = _nothing,
        told_all: Callable[[str], bool] = lambda worker: False,
        prompts: Callable[[str], Iterable[SentPrompt]] = no_prompts,
        knows: Callable[[str], bool] = lambda worker: False,
        pause_s: Callable[[], float] = lambda: 0.0,
        knows_draining: Callable[[str], bool] = lambda worker: True,
        max_streams: int = bounds.MAX_REPORT_STREAMS,
    ) -> None:
        """Nothing is opened yet.

        Args:
            intake: What takes in the reports.
            silence_s: A stream that carries nothing for so long is ended.
            may_speak: Called when a stream's first report names its worker.
            at_worker: Returns what this balancer has at a worker.
            told_all: Returns whether the worker's agent need not ask for that: the other balancers are told of it.
            prompts: Returns the prompts that it sent there, of which the agent was not told yet.
            knows: Returns whether discovery lists a worker.
            pause_s: Returns how many seconds may pass between two reports now; 0: as few as can be.
            knows_draining: Returns whether all know that a worker drains who are to know it: its report that says so is
                acknowledged only then.
            max_streams: Open at once.
        """
        self.counts, self._intake = intake.counts, intake
        self._silence_s = silence_s
        self._may_speak = may_speak
        self._at_worker, self._prompts, self._knows = at_worker, prompts, knows
        self._told_all, self._knows_draining = told_all, knows_draining
        # Several fit into the silence after which a stream is given up.
        self._pause_s = lambda: min(pause_s(), silence_s / 3)
        self._max_streams = max_streams
        self._streams: set[_Stream] = set()
        self._acknowledging: set[asyncio.Task[None]] = set()

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
            why = self._intake.too_many(context.peer(), self._max_streams)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        task = asyncio.current_task()
        assert task is not None  # grpc.aio runs each handler as a task
        of_all = self._pause_s, self._prompts, self._knows, self._told_all, self._knows_draining
        stream = _Stream(context, ReportDecoder(), task, *of_all)
        why = f"no report for {self._silence_s} s"
        silence = Silence(self._silence_s, lambda: stream.over("", EndedError(grpc.StatusCode.DEADLINE_EXCEEDED, why)))
        self.counts.streams += 1
        self._streams.add(stream)
        try:
            await self._receive(stream, silence)
            return
        except EndedError as error:
            ended = error
        except asyncio.CancelledError:
            if stream.ended is None:
                raise
            task.uncancel()
            ended = stream.ended
        finally:
            silence.close()
            self.counts.streams -= 1
            self._streams.discard(stream)
            self._intake.end(stream.decoder.worker, stream)
        self._intake.count_end(f"worker {shown(stream.decoder.worker)}", ended, context.peer())
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

    async def _receive(self, stream: _Stream, silence: Silence) -> None:
        context = stream.context
        counts, decoder, intake = self.counts, stream.decoder, self._intake
        clock = asyncio.get_running_loop().time
        while isinstance(message := await _read(context), report_pb2.WorkerReport):
            silence.heard_s = clock()
            if message.question:
                await self._answer(stream, message)
                continue
            try:
                report = decoder.decode(message, stream.number)
            except OutOfBoundsError as error:
                raise EndedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
            if not stream.number:
                if why := self._may_speak(context, report.worker):
                    raise EndedError(grpc.StatusCode.PERMISSION_DENIED, why)
                stream.number = intake.begin(report.worker, stream)
                report = replace(report, stream=stream.number)
            intake.take(report)
            counts.bytes += message.ByteSize()
            due = stream.received % ACKNOWLEDGE_EVERY == 0 or report.draining != (stream.before_draining is not None)
            if not report.draining:
                stream.before_draining = None
            elif stream.before_draining is None:
                stream.before_draining = stream.received
            stream.received += 1
            if due or silence.heard_s - stream.acknowledged_s >= ACKNOWLEDGE_WITHIN_S:
                await stream.acknowledge()

    async def _answer(self, stream: _Stream, question: report_pb2.WorkerReport) -> None:
        if not stream.number:
            why = OutOfBoundsError("question", True, "comes after a stream's first report, which names the worker")
            raise EndedError(grpc.StatusCode.INVALID_ARGUMENT, str(why)) from why
        self.counts.questions += 1
        self.counts.bytes += question.ByteSize()
        stream.answered += 1
        await stream.acknowledge(self._at_worker(stream.decoder.worker))
