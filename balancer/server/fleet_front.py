"""The listener for calls about the fleet: its parts put together, and what the process tells them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import Sequence
from typing import Any, Protocol

import grpc
from aiohttp import web

from balancer.config.config import Config
from balancer.config.listen import is_unix
from balancer.core.router import Router
from balancer.discovery.workers import WorkerSpec
from balancer.files.schema import UNIX, split_address
from balancer.fleet.asking import Asking
from balancer.fleet.control import Control
from balancer.fleet.counts import Counts
from balancer.fleet.grpc_calls import GrpcCalls
from balancer.fleet.members import Members
from balancer.fleet.questions import Questions
from balancer.fleet.rest_calls import RestCalls
from balancer.fleet.settings import settings_of
from balancer.operate.metrics import Metrics
from balancer.operate.mistakes import Mistakes
from balancer.security import identity
from balancer.security.certificates import Certificates
from balancer.security.listeners import AddressInUseError
from balancer.workers.links import Links

MAX_BODY_BYTES = 4 * 2**20
"""Of a call: a load may bring a configuration with it, though no large file."""
_LOOK_EVERY_S = 1.0
_KEEPALIVE_S = 60.0
_SOCKET_UMASK = 0o117
_NO_LINES = logging.getLogger("balancer.fleet.http")
# aiohttp writes a traceback for each request that is not HTTP.
_NO_LINES.disabled = True


class Forwards(Protocol):
    """Answers what is no call about the fleet."""

    def takes(self, path: str) -> bool:
        """Whether it answers requests for this path."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one of them; cancelled where its client leaves."""


class FleetFront:
    """Belongs to one process and its event loop. Without a listener it is told everything, and does nothing."""

    def __init__(
        self, config: Config, process: int, router: Router, metrics: Metrics, links: Links, forwards: Forwards
    ) -> None:
        """`links`: to the workers; whoever made them tells them who is listed."""
        self._address = (config.listen.fleet_addresses(process) or ("", ""))[1]
        self._shared = config.processes > 1
        self._forwards = forwards
        self._settings = settings_of(config)
        self._known = False
        self._looked_s = 0.0
        counts = Counts(metrics.registry)
        self._members = Members(router)
        self._questions = Questions(self._members, Asking(), lambda: self._settings, counts)
        # With places of its own: changes take minutes, and nobody's question is to wait for them.
        self._control = Control(
            self._members, Asking(), links.channels, lambda: self._settings.control, counts, replays=process == 0
        )

        def known() -> bool:
            return self._known

        self._grpc = GrpcCalls(self._questions, self._control, links.channels, counts, known)
        mistakes = Mistakes(metrics.handler_errors, time.monotonic)
        self._rest = RestCalls(
            self._questions,
            self._control,
            links.rest,
            counts,
            known,
            lambda error: mistakes.caught("fleet", error),
        )
        self._listening: asyncio.Server | None = None
        self._handlers: web.Server | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the calls of gRPC."""
        self._grpc.add_to(server)

    async def listen(self, certificates: Certificates | None) -> None:
        """Serve HTTP where the config says so, beside what is registered for gRPC.

        Raises:
            AddressInUseError: it cannot be had.
        """
        if not self._address:
            return
        role = None if certificates is None else certificates.role

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            shown = request.transport.get_extra_info("peercert") if request.transport is not None else None
            if role is not None and not identity.has_role(identity.names_of(shown), role):
                return web.Response(status=403)
            if self._forwards.takes(request.rel_url.raw_path):
                return await self._forwards.answer(request)
            # Whoever asks about the fleet may leave, and what was begun goes on: a change, or an answer for others too.
            return await asyncio.shield(self._rest.answer(request))

        loop = asyncio.get_running_loop()

        def bounded(*parts: Any) -> web.BaseRequest:
            message, payload, protocol, writer, task = parts
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)

        self._handlers = web.Server(
            answer,
            request_factory=bounded,
            handler_cancellation=True,
            keepalive_timeout=_KEEPALIVE_S,
            access_log=None,
            logger=_NO_LINES,
        )
        tls = None if certificates is None else certificates.ssl_context()
        try:
            self._listening = await self._open(self._handlers, tls)
        except OSError as error:
            raise AddressInUseError("listen.fleet", self._address) from error

    async def _open(self, handlers: web.Server, tls: ssl.SSLContext | None) -> asyncio.Server:
        loop, address = asyncio.get_running_loop(), self._address
        if is_unix(address):
            umask = os.umask(_SOCKET_UMASK)
            try:
                # What an ended process left, asyncio removes.
                return await loop.create_unix_server(handlers, address.removeprefix(UNIX), ssl=tls)
            finally:
                os.umask(umask)
        host, port = split_address(address)
        return await loop.create_server(handlers, host, port, ssl=tls, reuse_port=self._shared)

    def configure(self, config: Config) -> None:
        """Another config is in force."""
        self._settings = settings_of(config)

    def workers(self, listed: Sequence[WorkerSpec]) -> None:
        """Another list of workers."""
        workers = tuple(listed)
        left = set(self._members.names) - {worker.name for worker in workers}
        self._members.listed = workers
        self._known = True
        self._questions.forget(left)
        self._control.workers(workers)

    def tick(self, now_s: float) -> None:
        """Time passes."""
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self._control.tick()

    async def stop(self) -> None:
        """End what is under way."""
        if self._listening is not None:
            self._listening.close()
        if self._handlers is not None:
            with contextlib.suppress(TimeoutError):
                await self._handlers.shutdown(timeout=0.5)
        await self._control.close()
