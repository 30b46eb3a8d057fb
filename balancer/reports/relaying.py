"""Between the agents of a rack and all balancers: of each worker the newest report, on one stream a balancer."""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import grpc

from balancer.balancer_tls import BalancerTls
from balancer.bounds import OutOfBoundsError, shown
from balancer.errors import OperatorError
from balancer.log_throttle import LogThrottle
from balancer.reports import report_pb2
from balancer.reports.addresses import Streams
from balancer.reports.collector import Collector, MaySpeak, anybody
from balancer.reports.intake import Intake
from balancer.reports.outgoing import Outgoing
from balancer.reports.prompts import PromptLog, decode_prompts
from balancer.reports.sending import STEADY_S, channel_to
from balancer.reports.stream_failures import StreamFailure, StreamStatus, explain, shown_to
from balancer.scheduler.events import Event, Report, ReportsLost

logger = logging.getLogger(__name__)

METHOD = f"/{report_pb2.DESCRIPTOR.services_by_name['Relays'].full_name}/Relay"
_CONNECTED_WITHIN_S = 5.0
"""A balancer of very many workers lets its relays wait some seconds for their turn."""
_LIFE_S = 0.3
"""A sign of life at least: a relay that says nothing for a second is taken for dead."""
_PAUSE_S = 1.0
"""Between two attempts."""
_REFUSED_S = 5.0
"""Until a balancer is told again of a worker of which it took no more."""
_LONGEST_PAUSE_S = 1.0
_MOST_SHOWN = 300
"""Characters of a balancer's reason that the log gets."""

_Method = grpc.aio.StreamStreamMultiCallable[report_pb2.RelayedReports, report_pb2.RelayAck]
_Call = grpc.aio.StreamStreamCall[report_pb2.RelayedReports, report_pb2.RelayAck]


@dataclass(slots=True)
class RelayCounts:
    """Of all balancers together; all cumulative."""

    sent: int = 0
    """Reports sent on."""
    replaced: int = 0
    """Those that were not, since a newer one of their worker came."""
    refused: int = 0
    """Times that a balancer took no more of a worker."""


class _ToBalancer:
    """The stream to one balancer."""

    def __init__(self, address: str, relay: "Relay", tls: BalancerTls | None) -> None:
        """`address` is `ip:port`, or `unix:/path`; `run` connects."""
        self.wanted = True
        self._address, self._relay, self._tls = address, relay, tls
        self._status = StreamStatus(address, "relayed reports to balancer")
        self._throttle = LogThrottle(time.monotonic)
        self._moved = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        """Before and after a stream."""
        self._outgoing = Outgoing(self._address, self._relay.newest, self._relay.prompts)
        self._muted: dict[str, float] = {}
        """Until when, by worker of which the balancer takes no more."""
        self._acknowledged_s = -math.inf
        self.pause_s = _LONGEST_PAUSE_S
        """Seconds that may pass between two reports, as the balancer says; where there is no stream, nobody waits."""

    @property
    def connected(self) -> bool:
        return asyncio.get_running_loop().time() - self._acknowledged_s < _CONNECTED_WITHIN_S

    def knows_draining(self, worker: str) -> bool:
        return self._outgoing.knows_draining(worker)

    def offer(self, report: Report) -> None:
        if self._muted and self._muted.get(report.worker, 0.0) > asyncio.get_running_loop().time():
            return
        self._relay.counts.replaced += self._outgoing.offer(report)
        self._moved.set()

    def lose(self, worker: str) -> None:
        self._muted.pop(worker, None)
        self._outgoing.lose(worker)
        self._moved.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while self.wanted:
            began_s = loop.time()
            failure = await self._connection()
            if self._acknowledged_s > -math.inf and loop.time() - began_s > STEADY_S:
                self._status.well()
            self._begin()
            self._status.failed(failure, loop.time())
            await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.0))

    async def _connection(self) -> StreamFailure:
        try:
            channel = await channel_to(self._address, self._tls)
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
                while isinstance(ack := await call.read(), report_pb2.RelayAck):
                    self._take(ack)
                code, details = await call.code(), await call.details() or ""
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details() or ""
            finally:
                sending.cancel()
                call.cancel()
        return explain(code, details, shown_to(self._tls))

    async def _send(self, call: _Call) -> None:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # who reads knows how it ended
            clock, due_s = asyncio.get_running_loop().time, 0.0
            while True:
                message = self._outgoing.message(max(self._relay.connected, 1))
                more = self._outgoing.waits
                await call.write(message)
                self._relay.counts.sent += len(message.reports)
                await self._until(lambda: self._outgoing.may_send)
                if not more:
                    due_s = max(due_s + self._relay.period_s, clock())
                    await asyncio.sleep(due_s - clock())
                    with contextlib.suppress(TimeoutError):  # an empty one says that this relay lives
                        async with asyncio.timeout(_LIFE_S):
                            await self._until(lambda: self._outgoing.waits)

    async def _until(self, come: Callable[[], bool]) -> None:
        while not come():
            self._moved.clear()
            await self._moved.wait()

    def _take(self, ack: report_pb2.RelayAck) -> None:
        if self._acknowledged_s == -math.inf:
            self._status.connected()
        now_s = self._acknowledged_s = asyncio.get_running_loop().time()
        self._outgoing.acknowledged(ack.received, ack.unlisted)
        for refused in ack.refused:
            if self._outgoing.forget(refused.worker):
                self._muted[refused.worker] = now_s + _REFUSED_S
                self._relay.counts.refused += 1
                self._warn("takes no more of worker %s: %s", shown(refused.worker), refused.why[:_MOST_SHOWN])
        for told in ack.prompts:
            try:
                decode_prompts(told.prompts)
            except OutOfBoundsError as error:
                self._warn("has prompts that are left out: %s", error)
            else:
                self._relay.tell(self._address, told)
        before, pause_s = self.pause_s, ack.quiet_period_s
        self.pause_s = min(pause_s, _LONGEST_PAUSE_S) if pause_s > 0 else 0.0
        if self.pause_s < before:
            self._relay.flows.set()
        self._moved.set()

    def _warn(self, message: str, *values: object) -> None:
        if self._throttle.due():
            logger.warning(f"balancer %s {message}", self._address, *values)


