"""REST through the proxy of one process to fake workers: what the client's HTTP says is what workers get by gRPC."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp.test_utils import RawTestServer
from support.fake_worker import Gate, aborting
from support.proxied import Rig, proxied, request
from support.waiting import eventually
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.extproc.names import PROXY_HEALTH_PATH
from policies.base import Request

WORDS = 'in "my" words: ü'
BODY = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}


class Rest:
    """A client of HTTP before a proxy."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, url

    async def post(self, body: Any, path: str = "m/infer", **headers: str) -> tuple[int, dict[str, Any], Any]:
        """Status, JSON and headers."""
        data = body if isinstance(body, bytes) else json.dumps(body)
        async with self._session.post(f"{self.url}/v2/models/{path}", data=data, headers=headers) as response:
            return response.status, json.loads(await response.read()), response.headers

    async def get(self, path: str) -> int:
        """Status."""
        async with self._session.get(f"{self.url}{path}") as response:
            return response.status


@asynccontextmanager
async def served(rig: Rig) -> AsyncIterator[Rest]:
    """Its REST as Envoy reaches it."""
    server = RawTestServer(rig.front.rest.answer)
    await server.start_server()
    try:
        async with aiohttp.ClientSession() as session:
            yield Rest(session, str(server.make_url("")).rstrip("/"))
    finally:
        await server.close()


async def test_rows_are_the_headers_where_it_is_sent_else_those_of_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied() as rig, served(rig) as rest:
        rows: list[object] = []
        route = rig.router.route

        def noting(request: Request, *further: Any) -> Any:
            rows.append(request.rows)
            return route(request, *further)

        monkeypatch.setattr(rig.router, "route", noting)
        two = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2, 1], "data": [1.0, 2.0]}]}
        await rest.post(two)
        await rest.post(two, **{"x-batch-rows": "16"})
        await rig.infer(request(rows=2))
        await rig.infer(request(rows=2), metadata=(("x-batch-rows", "16"),))
    assert rows == [2, 16, 2, 16]


async def test_headers_go_on_as_metadata_and_those_of_the_way_do_not() -> None:
    async with proxied() as rig, served(rig) as rest:
        sent = {"authorization": "Bearer x", "my-key": "secret", "te": "trailers", "x-data-bin": "!!", "x-odd": "grüße"}
        status, *_ = await rest.post(BODY, **sent)
        assert status == 200
        headers = rig.worker.headers[0]
        assert headers["authorization"] == "Bearer x"
        assert headers["my-key"] == headers["triton-grpc-protocol-my-key"] == "secret"
        assert not {"content-type", "accept", "x-data-bin", "x-odd", "inference-header-content-length"} & {
            name for name in headers if headers[name] != "application/grpc"
        }
        await rest.post(BODY, **{f"x-{number}": "v" * 900 for number in range(4)})
        assert not any(name.startswith("triton-grpc-protocol") for name in rig.worker.headers[1])


async def test_a_client_that_leaves_ends_the_workers_work() -> None:
    async with proxied(gate := Gate()) as rig, served(rig) as rest:
        call = asyncio.create_task(rest.post(BODY))
        await gate.begun.wait()
        call.cancel()
        await eventually(lambda: rig.worker.cancelled == 1 and not rig.in_flight, "the worker's call is cancelled")


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (grpc.StatusCode.UNAVAILABLE, 403, "This protocol is restricted, expecting header 'triton-grpc-protocol-k'"),
        (grpc.StatusCode.INVALID_ARGUMENT, 400, WORDS),
        (grpc.StatusCode.NOT_FOUND, 404, WORDS),
        (grpc.StatusCode.UNIMPLEMENTED, 501, WORDS),
        (grpc.StatusCode.INTERNAL, 500, WORDS),
        (grpc.StatusCode.UNAVAILABLE, 503, WORDS),
        (grpc.StatusCode.UNKNOWN, 500, WORDS),
    ],
)
async def test_an_error_of_a_worker_is_the_clients_with_its_words(
    code: grpc.StatusCode, status: int, words: str
) -> None:
    async with proxied(aborting(code, words)) as rig, served(rig) as rest:
        assert (await rest.post(BODY))[:2] == (status, {"error": words})


