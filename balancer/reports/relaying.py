"""Between the agents of a rack and all balancers: of each worker the newest report, on one stream a balancer."""

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import grpc

from balancer import bounds
from balancer.balancer_tls import BalancerTls
from balancer.bounds import OutOfBoundsError, shown
from balancer.errors import OperatorError
from balancer.log_throttle import LogThrottle
from balancer.reports import report_pb2
from balancer.reports.addresses import Streams
from balancer.reports.codec import ReportEncoder
from balancer.reports.prompts import Listener, PromptLog, decode_prompts
from balancer.reports.sending import channel_to
from balancer.reports.stream_failures import StreamFailure, StreamStatus, explain
from balancer.scheduler.events import Event, Report, ReportsLost

logger = logging.getLogger(__name__)

METHOD = f"/{report_pb2.DESCRIPTOR.services_by_name['Relays'].full_name}/Relay"
WINDOW = 4
"""Messages that may be unacknowledged: what more comes takes the place of what waits."""
_CONNECTED_WITHIN_S = 5.0
"""A balancer of very many workers lets its relays wait some seconds for their turn."""
_LIFE_S = 0.3
_PAUSE_S = 1.0
"""Between two attempts."""
_REFUSED_S = 5.0
"""Until a balancer is told again of a worker of which it took no more."""
_LONGEST_PAUSE_S = 1.0
_FRAMING_BYTES = 8
"""Of a report in a message."""

_Method = grpc.aio.StreamStreamMultiCallable[report_pb2.RelayedReports, report_pb2.RelayAck]
_Call = grpc.aio.StreamStreamCall[report_pb2.RelayedReports, report_pb2.RelayAck]


@dataclass(slots=True)
class RelayCounts:
    """Of all balancers together; all cumulative."""

    relayed: int = 0
    """Reports sent on."""
    replaced: int = 0
    """Those that were not, since a newer one of their worker came."""
    refused: int = 0
    """Workers of which a balancer took no more."""


class _OfWorker:
    """What one balancer was told of a worker on this stream."""

    def __init__(self) -> None:
        self.encoder = ReportEncoder()
        self.listener: Listener | None = None
        """Where the balancer's discovery lists the worker, so that it is told of prompts."""
        self.draining_from = 0
        """Which message was the first of those that say draining; 0: the last one does not."""