class Relay:
    """To agents a balancer; keeps the newest report of each, and offers it to every address that the targets resolve
    to."""

    def __init__(
        self, targets: Sequence[str], tls: BalancerTls | None, period_s: float, may_speak: MaySpeak = anybody
    ) -> None:
        """Nothing is opened yet.

        Args:
            targets: `host:port` or `unix:/path` of balancers' reports; a name with several addresses stands for all.
            tls: Towards them; None: plain text.
            period_s: Between two messages to one balancer, at least.
            may_speak: Of agents, as of `Collector`.
        """
        self.newest: dict[str, Report] = {}
        self.prompts: dict[str, PromptLog] = {}
        self.period_s = period_s
        self.flows = asyncio.Event()
        """Set when a balancer wants reports at full rate from now on."""
        self.counts = RelayCounts()
        self.collector = Collector(
            Intake(self.observe),
            may_speak=may_speak,
            told_all=lambda worker: True,
            pause_s=self._pause_s,
            knows_draining=self._know_draining,
        )
        """What agents' streams come to; for whoever has a server."""
        self._streams = Streams(targets, lambda address: _ToBalancer(address, self, tls))

    @property
    def connected(self) -> int:
        """How many balancers acknowledged something of late."""
        return sum(each.connected for each in self._streams.by_address.values())

    async def run(self) -> None:
        """Relay until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._streams.run())
            while True:
                await self.flows.wait()
                self.flows.clear()
                await self.collector.wake()

    def tell(self, balancer: str, told: report_pb2.WorkerPrompts) -> None:
        """A balancer sent these prompts to a worker."""
        if told.worker in self.prompts:
            self.prompts[told.worker].add(balancer, told.prompts)

    def observe(self, event: Event) -> None:
        """Take in what an agent's stream brings."""
        to_balancers = self._streams.by_address.values()
        if isinstance(event, Report):
            # What its agent knows of others it knows of this relay alone.
            report = replace(event, peers_in_flight=None, peers_prompts=())
            self.newest[report.worker] = report
            self.prompts.setdefault(report.worker, PromptLog()).belongs_to(report.incarnation)
            for each in to_balancers:
                each.offer(report)
        elif isinstance(event, ReportsLost):
            self.newest.pop(event.worker, None)
            self.prompts.pop(event.worker, None)
            for each in to_balancers:
                each.lose(event.worker)

    def _pause_s(self) -> float:
        """Seconds that may pass between two reports by what all balancers say; 0: as few as can be."""
        return min((each.pause_s for each in self._streams.by_address.values()), default=0.0)

    def _know_draining(self, worker: str) -> bool:
        return all(each.knows_draining(worker) for each in self._streams.by_address.values() if each.connected)
