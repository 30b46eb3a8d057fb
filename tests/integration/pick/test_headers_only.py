"""Streams of which the gateway says that the headers are all: the answer ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.fleets import make_router

from balancer.core.bounds import OutOfBoundsError
from balancer.discovery.workers import WorkerSpec
from balancer.gateway.addresses import Addresses
from balancer.gateway.exchange import Served
from balancer.gateway.kserve import Call, HeaderNames
from balancer.gateway.names import PICKS_SERVICE
from balancer.gateway.picker import Pick, Picker
from balancer.gateway.picks import ExternalProcessor

METADATA = (("x-ext-proc-headers-only", "true"),)


class Listening:
    def picked(self, call: Call, pick: Pick, seconds: float) -> None: ...

    def served(self, call: Call, served: Served) -> None:
        raise AssertionError("nothing is served here")

    def refused(self, error: OutOfBoundsError) -> None:
        raise AssertionError from error

    def mistaken(self, error: Exception) -> None:
        raise AssertionError from error


@asynccontextmanager
async def processing(ready: bool = True) -> AsyncIterator[Any]:
    router = make_router(3)
    picker = Picker(router, lambda: 0.1)
    picker.addresses = Addresses(
        [WorkerSpec(name=f"w{i}", address="10.0.0.1", grpc_port=100 + i, http_port=200 + i) for i in range(3)]
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((ExternalProcessor(picker, Listening(), HeaderNames, lambda: ready).handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel.stream_stream(
                f"/{PICKS_SERVICE}/Process",
                request_serializer=ext_proc.ProcessingRequest.SerializeToString,
                response_deserializer=ext_proc.ProcessingResponse.FromString,
            )
    finally:
        await server.stop(None)


def headers(path: str) -> ext_proc.ProcessingRequest:
    request = ext_proc.ProcessingRequest()
    request.request_headers.headers.headers.add(key=":path", raw_value=path.encode())
    return request


async def test_one_answer_ends_the_stream() -> None:
    async with processing() as process:
        stream = process(metadata=METADATA)
        await stream.write(headers("/v2/models/m/infer"))
        response = await stream.read()
        assert response.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"].startswith("10.0.0.1:20")
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK


async def test_a_refusal_is_an_answer_too() -> None:
    async with processing() as process:
        stream = process(metadata=METADATA)
        await stream.write(headers("/v2/models/unknown/infer"))
        response = await stream.read()
        assert response.immediate_response.status.code == 404
        assert await stream.code() == grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("ready", "request_", "code"),
    [
        (False, headers("/v2/models/m/infer"), grpc.StatusCode.UNAVAILABLE),
        (True, ext_proc.ProcessingRequest(), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_without_an_answer_the_stream_fails(
    ready: bool, request_: ext_proc.ProcessingRequest, code: grpc.StatusCode
) -> None:
    async with processing(ready) as process:
        stream = process(metadata=METADATA)
        await stream.write(request_)
        assert await stream.code() == code
