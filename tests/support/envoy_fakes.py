"""Stand-ins for what surrounds a real Envoy: a balancer that picks as told, and workers that answer as told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health, health_pb2
from tritonclient.grpc import service_pb2, service_pb2_grpc

from balancer.bootstrap.bootstrap import BootstrapOptions
from balancer.discovery.workers import WorkerSpec
from balancer.extproc.endpoints import SERVER_OPTIONS, Ads, Endpoint
from balancer.extproc.names import ENDPOINTS_SERVICE as ADS
from balancer.extproc.outcomes import AccessLog, Outcome, OutcomeListener, UpstreamAnswer
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.process import free_ports
from support.bootstrap import changed
from support.running import running
from support.waiting import PATIENCE_S, eventually

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

RUN = "0"
"""Of the fake balancers: as `AccessLog` has it by default."""
Responder = Callable[[ext_proc.ProcessingRequest], ext_proc.ProcessingResponse]


def go_on(
    pick: str | None = None, *, process: str = "", number: str = "", set_headers: dict[str, str] | None = None
) -> ext_proc.ProcessingResponse:
    """The answer that lets a request go on, with a pick or without."""
    response = ext_proc.ProcessingResponse()
    common = response.request_headers.response
    # Present though empty: without it Envoy calls the response spurious.
    response.request_headers.SetInParent()
    for name, value in (set_headers or {}).items():
        common.header_mutation.set_headers.append(
            base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=name, raw_value=value.encode()))
        )
    if pick is not None:
        response.dynamic_metadata.update({"envoy.lb": {"x-gateway-destination-endpoint": pick}})
    if process:
        run_and_number = f"{RUN}.{number}" if number else ""
        response.dynamic_metadata.update({"balancer": {"process": process, "number": run_and_number}})
    return response


@dataclass
class _OutcomeQueue:
    """Queues the outcomes of the access log."""

    queue: asyncio.Queue[Outcome]

    def outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self.queue.put_nowait(outcome)

    def answered(self, answers: list[UpstreamAnswer]) -> None:
        """The fakes count nothing."""

    def out_of_bounds(self, field: str) -> None:
        raise AssertionError(f"{field} of an outcome is out of bounds")

    def failed_internally(self, error: Exception) -> None:
        raise AssertionError("an outcome could not be read") from error


@dataclass
class FakeBalancer:
    """A balancer whose ext_proc answers whatever `respond` says; its ADS and access log service are the real ones."""

    port: int = 0
    respond: Responder = field(default=lambda request: go_on())
    seen: list[ext_proc.ProcessingRequest] = field(default_factory=list)
    ads: Ads = field(default_factory=Ads)
    outcomes: asyncio.Queue[Outcome] = field(default_factory=asyncio.Queue)
    credentials: grpc.ServerCredentials | None = None
    socket: Path | None = None
    """Of the file system, to listen there in place of a port."""
    picks: grpc.GenericRpcHandler | None = None
    """In place of `respond`."""
    listener: OutcomeListener | None = None
    """In place of `outcomes`."""
    _server: grpc.aio.Server | None = None

    async def start(self) -> None:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *SERVER_OPTIONS])
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=ext_proc.ProcessingRequest.FromString,
            response_serializer=ext_proc.ProcessingResponse.SerializeToString,
        )
        fake = grpc.method_handlers_generic_handler(EXT_PROC, {"Process": handler})
        server.add_generic_rpc_handlers((self.picks or fake,))
        check = grpc.unary_unary_rpc_method_handler(
            self._check,
            request_deserializer=health_pb2.HealthCheckRequest.FromString,
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check}),))
        self.ads.add_to(server)
        AccessLog(self.listener or _OutcomeQueue(self.outcomes), RUN).add_to(server)
        if self.socket is not None:
            server.add_insecure_port(self.endpoint)
        elif self.credentials is None:
            self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        else:
            self.port = server.add_secure_port(f"127.0.0.1:{self.port}", self.credentials)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}" if self.socket is None else f"unix:{self.socket}"

    async def _process(self, requests: AsyncIterator[ext_proc.ProcessingRequest], context: Any) -> None:
        async for request in requests:
            self.seen.append(request)
            await context.write(self.respond(request))

    async def _check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        assert request.service in (EXT_PROC, ADS)
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


@dataclass
class StoppableBalancer(FakeBalancer):
    """Behind a relay that hands nothing on while `going` is not set: as a process that is stopped (SIGSTOP)."""

    going: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        await super().start()
        self.going.set()
        behind = self.port
        self._relay = await asyncio.start_server(partial(self._connect, behind), "127.0.0.1", 0)
        self.port = self._relay.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.going.set()
        self._relay.close()
        await super().stop()

    async def _connect(self, behind: int, here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", behind)
        await asyncio.gather(self._copy(here, onward), self._copy(there, back))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                await self.going.wait()
                target.write(data)
        target.close()


Infer = Callable[[service_pb2.ModelInferRequest, Any], Awaitable[service_pb2.ModelInferResponse]]


@dataclass
class FakeWorker(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A worker without models: answers every inference with its name, unless `infer` says otherwise."""

    name: str
    address: str = "127.0.0.1"
    """As announced to Envoy; it listens on 127.0.0.1."""
    infer: Infer | None = None
    requests: list[service_pb2.ModelInferRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    http_requests: list[tuple[str, dict[str, str], int]] = field(default_factory=list)
    """Path, headers, bytes of body."""
    grpc_port: int = 0
    http_port: int = 0
    http_status: int = 200
    http_body: str = ""
    tls: tuple[grpc.ServerCredentials, ssl.SSLContext] | None = None
    """Of both ports; None: plain text."""
    _server: grpc.aio.Server | None = None
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        server = grpc.aio.server(options=[*_UNLIMITED, ("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)
        address = f"127.0.0.1:{self.grpc_port}"
        self.grpc_port = server.add_secure_port(address, self.tls[0]) if self.tls else server.add_insecure_port(address)
        await server.start()
        self._server = server
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._http)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.http_port, ssl_context=self.tls[1] if self.tls else None)
        await site.start()
        self.http_port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def grpc_endpoint(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http_endpoint(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def spec(self) -> WorkerSpec:
        """As discovery lists it."""
        return WorkerSpec(name=self.name, address=self.address, grpc_port=self.grpc_port, http_port=self.http_port)

    def as_endpoint(self, state: Any = "healthy") -> Endpoint:
        return Endpoint(self.name, self.address, self.grpc_port, self.http_port, state)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=True)

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def ModelInfer(self, request: service_pb2.ModelInferRequest, context: Any) -> service_pb2.ModelInferResponse:
        self.requests.append(request)
        self.headers.append(dict(context.invocation_metadata()))
        if self.infer is not None:
            return await self.infer(request, context)
        return self.answer(request)

    async def ModelStreamInfer(self, requests: AsyncIterator[service_pb2.ModelInferRequest], context: Any) -> None:
        self.headers.append(dict(context.invocation_metadata()))
        async for request in requests:
            self.requests.append(request)
            await context.write(service_pb2.ModelStreamInferResponse(infer_response=self.answer(request)))

    def answer(self, request: service_pb2.ModelInferRequest) -> service_pb2.ModelInferResponse:
        response = service_pb2.ModelInferResponse(model_name=request.model_name, id=self.name)
        # As much back as came: responses must pass as well.
        response.raw_output_contents.extend(request.raw_input_contents)
        return response

    async def _http(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.http_requests.append((request.path, dict(request.headers), len(body)))
        return web.Response(status=self.http_status, text=self.http_body or self.name)


@dataclass
class Rig:
    """A real Envoy between fake balancers and fake workers."""

    directory: Path
    balancers: list[Any] = field(default_factory=lambda: [FakeBalancer()])
    workers: list[FakeWorker] = field(default_factory=lambda: [FakeWorker("w0"), FakeWorker("w1"), FakeWorker("w2")])
    # A slow machine must not look like a slow balancer: the fakes and the clients share one thread.
    options: BootstrapOptions = field(
        default_factory=lambda: BootstrapOptions(message_timeout_s=PATIENCE_S, health_timeout_s=PATIENCE_S)
    )
    channel_credentials: grpc.ChannelCredentials | None = None

    @contextlib.asynccontextmanager
    async def running(self, *absent: FakeBalancer) -> AsyncIterator[Rig]:
        """Start everything but the balancers that are absent; yields once Envoy serves all workers that it hears of."""
        async with running(*self.workers, *(each for each in self.balancers if each not in absent)):
            self.announce()
            port, admin_port = free_ports(2)
            options = changed(
                self.options,
                listen=f"127.0.0.1:{port}",
                admin=f"127.0.0.1:{admin_port}",
                balancers=tuple(balancer.endpoint for balancer in self.balancers),
            )
            self.envoy = EnvoyProcess(options=options, log_path=self.directory / "envoy.log", concurrency=1)
            try:
                await self.envoy.start()
                await self.envoy.wait_ready(PATIENCE_S)
                async with self._channel() as channel, aiohttp.ClientSession() as self.http:
                    self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                    yield self
            finally:
                # Where it is asked to end, it takes a second.
                await self.envoy.kill()

    def announce(self, **states: Any) -> None:
        """Tell Envoy of the workers, all healthy but those named."""
        endpoints = [worker.as_endpoint(states.get(worker.name, "healthy")) for worker in self.workers]
        for balancer in self.balancers:
            balancer.ads.update(endpoints)

    async def infer(self, **arguments: Any) -> str:
        """The name of the worker that served an inference."""
        return str((await self.stub.ModelInfer(a_request(), **({"timeout": PATIENCE_S} | arguments))).id)

    async def try_infer(self) -> str:
        """As `infer`, or the name of the gRPC status with which it failed."""
        try:
            return await self.infer()
        except grpc.aio.AioRpcError as error:
            return error.code().name

    async def ends(self, count: int) -> set[str]:
        """Of so many inferences, one after the other: as `try_infer`."""
        return {await self.try_infer() for _ in range(count)}

    async def statistic(self, name: str) -> int:
        """A counter or gauge of Envoy's."""
        async with self.http.get(f"{self.envoy.admin_url}/stats", params={"filter": f"^{name}$"}) as response:
            return int((await response.text()).rpartition(":")[2])

    async def logged(self, log: Path, lines: int) -> list[dict[str, Any]]:
        """The first so many lines of a file that Envoy writes, which it else does every 10 s."""

        async def written() -> list[str] | None:
            async with self.http.post(f"{self.envoy.admin_url}/reopen_logs") as response:
                assert response.status == 200
            found = log.read_text().splitlines(keepends=True) if log.exists() else []
            return found if len(found) >= lines and found[-1].endswith("\n") else None

        return [json.loads(line) for line in await eventually(written, f"{lines} lines in {log.name}")]

    async def health(self) -> dict[str, str]:
        """Health as Envoy has it, by the gRPC endpoint of each worker."""
        async with self.http.get(f"{self.envoy.admin_url}/clusters") as response:
            lines = [line.split("::") for line in (await response.text()).splitlines()]
        return {line[1]: line[3] for line in lines if line[0] == "triton_grpc" and line[2] == "health_flags"}

    def _channel(self) -> grpc.aio.Channel:
        if self.channel_credentials is None:
            return grpc.aio.insecure_channel(self.envoy.endpoint, options=_UNLIMITED)
        return grpc.aio.secure_channel(self.envoy.endpoint, self.channel_credentials, options=_UNLIMITED)


def a_request(model: str = "m", payload_bytes: int = 16) -> service_pb2.ModelInferRequest:
    """An inference with one input of that many bytes."""
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="x", datatype="UINT8")
    tensor.shape.append(payload_bytes)
    request.raw_input_contents.append(bytes(payload_bytes))
    return request
