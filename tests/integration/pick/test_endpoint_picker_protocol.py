"""The Endpoint Picker Protocol as any gateway would speak it: a real gRPC server, and this test as the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.fleets import make_router

from balancer.core.bounds import OutOfBoundsError
from balancer.core.events import Finished
from balancer.core.router import Router
from balancer.core.settings import Limits, Settings
from balancer.discovery.workers import WorkerSpec
from balancer.gateway.addresses import Addresses
from balancer.gateway.kserve import Call, HeaderNames
from balancer.gateway.names import PICKS_SERVICE
from balancer.gateway.picker import Pick, Picker
from balancer.gateway.picks import ExternalProcessor, Served
from policies.round_robin import RoundRobin

SPECS = [WorkerSpec(name=f"w{i}", address="10.0.0.1", grpc_port=100 + i, http_port=200 + i) for i in range(3)]
KEY = "x-gateway-destination-endpoint"


class Listening:
    """Remembers what the service told."""

    def __init__(self) -> None:
        self.served_calls: list[Served] = []
        self.refusals: list[str] = []
        self.mistakes: list[Exception] = []

    def picked(self, call: Call, pick: Pick, seconds: float) -> None:
        assert seconds >= 0

    def served(self, call: Call, served: Served) -> None:
        self.served_calls.append(served)

    def refused(self, error: OutOfBoundsError) -> None:
        self.refusals.append(error.field)

    def mistaken(self, error: Exception) -> None:
        self.mistakes.append(error)


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


@asynccontextmanager
async def gateway(settings: Settings | None = None, ready: bool = True) -> AsyncIterator[Gateway]:
    router = make_router(3, RoundRobin(), settings)
    picker = Picker(router, lambda: 0.1, "7")
    picker.addresses = Addresses(SPECS)
    listening = Listening()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((ExternalProcessor(picker, listening, HeaderNames, lambda: ready).handler(),))
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


async def test_the_pick_and_its_fallbacks_are_in_header_and_metadata_alike() -> None:
    async with gateway() as g:
        [response] = await g.exchange(headers())
    metadata = response.dynamic_metadata["envoy.lb"][KEY]
    [option] = response.request_headers.response.header_mutation.set_headers
    assert option.header.key == KEY
    assert option.header.raw_value.decode() == metadata
    assert sorted(metadata.split(",")) == ["10.0.0.1:200", "10.0.0.1:201", "10.0.0.1:202"]
    assert dict(response.dynamic_metadata["balancer"]) == {"process": "7", "number": "0.0"}


async def test_grpc_requests_go_to_the_grpc_ports() -> None:
    async with gateway() as g:
        [response] = await g.exchange(
            headers("/inference.GRPCInferenceService/ServerReady", content_type="application/grpc")
        )
    assert response.dynamic_metadata["envoy.lb"][KEY].startswith("10.0.0.1:10")


@pytest.mark.parametrize("as_list", [True, False])
async def test_the_subset_hint_is_honoured(as_list: bool) -> None:
    request = headers()
    subset = ["10.0.0.1:202", "10.9.9.9:1"]
    hint = request.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({f"{KEY}-subset": subset if as_list else ",".join(subset)})
    async with gateway() as g:
        for _ in range(3):
            [response] = await g.exchange(request)
            assert response.dynamic_metadata["envoy.lb"][KEY] == "10.0.0.1:202"


@pytest.mark.parametrize("subset", [[], ["10.9.9.9:1"]])
async def test_a_subset_with_nobody_eligible_is_503(subset: list[str]) -> None:
    request = headers("/inference.GRPCInferenceService/ServerReady", content_type="application/grpc")
    request.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({f"{KEY}-subset": subset})
    async with gateway() as g:
        [response] = await g.exchange(request)
    assert response.immediate_response.status.code == 503
    assert response.immediate_response.grpc_status.status == grpc.StatusCode.UNAVAILABLE.value[0]


async def test_a_shed_request_is_429_and_resource_exhausted() -> None:
    async with gateway(Settings(limits=Limits(max_pending_per_worker=1))) as g:
        for _ in range(3):
            await g.exchange(headers())
        [response] = await g.exchange(headers())
    assert response.immediate_response.status.code == 429
    assert response.immediate_response.grpc_status.status == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert b"retry later" in response.immediate_response.body


async def test_an_unknown_model_is_404_in_tritons_words_and_json_for_rest() -> None:
    async with gateway() as g:
        [response] = await g.exchange(headers("/v2/models/nope/infer"))
    assert response.immediate_response.status.code == 404
    assert response.immediate_response.grpc_status.status == grpc.StatusCode.NOT_FOUND.value[0]
    assert response.immediate_response.body == b'{"error":"Request for unknown model: \'nope\' is not found"}'


async def test_questions_about_an_unknown_model_are_answered_by_some_server() -> None:
    async with gateway() as g:
        [response] = await g.exchange(headers("/v2/models/nope/ready"))
    assert response.dynamic_metadata["envoy.lb"][KEY]


async def test_a_request_out_of_bounds_is_refused_in_the_protocols_own_words() -> None:
    async with gateway() as g:
        [response] = await g.exchange(headers(x_batch_rows="1e308"))
        assert g.listening.refusals == ["x-batch-rows"]
    assert response.immediate_response.status.code == 400
    assert response.immediate_response.grpc_status.status == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert b"x-batch-rows: '1e308' is refused; it is a whole number from 1 to 65536" in response.immediate_response.body


async def test_a_mistake_of_ours_is_an_error_and_not_a_request_without_a_pick() -> None:
    class Broken(RoundRobin):
        @property
        def needs_key(self) -> bool:  # type: ignore[override]  # asked for each request, outside of what is caught
            raise RuntimeError("a mistake")

    async with gateway() as g:
        g.router.policy = Broken()
        [response] = await g.exchange(headers(x_routing_key="k"))
    assert [str(error) for error in g.listening.mistakes] == ["a mistake"]
    assert response.immediate_response.status.code == 500
    assert response.immediate_response.grpc_status.status == grpc.StatusCode.INTERNAL.value[0]
    assert dict(response.dynamic_metadata["balancer"]) == {"process": "7", "number": ""}


@pytest.mark.parametrize(("status", "told"), [("200", -1), ("5", 5), ("\u00b2", -1), ("9" * 5000, -1)])
async def test_a_grpc_status_in_the_responses_headers_is_read(status: str, told: int) -> None:
    answer = ext_proc.ProcessingRequest()
    named = {":status": "200"} | ({} if status == "200" else {"grpc-status": status})
    for key, value in named.items():
        answer.response_headers.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value.encode()))
    async with gateway() as g:
        await g.exchange(headers(), answer)
    [served] = g.listening.served_calls
    assert (served.status, served.grpc_status) == (200, told)


async def test_calls_that_change_one_server_are_refused() -> None:
    async with gateway() as g:
        [response] = await g.exchange(headers("/v2/repository/models/m/load"))
    assert response.immediate_response.status.code == 501
    assert b"not balanced" in response.immediate_response.body


async def test_a_sequence_forbids_retries() -> None:
    async with gateway() as g:
        [response] = await g.exchange(headers(x_sequence_id="s"))
    assert "," not in response.dynamic_metadata["envoy.lb"][KEY]
    options = response.request_headers.response.header_mutation.set_headers
    assert {o.header.key: o.header.raw_value for o in options}["x-envoy-max-retries"] == b"0"


async def test_what_served_is_read_back_where_it_is_sent() -> None:
    answer = ext_proc.ProcessingRequest()
    answer.response_headers.headers.headers.append(base_pb2.HeaderValue(key=":status", raw_value=b"200"))
    answer.metadata_context.filter_metadata["envoy.lb"].update({f"{KEY}-served": "10.0.0.1:201"})
    async with gateway() as g:
        responses = await g.exchange(headers(), answer)
        assert responses[1].HasField("response_headers")
    [served] = g.listening.served_calls
    assert (served.endpoint, served.status, served.decision.number) == ("10.0.0.1:201", 200, 0)


async def test_full_duplex_bodies_come_back_as_they_are() -> None:
    first = headers()
    first.protocol_config.request_body_mode = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
    chunks = [
        ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=body, end_of_stream=last))
        for body, last in ((b"abc", False), (b"def", True))
    ]
    async with gateway() as g:
        _, *echoes = await g.exchange(first, *chunks)
    streamed = [echo.request_body.response.body_mutation.streamed_response for echo in echoes]
    assert [(one.body, one.end_of_stream) for one in streamed] == [(b"abc", False), (b"def", True)]


async def test_before_it_knows_its_workers_it_fails_the_stream_so_that_the_gateway_falls_back() -> None:
    async with gateway(ready=False) as g:
        stream = g._process()
        await stream.write(headers())
        assert await stream.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_pick_counts_in_flight_until_its_outcome() -> None:
    async with gateway() as g:
        await g.exchange(headers())
        assert g.router.fleet.queue.in_flight.sum() == 1
        g.router.observe(Finished(0, "w0", 0.1, True), 0.2)
        assert g.router.fleet.queue.in_flight.sum() == 0