class ToBalancer:
    """The stream to one balancer."""

    def __init__(self, address: str, relay: "Relay", tls: BalancerTls | None) -> None:
        """`address` is `ip:port`, or `unix:/path`; `run` connects."""
        self.wanted = True
        self.address = address
        self._relay, self._tls = relay, tls
        self._status = StreamStatus(address, "relayed reports to balancer")
        self._throttle = LogThrottle(time.monotonic)
        self._forget()

    def _forget(self) -> None:
        """As a stream begins and ends."""
        self._told: dict[str, _OfWorker] = {}
        self._muted: dict[str, float] = {}
        """Until when, by worker of which the balancer takes no more."""
        self._due: dict[str, Report] = {}
        """What is to be sent, the worker that waits longest first."""
        self._put_off: report_pb2.WorkerReport | None = None
        """It was encoded and found no room in its message: it is the next one's first."""
        self._lost: list[str] = []
        self._sent = self._received = 0
        self._unacknowledged: deque[list[str]] = deque()
        """The workers of each message."""
        self._acknowledged_s = -math.inf
        self._moved = asyncio.Event()
        self.pause_s = _LONGEST_PAUSE_S
        """Seconds that may pass between two reports, as the balancer says; where there is no stream, nobody waits."""

    @property
    def connected(self) -> bool:
        return asyncio.get_running_loop().time() - self._acknowledged_s < _CONNECTED_WITHIN_S

    @property
    def _waits(self) -> bool:
        return bool(self._due or self._lost) or self._put_off is not None

    def offer(self, report: Report) -> None:
        if self._muted and self._muted.get(report.worker, 0.0) > asyncio.get_running_loop().time():
            return
        self._relay.counts.replaced += report.worker in self._due
        self._due[report.worker] = report
        self._moved.set()

    def lose(self, worker: str) -> None:
        self._due.pop(worker, None)
        self._muted.pop(worker, None)
        if self._put_off is not None and self._put_off.worker == worker:
            self._put_off = None
        if self._told.pop(worker, None) is not None:
            self._lost.append(worker)
            self._moved.set()

    def knows_draining(self, worker: str) -> bool:
        told = self._told.get(worker)
        return told is not None and 0 < told.draining_from <= self._received

    async def run(self) -> None:
        while self.wanted:
            failure = await self._connection()
            if self._acknowledged_s > -math.inf:
                self._status.well()
            self._forget()
            self._status.failed(failure, asyncio.get_running_loop().time())
            await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.0))

    async def _connection(self) -> StreamFailure:
        try:
            channel = await channel_to(self.address, self._tls)
        except OperatorError as error:
            return StreamFailure(str(error))
        async with channel:
            method: _Method = channel.stream_stream(
                METHOD,
                request_serializer=report_pb2.RelayedReports.SerializeToString,
                response_deserializer=report_pb2.RelayAck.FromString,
            )
            call = method()
            sending = asyncio.create_task(self._send(call))
            try:
                await self._read(call)
                code, details = await call.code(), await call.details() or ""
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details() or ""
            finally:
                sending.cancel()
                call.cancel()
        certificate = "certificate" if self._tls is not None and self._tls.certificate else "no certificate"
        return explain(code, details, "plain" if self._tls is None else certificate)

    async def _send(self, call: _Call) -> None:
        self._due = dict(self._relay.newest)
        self._want(0.0)
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # who reads knows how it ended
            while True:
                while self._sent - self._received < WINDOW:
                    await call.write(self._message())
                    if not self._waits:
                        break
                await asyncio.sleep(self._relay.period_s)
                self._moved.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LIFE_S):
                        while not self._waits or self._sent - self._received >= WINDOW:
                            await self._moved.wait()
                            self._moved.clear()

    def _message(self) -> report_pb2.RelayedReports:
        """The next one, as large as one may be."""
        self._sent += 1
        message, self._lost = report_pb2.RelayedReports(lost=self._lost), []
        size = message.ByteSize()
        balancers = max(self._relay.connected, 1)
        while len(message.reports) < bounds.MAX_RELAYED and (self._put_off is not None or self._due):
            report = self._put_off or self._encoded(self._due.pop(next(iter(self._due))))
            report.balancers = balancers
            size += report.ByteSize() + _FRAMING_BYTES
            if message.reports and size > bounds.MAX_REPORT_BYTES:
                self._put_off = report
                break
            self._put_off = None
            message.reports.append(report)
            told = self._told[report.worker]
            told.draining_from = (told.draining_from or self._sent) if report.draining else 0
        self._relay.counts.relayed += len(message.reports)
        self._unacknowledged.append([report.worker for report in message.reports])
        return message

    def _encoded(self, report: Report) -> report_pb2.WorkerReport:
        told = self._told.get(report.worker)
        if told is None:
            told = self._told[report.worker] = _OfWorker()
        message = told.encoder.encode(report)
        message.prompts.extend(told.listener.next() if told.listener else ())
        return message

    async def _read(self, call: _Call) -> None:
        while isinstance(ack := await call.read(), report_pb2.RelayAck):
            if self._acknowledged_s == -math.inf:
                self._status.connected()
            self._acknowledged_s = asyncio.get_running_loop().time()
            workers = self._acknowledged(ack.received)
            for each in ack.refused:
                self._refused(each.worker, each.why)
            unlisted = set(ack.unlisted)
            for worker in workers:
                told = self._told.get(worker)
                if told is not None and (worker in unlisted) != (told.listener is None):
                    log = self._relay.prompts[worker]
                    told.listener = None if worker in unlisted else Listener(log, self.address)
            self._take_prompts(ack)
            self._want(ack.quiet_period_s)
            self._moved.set()

    def _want(self, pause_s: float) -> None:
        before, self.pause_s = self.pause_s, min(pause_s, _LONGEST_PAUSE_S) if pause_s > 0 else 0.0
        if self.pause_s < before:
            self._relay.flows()

    def _acknowledged(self, received: int) -> list[str]:
        """The workers of the messages that are acknowledged now."""
        new = min(max(received - self._received, 0), len(self._unacknowledged))
        self._received += new
        return list(itertools.chain.from_iterable(self._unacknowledged.popleft() for _ in range(new)))

    def _refused(self, worker: str, why: str) -> None:
        if worker not in self._told:
            return
        self.lose(worker)
        self._lost.remove(worker)
        self._muted[worker] = asyncio.get_running_loop().time() + _REFUSED_S
        self._relay.counts.refused += 1
        if self._throttle.due():
            logger.warning("balancer %s takes no more of worker %s: %s", self.address, shown(worker), shown(why))

    def _take_prompts(self, ack: report_pb2.RelayAck) -> None:
        for each in ack.prompts:
            try:
                decode_prompts(each.prompts)
            except OutOfBoundsError as error:
                if self._throttle.due():
                    logger.warning("balancer %s: prompts are left out: %s", self.address, error)
            else:
                if each.worker in self._relay.prompts:
                    self._relay.prompts[each.worker].add(self.address, each.prompts)


class Relay:
    """Keeps the newest report of each worker, and offers it to every address that the targets resolve to."""

    def __init__(
        self, targets: Sequence[str], tls: BalancerTls | None, period_s: float, flows: Callable[[], None] = lambda: None
    ) -> None:
        """Nothing is opened yet.

        Args:
            targets: `host:port` or `unix:/path` of balancers' reports; a name with several addresses stands for all.
            tls: Towards them; None: plain text.
            period_s: Between two messages to one balancer, at least.
            flows: Called when a balancer wants reports at full rate from now on.
        """
        self.newest: dict[str, Report] = {}
        self.prompts: dict[str, PromptLog] = {}
        self.period_s, self.flows = period_s, flows
        self.counts = RelayCounts()
        self._streams = Streams(targets, lambda address: ToBalancer(address, self, tls))

    @property
    def connected(self) -> int:
        """How many balancers acknowledged something of late."""
        return sum(each.connected for each in self._streams.by_address.values())

    @property
    def pause_s(self) -> float:
        """Seconds that may pass between two reports by what all balancers say; 0: as few as can be."""
        return min((each.pause_s for each in self._streams.by_address.values()), default=0.0)

    def know_draining(self, worker: str) -> bool:
        """Whether every connected balancer acknowledged that the worker drains."""
        return all(each.knows_draining(worker) for each in self._streams.by_address.values() if each.connected)

    def observe(self, event: Event) -> None:
        """Take in what a collector hears."""
        if isinstance(event, Report):
            # What its agent knows of others it knows of this relay.
            report = replace(event, peers_in_flight=None, peers_prompts=())
            self.newest[report.worker] = report
            self.prompts.setdefault(report.worker, PromptLog()).belongs_to(report.incarnation)
            for each in self._streams.by_address.values():
                each.offer(report)
        elif isinstance(event, ReportsLost):
            self.newest.pop(event.worker, None)
            self.prompts.pop(event.worker, None)
            for each in self._streams.by_address.values():
                each.lose(event.worker)

    async def run(self) -> None:
        """Relay until cancelled."""
        await self._streams.run()