async def test_an_answer_that_is_none_is_a_bad_gateway() -> None:
    async def garbage(_: bytes, __: Any) -> bytes:
        return b"\xff\xff"

    async def without_bytes(_: bytes, __: Any) -> bytes:
        answer = service_pb2.ModelInferResponse()
        answer.outputs.add(name="Y", datatype="FP32", shape=[1])
        return bytes(answer.SerializeToString())

    async with proxied(garbage) as rig, served(rig) as rest:
        assert (await rest.post(BODY))[0] == 502
    async with proxied(without_bytes) as rig, served(rig) as rest:
        status, content, _ = await rest.post(BODY)
        assert (status, content["error"]) == (500, "the worker's answer has outputs without their bytes")
        assert rig.metric("balancer_handler_errors_total") == 0


async def test_what_is_too_large_or_no_call_is_refused() -> None:
    async with proxied(envoy={"frontend": "proxy", "request_buffer_limit_bytes": "3MiB"}) as rig:
        async with served(rig) as rest:
            status, content, _ = await rest.post(b"x" * (3 * 2**20 + 1))
            assert (status, content["error"][:26]) == (400, "the request has more than ")
            status, content, _ = await rest.post(b" " * (bounds.MAX_JSON_BYTES + 1))
            assert (status, "binary data" in content["error"]) == (400, True)
            for length in ("0", "-1", "x", "9" * 13, "²"):
                status, content, _ = await rest.post(BODY, **{"Inference-Header-Content-Length": length})
                assert (status, "Unable to parse" in content["error"]) == (400, True), length
            for path in ("a%2Fb/infer", f"{'m' * 257}/infer", "%00/infer", "m/versions/1/x/infer"):
                assert (await rest.post(BODY, path))[0] == 400, path
            assert await rest.get("/v2/models/m/infer") == 405
        assert not rig.worker.requests
        assert rig.metric("balancer_refused_inputs_total") == 11


async def test_health_is_good_until_the_process_stops() -> None:
    async with proxied() as rig, served(rig) as rest:
        assert await rest.get(PROXY_HEALTH_PATH) == 200
        finishing = asyncio.create_task(rig.front.finish())

        async def stops() -> bool:
            return await rest.get(PROXY_HEALTH_PATH) == 503

        await eventually(stops, "health says that it stops")
        assert (await rest.post(BODY))[0] == 200, "what comes meanwhile is answered"
        await finishing


@pytest.mark.parametrize(("rule", "name"), [({"cache_ttl_s": 60}, ""), ({"once_s": 60}, "mine")])
async def test_a_kept_answer_and_an_id_serve_both_protocols(rule: dict[str, float], name: str) -> None:
    """REST and gRPC make one message of a request."""
    async with proxied(models={"m": {"proxy": rule}}) as rig, served(rig) as rest:
        answer = service_pb2.ModelInferResponse.FromString(await rig.infer(body_as_message(name)))
        status, content, _ = await rest.post({"id": "mine", **BODY})
        assert status == 200
        assert (answer.id, content["id"]) == (name, "mine")
        assert content["outputs"][0]["data"] == [1.0, 2.0]
        assert len(rig.worker.requests) == 1


def body_as_message(name: str) -> bytes:
    """The message that `BODY` becomes, of that id."""
    message = service_pb2.ModelInferRequest(model_name="m", id=name)
    message.inputs.add(name="X", datatype="FP32", shape=[1, 2])
    message.raw_input_contents.append(b"\0\0\x80\x3f\0\0\0\x40")
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({"x-tenant": "poor"}, 429),
        ({"X-Tenant": "poor"}, 429),
        ({"x-tenant": "arme"}, 200),
        ({"x-tenant": "ärmlich"}, 429),
        ({"x-tenant": "t" * 257}, 400),
        ({"x-tenant": "t" * 2000}, 400),
        ({"x-tenant": ""}, 200),
        ({}, 200),
    ],
)
async def test_a_tenant_is_whom_the_header_names_whatever_it_is_made_of(header: dict[str, str], status: int) -> None:
    limits = {"requests_per_s": 0.001}
    tenants = {"named": {"poor": limits, "ärmlich": limits}}
    async with proxied(proxy={"tenants": tenants}) as rig, served(rig) as rest:
        await rest.post(BODY, **header)
        assert (await rest.post(BODY, **header))[0] == status


@pytest.mark.parametrize("header", [{"x-tenant": ""}, {}])
async def test_who_names_no_tenant_is_one(header: dict[str, str]) -> None:
    async with proxied(proxy={"tenants": {"requests_per_s": 0.001}}) as rig, served(rig) as rest:
        assert (await rest.post(BODY))[0] == 200
        assert (await rest.post(BODY, **header))[0] == 429
        with pytest.raises(grpc.aio.AioRpcError):
            await rig.infer(request())
