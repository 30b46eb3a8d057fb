"""What is attacked: a real balancer and a real Envoy, before workers that answer anything at once."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
from aiohttp import web
from tritonclient.grpc import service_pb2

from balancer.discovery.workers import WorkerSpec
from balancer.reports.sending import METHOD
from balancer.stack.process import free_port_range
from balancer.stack.stack import OwnStack
from dev.stack import MODEL
from fuzz import inputs

_GRPC = "/inference.GRPCInferenceService/"
_CHANGES = re.compile(
    r"RepositoryModel(Load|Unload)|(System|Cuda)SharedMemory(Unr|R)egister"
    r"|/v2/(repository/models/.+/(load|unload)|(system|cuda)sharedmemory/.*register)"
)
"""Calls that change a server, which nobody may make here. A worker that gets one has been reached past the gate."""
_CHANGES_OR_READS = {"TraceSetting": service_pb2.TraceSettingRequest, "LogSettings": service_pb2.LogSettingsRequest}
"""Calls that change a server where they have settings in them."""
_SETTINGS_PATHS = re.compile(r"/v2/((models/.+/)?trace/setting|logging)")
"""Likewise of HTTP, where they are no GET."""
_WORKERS = 3
_REPORT_PAUSE_S = 0.05
_RECONNECT_S = 0.1
_OUTCOME_TIMEOUT_S = 5.0
_PROXIED = {
    "models": {
        MODEL: {"proxy": {"repeatable": True, "hedge": True, "once_s": 1, "cache_ttl_s": 1, "batch": {"max_rows": 8}}}
    },
    # Small, so that what it keeps is full before the attack begins; and a name that several models serve.
    "proxy": {
        **{"once_bytes": "1MiB", "cache_bytes": "1MiB"},
        "confidence_cascades": {
            inputs.CASCADE: {"models": [MODEL, f"{MODEL}_more"], "output": "OUTPUT", "threshold": 0.5}
        },
    },
}


@dataclass
class Worker:
    """No Triton: answers every call, gRPC or HTTP, with the same bytes, and notes what should not have come."""

    name: str
    served: int = 0
    bypassed: Counter[str] = field(default_factory=Counter)
    """Calls that are never balanced, by path."""

    async def start(self) -> None:
        self._answer = service_pb2.ModelInferResponse(model_name=MODEL, id=self.name).SerializeToString()
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
        self._server.add_generic_rpc_handlers((_Any(self),))
        grpc_port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        application = web.Application(client_max_size=2**30)
        application.router.add_route("*", "/{path:.*}", self._http)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        http_port = self._runner.addresses[0][1]
        self.spec = WorkerSpec(name=self.name, address="127.0.0.1", grpc_port=grpc_port, http_port=http_port)

    async def stop(self) -> None:
        await self._server.stop(None)
        await self._runner.cleanup()

    def note(self, path: str) -> None:
        """Count a call; one that should not be here by its path."""
        self.served += 1
        if _CHANGES.fullmatch(path) or _CHANGES.fullmatch(unquote(path)):
            self.bypassed[path[:100]] += 1

    async def call(self, method: str, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Any method: the same answer to each message."""
        while isinstance(sent := await context.read(), bytes):
            settings = _CHANGES_OR_READS.get(method)
            if settings is not None and settings.FromString(sent).settings:
                self.bypassed[method] += 1
            await context.write(self._answer)

    async def _http(self, request: web.Request) -> web.Response:
        path = request.raw_path.partition("?")[0]
        self.note(path)
        if request.method != "GET" and _SETTINGS_PATHS.fullmatch(unquote(path)):
            self.bypassed[path[:100]] += 1
        with contextlib.suppress(OSError, web.HTTPException, web.RequestPayloadError):
            await request.read()
        return web.Response(text=self.name)


class _Any(grpc.GenericRpcHandler):
    """Every method is served alike; unary calls are the same on the wire as streams of one message."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The one handler."""
        method = handler_call_details.method.removeprefix(_GRPC)
        self._worker.note(method)

        async def call(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await self._worker.call(method, context)

        return grpc.stream_stream_rpc_method_handler(call)


class Target(OwnStack):
    """The gateway under attack, by one front end, with honest reporters for its workers."""

    def __init__(self, directory: Path, workers: list[Worker], frontend: str) -> None:
        envoy = {"envoy": {"frontend": frontend, "shared_folder": str(directory / "shared")}}
        settings = envoy | (_PROXIED if frontend == "proxy" else {})
        super().__init__(directory, listed=[worker.spec for worker in workers], settings=settings)
        self.workers = workers
        self._reporting: list[asyncio.Task[None]] = []
        self.fleet_port = free_port_range(2)
        """Of calls about the fleet by gRPC; that of HTTP is the next."""
        self.addresses["listen"]["fleet"] = f"127.0.0.1:{self.fleet_port}"
        # Picks that attackers abandon are soon given up, so that what stays behind shows.
        self.addresses["requests"] = {"outcome_timeout_s": _OUTCOME_TIMEOUT_S}

    async def wait_ready(self) -> None:
        """As of `OwnStack`, with reports."""
        self.report()
        await super().wait_ready()

    async def stop(self, *, gently: bool = False) -> None:
        await self.be_silent()
        await super().stop(gently=gently)

    def report(self) -> None:
        """Have honest agents report of every worker, from now on."""
        if not self._reporting:
            self._reporting = [asyncio.create_task(self._report(worker.name)) for worker in self.workers]

    async def be_silent(self) -> None:
        for task in self._reporting:
            task.cancel()
        await asyncio.gather(*self._reporting, return_exceptions=True)
        self._reporting.clear()

    async def _report(self, worker: str) -> None:
        """As an agent does: try for ever."""
        incarnation, number = time.time_ns() // 1_000_000, 0
        while True:
            async with grpc.aio.insecure_channel(self.config.listen.reports_address(0)) as channel:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    stream: Any = channel.stream_stream(METHOD)()
                    while not stream.done():
                        number += 1
                        await stream.write(inputs.report(worker, incarnation, number).SerializeToString())
                        await asyncio.sleep(_REPORT_PAUSE_S)
            await asyncio.sleep(_RECONNECT_S)


@contextlib.asynccontextmanager
async def target(directory: Path, frontend: str) -> AsyncIterator[Target]:
    """Everything started, and stopped afterwards."""
    async with contextlib.AsyncExitStack() as running:
        workers = [Worker(f"worker-{number}") for number in range(_WORKERS)]
        for worker in workers:
            await worker.start()
            running.push_async_callback(worker.stop)
        started = Target(directory, workers, frontend)
        running.push_async_callback(started.stop)
        await started.start()
        yield started
