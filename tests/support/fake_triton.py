"""A KServe v2 gRPC server that is no Triton: answers at once, on a gate, or with an error, and notes what it saw."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

WORKER = b"fake-0"


@dataclasses.dataclass
class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Models `echo` (answers), `gated` (once `gate` is set), `broken` (UNAVAILABLE); at most 8 rows."""

    gate: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    requests: list[Any] = dataclasses.field(default_factory=list)
    headers: list[dict[str, str]] = dataclasses.field(default_factory=list)
    time_left_s: list[float | None] = dataclasses.field(default_factory=list)
    peers: set[str] = dataclasses.field(default_factory=set)
    arrived: asyncio.Condition = dataclasses.field(default_factory=asyncio.Condition)
    in_flight: int = 0
    most_in_flight: int = 0

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        if request.name == "missing":
            await context.abort(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'missing' is not found")
        tensor = service_pb2.ModelMetadataResponse.TensorMetadata
        return service_pb2.ModelMetadataResponse(
            name=request.name,
            inputs=[
                tensor(name="X", datatype="FP32", shape=[-1, 2]),
                tensor(name="S", datatype="BYTES", shape=[-1, 1]),
            ],
            outputs=[tensor(name="WORKER", datatype="BYTES", shape=[-1, 1])],
        )

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelConfigResponse(config={"name": request.name, "max_batch_size": 8})

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        self.headers.append(dict(context.invocation_metadata()))
        self.time_left_s.append(context.time_remaining())
        self.peers.add(context.peer())
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        async with self.arrived:
            self.arrived.notify_all()
        try:
            if request.model_name == "gated":
                await self.gate.wait()
            if request.model_name == "broken":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken as asked")
        finally:
            self.in_flight -= 1
        output = service_pb2.ModelInferResponse.InferOutputTensor(name="WORKER", datatype="BYTES", shape=[1, 1])
        raw = len(WORKER).to_bytes(4, "little") + WORKER
        return service_pb2.ModelInferResponse(
            model_name=request.model_name, outputs=[output], raw_output_contents=[raw]
        )

    async def seen(self, count: int) -> None:
        """Return once so many requests have arrived."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)


@asynccontextmanager
async def serving(fake: FakeTriton) -> AsyncIterator[str]:
    """The fake's `host:port` while it serves."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        fake.gate.set()
        await server.stop(None)
