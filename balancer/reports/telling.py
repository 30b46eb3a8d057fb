"""This balancer's streams to its peers, which it tells of its picks and their ends as they come."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import NoReturn

import grpc

from balancer import bounds
from balancer.balancer_tls import BalancerTls
from balancer.errors import OperatorError
from balancer.reports import report_pb2
from balancer.reports.addresses import Streams
from balancer.reports.sending import channel_to
from balancer.reports.stream_failures import StreamFailure, StreamStatus
from balancer.scheduler.events import PeerPicks
from balancer.scheduler.peers import OwnPicks

METHOD = f"/{report_pb2.DESCRIPTOR.services_by_name['Peers'].full_name}/Tell"
_EVERY_S = 0.001
"""Between two messages at least: a peer that knows of picks a millisecond later picks nearly as one balancer would."""
_LOOK_S, _QUIET_LOOK_S = 0.002, 0.1
"""How often what Envoys picked by themselves is looked at, and while no requests flow."""
_LIFE_S = 0.3
"""A sign of life at least: a peer that says nothing for a second is taken for dead."""
_PAUSE_S = 1.0
"""Between two attempts."""
_TOLD_ELSEWHERE = (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.ABORTED)
_TOLD_ELSEWHERE_S = 60.0
"""The same at an address that is this process's own, as a name of all balancers has it, or a peer's second one."""

_Method = grpc.aio.StreamStreamMultiCallable[report_pb2.PicksTold, report_pb2.PeerAck]
_Call = grpc.aio.StreamStreamCall[report_pb2.PicksTold, report_pb2.PeerAck]


class Teller:
    """The stream to one peer."""

    def __init__(self, address: str, tls: BalancerTls | None, identity: int, picks: OwnPicks) -> None:
        self.wanted = True
        self.moved = asyncio.Event()
        """Set when there may be something to tell."""
        self._address, self._tls, self._identity, self._picks = address, tls, identity, picks
        self._status = StreamStatus(address, "picks to peer")

    async def run(self) -> None:
        while self.wanted:
            pause_s = _PAUSE_S
            try:
                await self._connection()
            except OperatorError as error:
                self._status.failed(StreamFailure(str(error)), asyncio.get_running_loop().time())
            except grpc.aio.AioRpcError as error:
                if error.code() in _TOLD_ELSEWHERE:
                    pause_s = _TOLD_ELSEWHERE_S
                else:
                    failure = StreamFailure(f"{error.code().name} {error.details()}", code=error.code())
                    self._status.failed(failure, asyncio.get_running_loop().time())
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _connection(self) -> None:
        async with await channel_to(self._address, self._tls) as channel:
            method: _Method = channel.stream_stream(
                METHOD,
                request_serializer=report_pb2.PicksTold.SerializeToString,
                response_deserializer=report_pb2.PeerAck.FromString,
            )
            call = method()
            telling = asyncio.create_task(self._tell(call))
            try:
                # Nothing is ever answered: this returns at the end, and raises where it is no good one.
                await call.read()
            finally:
                telling.cancel()
                call.cancel()

    async def _tell(self, call: _Call) -> None:
        told, message = self._picks.nothing_told(), report_pb2.PicksTold(balancer=self._identity)
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # who reads knows how it ended
            while True:
                self.moved.clear()
                message.picks.extend(map(_encoded, self._picks.since(told, bounds.MAX_PICKS_TOLD)))
                for worker, tokens in self._picks.waits_since(told):
                    message.waits.add(worker=worker, waiting_tokens=tokens)
                await call.write(message)
                if message.balancer:
                    self._status.well()
                    self._status.connected()
                message = report_pb2.PicksTold()
                await asyncio.sleep(_EVERY_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LIFE_S):
                        await self.moved.wait()


class Tellers(Streams[Teller]):
    """A stream to each peer."""

    def __init__(self, targets: Sequence[str], tls: BalancerTls | None, identity: int, picks: OwnPicks) -> None:
        """Nothing is opened yet.

        Args:
            targets: `host:port` or `unix:/path` of their reports; this process's own may be among them.
            tls: Towards them; None: plain text.
            identity: Of this process.
            picks: What they are told.
        """
        super().__init__(targets, lambda address: Teller(address, tls, identity, picks))

    def moved(self) -> None:
        """There may be something to tell."""
        for teller in self.by_address.values():
            teller.moved.set()

    async def look(self, picks: OwnPicks, flows: Callable[[], bool]) -> NoReturn:
        """Find out by looking whether there is, where others than this process pick; until cancelled."""
        told = picks.nothing_told()
        while True:
            if picks.since(told, bounds.MAX_PICKS_TOLD) or picks.waits_since(told):
                self.moved()
            await asyncio.sleep(_LOOK_S if flows() else _QUIET_LOOK_S)


def _encoded(picks: PeerPicks) -> report_pb2.WorkerPicks:
    return report_pb2.WorkerPicks(**picks._asdict())
