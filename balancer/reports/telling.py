"""This balancer's streams to its peers, which it tells of its picks and their ends as they come."""

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Callable, Sequence
from typing import NoReturn

import grpc

from balancer import bounds
from balancer.balancer_tls import BalancerTls, credentials
from balancer.errors import OperatorError
from balancer.reports import report_pb2
from balancer.reports.addresses import Streams
from balancer.reports.sending import CHANNEL_OPTIONS
from balancer.scheduler.events import PeerPicks
from balancer.scheduler.peers import OwnPicks

logger = logging.getLogger(__name__)

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
_SAY_AGAIN_S = 60.0

_Method = grpc.aio.StreamStreamMultiCallable[report_pb2.PicksTold, report_pb2.PeerAck]
_Call = grpc.aio.StreamStreamCall[report_pb2.PicksTold, report_pb2.PeerAck]


class Teller:
    """The stream to one peer."""

    def __init__(self, address: str, tls: BalancerTls | None, identity: int, picks: OwnPicks) -> None:
        self.wanted = True
        self.moved = asyncio.Event()
        """Set when there may be something to tell."""
        self._address, self._tls, self._identity, self._picks = address, tls, identity, picks
        self._failure, self._said_s = "", -math.inf

    async def run(self) -> None:
        while self.wanted:
            pause_s = _PAUSE_S
            try:
                await self._connection()
            except OperatorError as error:
                self._failed(str(error))
            except grpc.aio.AioRpcError as error:
                if error.code() in _TOLD_ELSEWHERE:
                    pause_s = _TOLD_ELSEWHERE_S
                else:
                    self._failed(f"{error.code().name} {error.details()}")
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _connection(self) -> None:
        if self._tls is None:
            channel = grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
        else:
            trusted = await asyncio.to_thread(credentials, self._tls)
            # The address is one of several that a name stands for, so the certificate is held against that name.
            name = ("grpc.ssl_target_name_override", self._tls.server_name)
            channel = grpc.aio.secure_channel(self._address, trusted, options=(*CHANNEL_OPTIONS, name))
        async with channel:
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
                    self._failure = ""
                    logger.info("peer %s: is told of picks", self._address)
                message = report_pb2.PicksTold()
                await asyncio.sleep(_EVERY_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LIFE_S):
                        await self.moved.wait()

    def _failed(self, why: str) -> None:
        """Log it unless the same was said within the last minute."""
        now_s = asyncio.get_running_loop().time()
        if why != self._failure or now_s - self._said_s > _SAY_AGAIN_S:
            self._failure, self._said_s = why, now_s
            logger.warning("peer %s: is not told of picks, trying again: %s", self._address, why)


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
