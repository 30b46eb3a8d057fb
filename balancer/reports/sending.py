"""The agent's stream of reports to one balancer."""

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import grpc

from balancer import bounds
from balancer.balancer_tls import BalancerTls, credentials
from balancer.bounds import OutOfBoundsError
from balancer.errors import OperatorError
from balancer.reports import report_pb2
from balancer.reports.codec import ReportEncoder, decode_in_flight
from balancer.reports.prompts import Listener, PromptLog, decode_prompts
from balancer.reports.stream_failures import StreamFailure, StreamStatus, explain, shown_to
from balancer.scheduler.events import Report
from balancer.scheduler.peers import AtWorker

logger = logging.getLogger(__name__)

METHOD = f"/{report_pb2.DESCRIPTOR.services_by_name['Reports'].full_name}/Stream"
WINDOW = 30
"""Reports that may be unacknowledged. Without a window they would pile up in the transport's buffers, of hundreds of
KiB, and reach a slow balancer seconds old though it takes their age from their receipt."""
_CONNECTED_WITHIN_S = 2.0
_FIRST_PAUSE_S = 0.1
_LAST_PAUSE_S = 1.0
"""Without a connection, or where another agent took the worker over: a restarted balancer is found in a second."""
_LAST_REFUSED_PAUSE_S = 5.0
STEADY_S = 10.0
"""A stream that lasted so long was well: the next pause is short again, and a failure is news."""
_DIAGNOSIS_TIMEOUT_S = 2.0
_REFUSALS = frozenset(
    {
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_CHANNEL_OPTIONS = (
    # A channel is for one connection, and we pause between them ourselves; this bounds the attempt.
    ("grpc.min_reconnect_backoff_ms", 2000),
    # Acknowledgements keep a live connection busy, so pings go out only where something is wrong.
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.max_pings_without_data", 0),
    # Each replica's connection is its own, also where several agents share a process (tests, the benchmark).
    ("grpc.use_local_subchannel_pool", 1),
)

_LONGEST_PAUSE_S = 1.0
_QUESTION = report_pb2.WorkerReport(question=True)

_Method = grpc.aio.StreamStreamMultiCallable[report_pb2.WorkerReport, report_pb2.ReportAck]
_Call = grpc.aio.StreamStreamCall[report_pb2.WorkerReport, report_pb2.ReportAck]
Value = TypeVar("Value")


class Replica:
    """The stream to one balancer. A new report takes the place of one that was not sent yet."""

    def __init__(
        self,
        address: str,
        tls: BalancerTls | None = None,
        answered: Callable[[], None] = lambda: None,
        flows: Callable[[], None] = lambda: None,
        prompts: PromptLog | None = None,
    ) -> None:
        """`address` is `ip:port`, or `unix:/path`; `run` connects. `answered` is called after each answer; `flows` when
        reports are wanted at full rate from now on. `prompts` is shared by the streams of an agent."""
        self.address = address
        self._tls = tls
        self.wanted = True
        """Cleared once the name no longer resolves to it: the stream then ends when it breaks."""
        self._report: Report | None = None
        self._wake = asyncio.Event()
        self._sent = 0
        self._received = 0
        self._draining_sent = 0
        """Which report of the stream was the first of those that now say draining; 0: they do not."""
        self._acknowledged_s = -math.inf
        self._status = StreamStatus(address)
        self._on_answer = answered
        self._flows = flows
        self.pause_s = _LONGEST_PAUSE_S
        """Seconds that may pass between two reports; 0: as few as can be. Where there is no stream, nobody waits."""
        self._question_due = False
        self._questions = 0
        self._answered = -1
        """Of them; -1: the balancer has not said that it answers any."""
        self._odd = False
        """Whether an answer was out of bounds, which the log says once."""
        self.there: AtWorker | None = None
        """What the balancer has here, as its last answer says; None: it has not said."""
        self._prompts = prompts or PromptLog()
        self._listener: Listener | None = None
        """Where the balancer is told of prompts."""

    @property
    def connected(self) -> bool:
        return asyncio.get_running_loop().time() - self._acknowledged_s < _CONNECTED_WITHIN_S

    @property
    def knows_draining(self) -> bool:
        """Whether the balancer acknowledged a report that says draining, as all since do."""
        return 0 < self._draining_sent <= self._received

    @property
    def owes(self) -> bool:
        return self.connected and 0 <= self._answered < self._questions

    def ask(self) -> bool:
        """Ask what the balancer has in flight here, if it answers and owes no answer; whether it was asked."""
        if not self.connected or self._answered < 0 or self.owes:
            return False
        self._questions += 1
        self._question_due = True
        self._wake.set()
        return True

    def offer(self, report: Report) -> None:
        self._report = report
        self._wake.set()

    async def run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while self.wanted:
            began_s = loop.time()
            failure = await self._connection()
            was_connected = self._acknowledged_s > -math.inf
            self._acknowledged_s, self._draining_sent = -math.inf, 0
            self._forget_answers()
            if was_connected and loop.time() - began_s > STEADY_S:
                self._status.well()
            self._status.failed(failure, loop.time())
            # Two agents of one name take turns: they must not do so as fast as they can.
            if was_connected and (failure.code is not grpc.StatusCode.ABORTED or loop.time() - began_s > STEADY_S):
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LAST_REFUSED_PAUSE_S if failure.code in _REFUSALS else _LAST_PAUSE_S)

    async def _connection(self) -> StreamFailure:
        try:
            channel = await channel_to(self.address, self._tls)
        except OperatorError as error:
            return StreamFailure(str(error))
        async with channel:
            method: _Method = channel.stream_stream(
                METHOD,
                request_serializer=report_pb2.WorkerReport.SerializeToString,
                response_deserializer=report_pb2.ReportAck.FromString,
            )
            connected = await _connected(channel)
            # Where there is no connection, a call is what tells why.
            call = method() if connected else method(timeout=_DIAGNOSIS_TIMEOUT_S)
            ends: list[tuple[grpc.StatusCode, str | None]] = []
            call.add_done_callback(lambda it: ends.extend(zip(_known(it.code()), _known(it.details()), strict=True)))
            try:
                if connected:
                    await self._converse(call)
                code, details = await call.code(), await call.details() or ""
            except grpc.aio.AioRpcError as error:
                # The balancer's word is the first. A write that comes too late sets one of its own over it.
                code, given = ends[0] if ends else (error.code(), error.details())
                details = given or ""
            finally:
                call.cancel()
        if code is grpc.StatusCode.UNAVAILABLE and self._acknowledged_s > -math.inf:
            return StreamFailure("the connection broke", details, code)
        return explain(code, details, shown_to(self._tls))

    async def _converse(self, call: _Call) -> None:
        encoder = ReportEncoder()
        self._sent = self._received = 0
        self._want(0.0)
        acknowledgements = asyncio.ensure_future(self._read_acknowledgements(call))
        acknowledgements.add_done_callback(lambda _: self._wake.set())
        try:
            while not acknowledgements.done():
                await self._wake.wait()
                self._wake.clear()
                if self._question_due:
                    self._question_due = False
                    if not await _write(call, _QUESTION):
                        break
                if self._report is not None and self._sent - self._received < WINDOW:
                    message, self._report = encoder.encode(self._report), None
                    message.prompts.extend(self._listener.next() if self._listener else ())
                    self._sent += 1
                    if not message.draining:
                        self._draining_sent = 0
                    elif not self._draining_sent:
                        self._draining_sent = self._sent
                    if not await _write(call, message):
                        break
            await acknowledgements
        finally:
            acknowledgements.cancel()
            # Its exception holds this frame, which would hold it: a cycle, and the connection with it until a full
            # collection, which comes rarely.
            del acknowledgements

    async def _read_acknowledgements(self, call: _Call) -> None:
        while isinstance(ack := await call.read(), report_pb2.ReportAck):
            if self._acknowledged_s == -math.inf:
                self._status.connected()
            self._acknowledged_s = asyncio.get_running_loop().time()
            self._received = ack.received
            self._want(ack.quiet_period_s)
            self._take_answer(ack)
            self._wake.set()

    def _want(self, pause_s: float) -> None:
        """The balancer says how many seconds may pass; 0: it does not."""
        before, self.pause_s = self.pause_s, min(pause_s, _LONGEST_PAUSE_S) if pause_s > 0 else 0.0
        if self.pause_s < before:
            self._flows()

    def _take_answer(self, ack: report_pb2.ReportAck) -> None:
        if len(ack.prompts):
            self._take_prompts(ack)
        if ack.knows_worker != (self._listener is not None):
            self._listener = Listener(self._prompts, self.address) if ack.knows_worker else None
        if not ack.HasField("answered"):
            self._answered, self.there = -1, None
            return
        if ack.answered > self._questions:
            return
        if ack.answered > max(self._answered, 0):
            self.there = None
            with self._bounded("answers"):
                in_flight = decode_in_flight("in_flight", ack.in_flight, bounds.MAX_IN_FLIGHT)
                most = bounds.MAX_WAITING_TOKENS
                self.there = AtWorker(in_flight, bounds.number("waiting_tokens", ack.waiting_tokens, 0.0, most))
        self._answered = ack.answered
        self._on_answer()

    def _take_prompts(self, ack: report_pb2.ReportAck) -> None:
        with self._bounded("prompts"):
            decode_prompts(ack.prompts)
            self._prompts.add(self.address, ack.prompts)

    @contextlib.contextmanager
    def _bounded(self, what: str) -> Iterator[None]:
        """What is out of bounds is left out, which the log says once."""
        try:
            yield
        except OutOfBoundsError as error:
            if not self._odd:
                logger.warning("balancer %s: its %s are left out: %s", self.address, what, error)
            self._odd = True

    def _forget_answers(self) -> None:
        self._question_due, self._questions, self._answered, self.there = False, 0, -1, None
        self._listener = None
        self.pause_s = _LONGEST_PAUSE_S
        self._on_answer()


async def channel_to(address: str, tls: BalancerTls | None) -> grpc.aio.Channel:
    """To a balancer's report port. Raises OperatorError where a file of `tls` cannot be read."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
    trusted = await asyncio.to_thread(credentials, tls)
    # The address is one of several that a name stands for, so the certificate is held against that name.
    name = ("grpc.ssl_target_name_override", tls.server_name)
    return grpc.aio.secure_channel(address, trusted, options=(*_CHANNEL_OPTIONS, name))


async def _write(call: _Call, message: report_pb2.WorkerReport) -> bool:
    """Whether it was written. Else the call ended meanwhile; who reads the acknowledgements knows how."""
    try:
        await call.write(message)
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
        return False
    return True


def _known(value: Coroutine[Any, Any, Value]) -> list[Value]:
    """What a coroutine returns that need not wait, as gRPC's of an ended call; else nothing."""
    try:
        value.send(None)
    except StopIteration as returned:
        return [returned.value]
    value.close()
    return []


async def _connected(channel: grpc.aio.Channel) -> bool:
    """Whether a connection came about.

    Not left to the first write: what is encoded before the connection stands is old when it arrives.
    """
    state = channel.get_state(try_to_connect=True)
    while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
    return state is grpc.ChannelConnectivity.READY
