"""The listener for calls about the fleet, and its parts."""

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
from prometheus_client import CollectorRegistry

from balancer.channels.channels import Links
from balancer.config.config import Config
from balancer.discovery.workers import WorkerSpec
from balancer.files.schema import UNIX, is_unix, split_address
from balancer.fleet_api.control import Control
from balancer.fleet_api.fan_out import FanOut, FleetCallCounts
from balancer.fleet_api.grpc_calls import GrpcCalls
from balancer.fleet_api.questions import Members, Questions
from balancer.fleet_api.rest_calls import RestCalls
from balancer.scheduler.any_router import AnyRouter
from balancer.server.internal_errors import InternalErrors
from balancer.server.metrics import Metrics
from balancer.server.security.certificates import Certificates
from balancer.server.security.gatekeeper import has_role, names_of
from balancer.server.security.listeners import AddressInUseError

MAX_BODY_BYTES = 4 * 2**20
"""Of a call: a load may bring a configuration with it, though no large file."""
_LOOK_EVERY_S = 1.0
_KEEPALIVE_S = 60.0
_SOCKET_UMASK = 0o117
_NO_LINES = logging.getLogger("balancer.fleet_api.http")
# aiohttp writes a traceback for each request that is not HTTP.
_NO_LINES.disabled = True


class Forwards(Protocol):
    """Answers what is not about the fleet."""

    def takes(self, path: str) -> bool: ...

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse: ...


class FleetFront:
    """Belongs to one process and its event loop. Without a listener it has all parts, and serves nothing."""

    def __init__(
        self,
        config: Config,
        process: int,
        router: AnyRouter,
        metrics: Metrics,
        links: Links,
        forwards: Sequence[Forwards] = (),
    ) -> None:
        """`links`: to the workers, kept up to date by their maker."""
        self._address = (config.listen.fleet_addresses(process) or ("", ""))[1]
        self._shared = config.processes > 1
        self._forwards = forwards
        self._config = config
        self._known = False
        self._looked_s = 0.0
        registry = CollectorRegistry()
        counts = FleetCallCounts(registry)
        metrics.register(registry.collect)
        self._members = Members(router)
        self._questions = Questions(self._members, FanOut(), lambda: self._config, counts)
        # With places of its own: changes take minutes, and nobody's question is to wait for them.
        self._control = Control(
            self._members, FanOut(), links.channels, lambda: self._config, counts, replays=process == 0
        )
        self._grpc = GrpcCalls(self._questions, self._control, links.channels, counts, lambda: self._known)
        internal_errors = InternalErrors(metrics.handler_errors, time.monotonic)

        def failed(error: Exception) -> None:
            internal_errors.caught("fleet", error)

        self._rest = RestCalls(self._questions, self._control, links.rest, counts, lambda: self._known, failed)
        self._listening: asyncio.Server | None = None
        self._handlers: web.Server | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
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
            if role is not None and not has_role(names_of(shown), role):
                return web.Response(status=403)
            for each in self._forwards:
                if each.takes(request.rel_url.raw_path):
                    return await each.answer(request)
            # The client may leave, and what was begun goes on: a change, or an answer for other clients too.
            return await asyncio.shield(self._rest.answer(request))

        loop = asyncio.get_running_loop()

        def bounded(*parts: Any) -> web.BaseRequest:
            message, payload, protocol, writer, task = parts
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)

        self._handlers = web.Server(
            answer,
            request_factory=bounded,
            handler_cancellation=True,
            # What is compressed is inflated within bounds, by whoever reads it.
            auto_decompress=False,
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
        self._config = config

    def workers(self, listed: Sequence[WorkerSpec]) -> None:
        workers = tuple(worker for worker in listed if worker.takes_grpc)
        left = set(self._members.names) - {worker.name for worker in workers}
        self._members.listed = workers
        self._members.unasked = frozenset(worker.name for worker in listed if not worker.takes_grpc)
        self._known = True
        self._questions.forget(left)
        self._control.workers(workers)

    def tick(self, now_s: float) -> None:
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self._control.tick()

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.close()
        if self._handlers is not None:
            with contextlib.suppress(TimeoutError):
                await self._handlers.shutdown(timeout=0.5)
        await self._control.close()
