"""Through a real Envoy: who is asked, what is said, and that the pick is followed and cannot be forged."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from support.bootstrap import changed
from support.envoy_fakes import FakeBalancer, Rig, a_request, go_on
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2

from balancer.extproc.names import EXTRACTION

pytestmark = pytest.mark.integration
PICK = "x-gateway-destination-endpoint"


def fields_seen(balancer: FakeBalancer) -> Any:
    return MessageToDict(balancer.seen[-1].metadata_context).get("filterMetadata", {}).get(EXTRACTION)


def headers_seen(balancer: FakeBalancer) -> dict[str, str]:
    return {header.key: header.raw_value.decode() for header in balancer.seen[-1].request_headers.headers.headers}


async def requests_of(*requests: service_pb2.ModelInferRequest) -> AsyncIterator[service_pb2.ModelInferRequest]:
    for request in requests:
        yield request


async def test_grpc_goes_where_picked(rig: Rig) -> None:
    for worker in rig.workers:
        rig.balancers[0].respond = lambda _, worker=worker: go_on(worker.grpc_endpoint)
        assert [await rig.infer() for _ in range(5)] == [worker.name] * 5


async def test_rest_goes_where_picked(rig: Rig) -> None:
    for worker in rig.workers:
        rig.balancers[0].respond = lambda _, worker=worker: go_on(worker.http_endpoint)
        url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
        async with rig.http.post(url, json={"inputs": []}) as response:
            assert (response.status, await response.text()) == (200, worker.name)
    assert headers_seen(rig.balancers[0])[":path"] == "/v2/models/m/infer"
    assert fields_seen(rig.balancers[0]) is None


async def test_a_stream_is_picked_once_and_stays(rig: Rig) -> None:
    balancer, worker = rig.balancers[0], rig.workers[2]
    balancer.respond = lambda _: go_on(worker.grpc_endpoint)
    call = rig.stub.ModelStreamInfer(requests_of(a_request("first"), a_request("second")), timeout=PATIENCE_S)
    answers = [answer.infer_response async for answer in call]
    assert [(answer.model_name, answer.id) for answer in answers] == [("first", "w2"), ("second", "w2")]
    assert len(balancer.seen) == 1
    assert fields_seen(balancer)["model_name"] == ["first"]


async def test_the_balancer_sees_the_routing_fields(rig: Rig) -> None:
    request = service_pb2.ModelInferRequest(model_name="m", model_version="3", id="abc")
    for shape in ((8, 3), (8,)):
        request.inputs.add(name="x", datatype="FP32").shape.extend(shape)
    request.parameters["sequence_id"].int64_param = -42
    request.parameters["sequence_start"].bool_param = True
    request.parameters["sequence_end"].bool_param = False
    request.parameters["priority"].uint64_param = 2**63
    request.parameters["tenant"].string_param = "hello"
    request.parameters["temperature"].double_param = 1.5
    await rig.stub.ModelInfer(request, timeout=PATIENCE_S)
    fields = fields_seen(rig.balancers[0])
    keys = fields.pop("parameters.key")
    assert sorted(keys) == sorted(request.parameters)
    # A map is serialized in any order; within a kind the values keep the order of the keys.
    bools = ["1" if key == "sequence_start" else "0" for key in keys if key in {"sequence_start", "sequence_end"}]
    assert fields == {
        "model_name": ["m"],
        "model_version": ["3"],
        "id": ["abc"],
        "inputs.shape": ["8", "3", "8"],
        "parameters.value.bool_param": bools,
        "parameters.value.int64_param": ["-42"],
        "parameters.value.uint64_param": [str(2**63)],
        "parameters.value.string_param": ["hello"],
    }


async def test_other_calls_name_their_model(rig: Rig) -> None:
    await rig.stub.ModelReady(service_pb2.ModelReadyRequest(name="m", version="2"), timeout=PATIENCE_S)
    assert fields_seen(rig.balancers[0]) == {"name": ["m"], "version": ["2"]}
    await rig.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=PATIENCE_S)
    assert fields_seen(rig.balancers[0]) is None


async def test_clients_cannot_name_the_worker(rig: Rig) -> None:
    balancer = rig.balancers[0]
    forged = [(PICK, rig.workers[1].grpc_endpoint), (f"{PICK}-subset", "10.0.0.1:1"), ("x-envoy-max-retries", "9")]
    served = [await rig.infer(metadata=[*forged, ("my-key", "k")]) for _ in range(12)]
    assert len(set(served)) > 1, "all went to the worker that the client named, or chance did it (3**-11)"
    headers = headers_seen(balancer)
    assert headers["my-key"] == "k"
    assert not [name for name in headers if name.startswith((PICK, "x-envoy-max"))]
    balancer.respond = lambda _: go_on(rig.workers[2].grpc_endpoint)
    assert await rig.infer(metadata=forged) == "w2"
    url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
    balancer.respond = lambda _: go_on(rig.workers[2].http_endpoint)
    async with rig.http.post(url, headers={PICK.upper(): rig.workers[1].http_endpoint}) as response:
        assert await response.text() == "w2"
    assert PICK not in {name.lower() for name in rig.workers[2].http_requests[-1][1]}


async def test_secrets_are_not_shown_to_the_balancer(rig: Rig) -> None:
    await rig.infer(metadata=[("authorization", "Bearer secret"), ("cookie", "secret")])
    assert "authorization" not in headers_seen(rig.balancers[0])
    assert "cookie" not in headers_seen(rig.balancers[0])
    (headers,) = [headers for worker in rig.workers for headers in worker.headers]
    assert headers["authorization"] == "Bearer secret"


async def test_a_message_past_the_limit_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.options = changed(rig.options, request_buffer_limit_bytes=2**20)
    async with rig.running():
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            # Up to HTTP/2's window of 2 MiB pass whatever the limit.
            await rig.stub.ModelInfer(a_request(payload_bytes=4 * 2**20), timeout=PATIENCE_S)
        assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        rig.balancers[0].respond = lambda _: go_on(rig.workers[1].http_endpoint)
        async with rig.http.post(f"http://{rig.envoy.endpoint}/v2/models/m/infer", data=bytes(2**22)) as response:
            assert await response.text() == "w1"


async def test_the_clients_deadline_reaches_the_worker_and_holds(rig: Rig) -> None:
    deadlines: list[float] = []

    async def never(request: Any, context: Any) -> Any:
        deadlines.append(context.time_remaining())
        await asyncio.Event().wait()

    for worker in rig.workers:
        worker.infer = never

    async def ends_at_a_worker() -> bool:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rig.infer(timeout=0.5)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        return bool(deadlines and deadlines[-1] > 0)

    await eventually(ends_at_a_worker, "the request came there in time")
    assert max(deadlines) <= 0.5
    # Envoy itself ends it: the same as told by a client that does not keep its own deadline.
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelInfer(a_request(), metadata=[("grpc-timeout", "200m")])
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_header_name_with_an_underscore_is_refused_in_words_where_there_is_an_answer(rig: Rig) -> None:
    async with rig.http.get(f"http://{rig.envoy.endpoint}/v2/health/live", headers={"x_foo": "1"}) as response:
        assert (response.status, response.content_type) == (400, "application/json")
        error = (await response.json())["error"]
    assert "a header name has an underscore (http1.unexpected_underscore)" in error
    assert "write a hyphen" in error
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=PATIENCE_S, metadata=[("x_foo", "1")])
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    # Others of Envoy's own answers are as they were.
    async with rig.http.get(f"http://{rig.envoy.endpoint}/v2/a%2fb") as response:
        assert "underscore" not in await response.text()
