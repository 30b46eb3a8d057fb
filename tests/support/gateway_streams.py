"""This process as another gateway: it speaks ext_proc to a real gRPC server of picks."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from balancer.discovery.workers import WorkerSpec
from balancer.extproc.kserve import Objectives
from balancer.extproc.names import PICKS_SERVICE
from balancer.extproc.pick_service import ExternalProcessor
from balancer.extproc.picker import Addresses, Picker
from balancer.kernel.settings import Settings
from balancer.scheduler.router import Router
from policies.round_robin import RoundRobin
from support.fleets import make_router
from support.other_gateways import Listening

SPECS = [WorkerSpec(name=f"w{i}", address="10.0.0.1", grpc_port=100 + i, http_port=200 + i) for i in range(3)]
SPEAKING_OPENAI = [WorkerSpec(name=f"w{i}", address="10.0.0.1", http_port=300 + i, protocol="openai") for i in range(3)]
KEY = "x-gateway-destination-endpoint"


class Gateway:
    """Speaks ext_proc to a balancer."""

    def __init__(self, channel: grpc.aio.Channel, router: Router, listening: Listening) -> None:
        self._process = channel.stream_stream(
            f"/{PICKS_SERVICE}/Process",
            request_serializer=ext_proc.ProcessingRequest.SerializeToString,
            response_deserializer=ext_proc.ProcessingResponse.FromString,
        )
        self.router = router
        self.listening = listening

    async def exchange(self, *requests: ext_proc.ProcessingRequest) -> list[ext_proc.ProcessingResponse]:
        """One stream: a response for each request, until the balancer ends it."""
        stream = self._process()
        responses = []
        for request in requests:
            await stream.write(request)
            response = await stream.read()
            if response is grpc.aio.EOF:
                break
            responses.append(response)
        await stream.done_writing()
        assert await stream.code() == grpc.StatusCode.OK
        return responses

    async def all_of(self, *requests: ext_proc.ProcessingRequest) -> list[ext_proc.ProcessingResponse]:
        """One stream: all requests at once, and all responses to them."""
        stream = self._process()
        for request in requests:
            await stream.write(request)
        await stream.done_writing()
        responses = [response async for response in stream]
        assert await stream.code() == grpc.StatusCode.OK
        return responses


@asynccontextmanager
async def gateway(
    settings: Settings | None = None,
    ready: bool = True,
    fallbacks: bool = False,
    objectives: Objectives | None = None,
    specs: Sequence[WorkerSpec] = SPECS,
) -> AsyncIterator[Gateway]:
    router = make_router(3, RoundRobin(), settings)
    picker = Picker(router, lambda: 0.1, "7")
    picker.fallbacks_for_all = fallbacks
    picker.addresses = Addresses(specs)
    picker.objectives = objectives or {}
    listening = Listening()
    server = grpc.aio.server()
    processor = ExternalProcessor(picker, listening, lambda: ready)
    server.add_generic_rpc_handlers((processor.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Gateway(channel, router, listening)
    finally:
        await server.stop(None)


def headers(path: str = "/v2/models/m/infer", **more: str) -> ext_proc.ProcessingRequest:
    values = {":path": path, ":method": "POST", "x-request-id": "r"} | {k.replace("_", "-"): v for k, v in more.items()}
    request = ext_proc.ProcessingRequest()
    for key, value in values.items():
        request.request_headers.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))
    return request


def answered(**more: str) -> ext_proc.ProcessingRequest:
    answer = ext_proc.ProcessingRequest()
    for key, value in {":status": "200", **{k.replace("_", "-"): v for k, v in more.items()}}.items():
        answer.response_headers.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))
    return answer


def refused(response: ext_proc.ProcessingResponse) -> tuple[int, grpc.StatusCode]:
    """The statuses of HTTP and gRPC by which a request is answered immediately."""
    answer = response.immediate_response
    [code] = [code for code in grpc.StatusCode if code.value[0] == answer.grpc_status.status]
    return answer.status.code, code
