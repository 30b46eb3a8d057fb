"""A KServe v2 gRPC server that is no Triton, of raw bytes: answers as the test says, and notes what it was sent."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from balancer.discovery.workers import WorkerSpec
from balancer.proxy.messages import INFER, STREAM

Infer = Callable[[bytes, Any], Awaitable[bytes]]


def echoed(data: bytes, worker: str = "") -> bytes:
    """The answer that has a request's model, id and tensors as its own, so that one that goes astray is seen."""
    request = service_pb2.ModelInferRequest.FromString(data)
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for each in request.inputs:
        response.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    response.raw_output_contents.extend(request.raw_input_contents)
    if worker:
        response.parameters["worker"].string_param = worker
    answer: bytes = response.SerializeToString()
    return answer


def aborting(code: grpc.StatusCode, words: str, trailing: tuple[tuple[str, str], ...] = ()) -> Infer:
    """Fails each request so."""

    async def abort(_: bytes, context: Any) -> bytes:
        await context.abort(code, words, trailing)
        raise AssertionError

    return abort


class Gate:
    """Answers requests (`echoed`) once it is opened."""

    def __init__(self) -> None:
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, data: bytes, _: Any) -> bytes:
        self.begun.set()
        await self.goes_on.wait()
        return echoed(data)


@dataclass
class FakeWorker:
    """Answers what it gets (`echoed`), or as `infer` says."""

    name: str
    infer: Infer | None = None
    requests: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left_s: list[float | None] = field(default_factory=list)
    cancelled: int = 0
    port: int = 0
    _server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen, on the port of before where there was one."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
        infer: Any = grpc.unary_unary_rpc_method_handler(self._infer, None, None)
        stream: Any = grpc.stream_stream_rpc_method_handler(self._stream, None, None)
        service = INFER.split("/")[1]
        methods = {INFER.rpartition("/")[2]: infer, STREAM.rpartition("/")[2]: stream}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        self._server = server

    def spec(self, number: int) -> WorkerSpec:
        """As discovery lists it; the HTTP port is another's for each, and nobody's."""
        return WorkerSpec(name=self.name, address="127.0.0.1", grpc_port=self.port, http_port=number)

    async def stop(self) -> None:
        """As if it were killed."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _infer(self, data: bytes, context: Any) -> bytes:
        self.requests.append(data)
        self.headers.append(dict(context.invocation_metadata()))
        self.left_s.append(context.time_remaining())
        try:
            return echoed(data, self.name) if self.infer is None else await self.infer(data, context)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _stream(self, _: Any, context: Any) -> None:
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                self.requests.append(data)
                answer = await self.infer(data, context) if self.infer is not None else echoed(data, self.name)
                response = service_pb2.ModelInferResponse.FromString(answer)
                await context.write(service_pb2.ModelStreamInferResponse(infer_response=response).SerializeToString())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
