"""What peers tell of their picks: the gRPC service `balancer.telemetry.v1.Peers`."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.log_throttle import LogThrottle
from balancer.reports import report_pb2
from balancer.reports.silence import SILENCE_S
from balancer.scheduler.events import PeerLost, PeerPicks, PeerTold

logger = logging.getLogger(__name__)

SERVICE = report_pb2.DESCRIPTOR.services_by_name["Peers"].full_name

_Context = grpc.aio.ServicerContext[report_pb2.PicksTold, report_pb2.PeerAck]


@dataclass(slots=True)
class HearingCounts:
    """What was heard of peers; all cumulative but `peers`."""

    peers: int = 0
    messages: int = 0
    bytes: int = 0


class Hearing:
    """Turns what peers tell into `PeerTold`, and the end of their streams into `PeerLost`.

    The newest stream of a peer is the peer: it may be back before its old connection is known to be dead.
    """

    def __init__(
        self,
        identity: int,
        on_event: Callable[[PeerTold | PeerLost], None],
        refused: Callable[[str], None] = lambda field: None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`identity`: of this process. `refused` is called with each message out of bounds, by the field that is."""
        self.counts = HearingCounts()
        self._identity, self._on_event = identity, on_event
        self._refused, self._silence_s = refused, silence_s
        self._speakers: dict[int, asyncio.Task[object]] = {}
        self._throttle = LogThrottle(time.monotonic)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service; call it before the server starts."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._hear,
            request_deserializer=report_pb2.PicksTold.FromString,
            response_serializer=report_pb2.PeerAck.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Tell": handler}),))

    async def _hear(self, _: object, context: _Context) -> None:
        first = await self._next(context)
        if first is None:
            return
        if first.balancer == self._identity:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "this is the balancer that tells")
        if first.balancer not in self._speakers and len(self._speakers) >= bounds.MAX_BALANCERS:
            self._refused("peers")
            why = f"{bounds.MAX_BALANCERS} peers are heard, and no more may be"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        task = asyncio.current_task()
        assert task is not None  # grpc.aio runs each handler as a task
        before, self._speakers[first.balancer] = self._speakers.get(first.balancer), task
        if before is not None:
            before.cancel()
        self.counts.peers = len(self._speakers)
        try:
            await self._converse(first, context)
        except OutOfBoundsError as error:
            self._refused(error.field)
            if self._throttle.due():
                logger.warning("peer %s: is heard no longer: %s", context.peer(), error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            if self._speakers.get(first.balancer) is task:
                raise
            task.uncancel()
            await context.abort(grpc.StatusCode.ABORTED, "another stream of this peer is heard now")
        finally:
            if self._speakers.get(first.balancer) is task:
                del self._speakers[first.balancer]
                self.counts.peers = len(self._speakers)
                self._on_event(PeerLost(f"{first.balancer:x}"))

    async def _converse(self, first: report_pb2.PicksTold, context: _Context) -> None:
        message: report_pb2.PicksTold | None = first
        while message is not None:
            self.counts.messages += 1
            self.counts.bytes += message.ByteSize()
            self._on_event(PeerTold(f"{first.balancer:x}", decode_picks(message), decode_waits(message)))
            message = await self._next(context)

    async def _next(self, context: _Context) -> report_pb2.PicksTold | None:
        """The next message; None: the peer ended."""
        try:
            async with asyncio.timeout(self._silence_s):
                message = await context.read()
        except TimeoutError:
            why = f"nothing was told for {self._silence_s} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, why)
        return message if isinstance(message, report_pb2.PicksTold) else None


def decode_picks(message: report_pb2.PicksTold) -> tuple[PeerPicks, ...]:
    """Raises OutOfBoundsError."""
    bounds.at_most("picks", len(message.picks), bounds.MAX_PICKS_TOLD)
    return tuple(map(_decoded, message.picks))


def decode_waits(message: report_pb2.PicksTold) -> tuple[tuple[str, float], ...]:
    """Raises OutOfBoundsError."""
    bounds.at_most("waits", len(message.waits), bounds.MAX_PICKS_TOLD)
    most = bounds.MAX_WAITING_TOKENS
    return tuple(
        (
            bounds.text("waits.worker", told.worker),
            bounds.number("waits.waiting_tokens", told.waiting_tokens, 0.0, most),
        )
        for told in message.waits
    )


def _decoded(told: report_pb2.WorkerPicks) -> PeerPicks:
    sent = int(bounds.number("picks.sent", told.sent, 0, bounds.MAX_COUNT))
    done = int(bounds.number("picks.done", told.done, max(sent - bounds.MAX_IN_FLIGHT, 0), sent))
    return PeerPicks(
        bounds.text("picks.worker", told.worker),
        bounds.text("picks.model", told.model),
        sent,
        bounds.number("picks.sent_rows", told.sent_rows, 0.0, bounds.MAX_COUNT),
        done,
        bounds.number("picks.done_rows", told.done_rows, 0.0, bounds.MAX_COUNT),
    )
