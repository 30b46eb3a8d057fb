"""Sees at once that a Triton begins to stop, and keeps it serving until the balancers know.

On SIGTERM a Triton (2.51) takes no new HTTP connections: it closes each at once, and its port where none was open. Then
it waits, up to `--exit-timeout-secs`, for the HTTP connections that are open, and meanwhile serves on them and over
gRPC as before; only when there are none does it refuse. So the port says that Triton is stopping, and one open
connection holds it where it still serves everything. The agent keeps one, and lets go of it as soon as the balancers
have acknowledged that the worker drains and nothing is left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import cast

logger = logging.getLogger(__name__)

PERIOD_S = 0.05
HOLD_S = 10.0
"""A Triton that stops is held no longer than that, whoever has not heard of it."""
_TIMEOUT_S = 0.5
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: a connection that was only a question leaves no TIME_WAIT behind."""


class TritonPort:
    """Triton's HTTP port, asked 20 times a second, or rarely while all is quiet, whether it takes connections."""

    def __init__(
        self,
        address: str,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`address` is `host:port`; nothing is opened yet. `pause` waits between two questions; `closed` is called when
        Triton closes the connection that is kept, as it does when it is killed."""
        self._pause, self._closed = pause, closed
        self.address = address
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._held: _Connection | None = None
        self._was_open = False
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether the port was open in this life of Triton's and takes no connection now."""
        return self._stopping

    async def watch(self, answers: Callable[[], bool], on_stop: Callable[[], Awaitable[None]]) -> None:
        """Ask until cancelled.

        Args:
            answers: Whether Triton answers otherwise: one that is gone or hangs is not asked.
            on_stop: Called when Triton begins to stop; it is let go when this returns, or after `HOLD_S`.
        """
        try:
            while True:
                if not answers():
                    self._let_go()
                    self._was_open = self._stopping = False
                    await asyncio.sleep(PERIOD_S)
                    continue
                takes = await self._takes_connections()
                if takes:
                    self._was_open, self._stopping = True, False
                    await self._hold()
                    await self._pause(0.0)  # the question took its time
                elif takes is False and self._was_open and not self._stopping:
                    await self._stop(answers, on_stop)
                else:
                    await asyncio.sleep(PERIOD_S)
        finally:
            self._let_go()

    async def _stop(self, answers: Callable[[], bool], on_stop: Callable[[], Awaitable[None]]) -> None:
        """Stays so until a connection is taken again, or Triton is gone."""
        self._stopping = True
        logger.warning("Triton is stopping: %s takes no more connections; the worker drains", self.address)
        waiting = asyncio.ensure_future(on_stop())
        try:
            async with asyncio.timeout(HOLD_S):
                while answers() and not waiting.done():
                    await asyncio.wait({waiting}, timeout=PERIOD_S)
            logger.info("Triton is let go: %s", "nothing more is coming" if waiting.done() else "it is gone")
        except TimeoutError:
            logger.warning("Triton is let go after %.0f s, with requests left or balancers that do not know", HOLD_S)
        finally:
            waiting.cancel()
        self._let_go()

    async def _takes_connections(self) -> bool | None:
        """Whether a new connection stays open for `PERIOD_S`; None: no answer, which says nothing."""
        try:
            asking = await self._connect()
        except ConnectionRefusedError:
            return False
        except (OSError, TimeoutError):
            return None
        try:
            async with asyncio.timeout(PERIOD_S):
                await asking.closed.wait()
        except TimeoutError:
            return True
        finally:
            asking.close()
        return False

    async def _hold(self) -> None:
        if self._held is None or self._held.closed.is_set():
            with contextlib.suppress(OSError, TimeoutError):
                self._held = await self._connect()
                self._held.on_lost = self._closed

    async def _connect(self) -> _Connection:
        async with asyncio.timeout(_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        if self._held is None and connection.peer is not None:
            # From now on without looking the name up.
            self._host, self._port = connection.peer
        return connection

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.on_lost = lambda: None
            self._held.close()
            self._held = None


class _Connection(asyncio.Protocol):
    """Says nothing, and notices when the other end closes."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.on_lost: Callable[[], None] = lambda: None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Of a TCP connection; uvloop's are no subclass.
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self.on_lost()

    @property
    def peer(self) -> tuple[str, int] | None:
        """Host and port of the other end; None: it has reset the connection before one could ask."""
        assert self._transport is not None  # connected
        name = self._transport.get_extra_info("peername")
        return None if name is None else (name[0], name[1])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
