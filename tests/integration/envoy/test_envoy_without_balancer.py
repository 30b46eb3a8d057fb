"""Through a real Envoy: what it does with forwarded requests while the balancer refuses, and while it is away."""

import dataclasses
import gzip
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.bootstrap import changed
from support.envoy_fakes import FakeBalancer, Rig, go_on
from support.raw_http2 import Upload
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2

from balancer.bootstrap.native import Kept
from balancer.bootstrap.proxy import FleetOptions
from balancer.proxy.messages import INFER, STREAM

pytestmark = pytest.mark.integration
KEPT = Kept((("pinned", "the versions of this model"),), (("once ü", "ids that are executed once"),))
AWAY = "no balancer answers, and Envoy alone cannot keep "
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


class Forwarding(grpc.GenericRpcHandler):
    """Answers inferences with one status."""

    def __init__(self) -> None:
        self.code = grpc.StatusCode.OK
        self.calls: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        """Those whose headers have come."""

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        self.begun[path] += 1
        if path == INFER:
            return grpc.unary_unary_rpc_method_handler(self._infer, None, None)
        return grpc.stream_stream_rpc_method_handler(self._stream, None, None) if path == STREAM else None

    async def _infer(self, data: bytes, context: Any) -> bytes:
        self.calls[INFER] += 1
        if self.code is not grpc.StatusCode.OK:
            await context.abort(self.code, "on purpose")
        response: bytes = service_pb2.ModelInferResponse(id="balancer").SerializeToString()
        return response

    async def _stream(self, _: Any, context: Any) -> None:
        self.calls[STREAM] += 1
        # A stream that ends while its client still writes may end with INTERNAL for the client.
        await context.read()
        await context.abort(self.code, "on purpose")


@pytest.fixture(params=["all", "some", "limited"])
async def forwarding(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Rig, Forwarding]]:
    """All models are forwarded, or some, or all and a limit is kept for them."""
    handler = Forwarding()
    rig = Rig(tmp_path, balancers=[FakeBalancer(picks=handler)])
    kept = dataclasses.replace(KEPT, of_all="limits" if request.param == "limited" else "")
    how: dict[str, Any] = {"forwarded": ("m", "pinned", "once ü")} if request.param == "some" else {"frontend": "proxy"}
    fleet = FleetOptions(grpc=("127.0.0.1:1",), rest=("127.0.0.1:1",))
    rig.options = changed(rig.options, kept=kept, fleet=fleet, **how)
    async with rig.running():
        yield rig, handler


async def ask(rig: Rig, model: str = "m") -> tuple[str, grpc.StatusCode, str, dict[str, Any]]:
    """Who answered, and how it ended."""
    call = rig.stub.ModelInfer(service_pb2.ModelInferRequest(model_name=model), timeout=PATIENCE_S)
    try:
        return (await call).id, grpc.StatusCode.OK, "", {}
    except grpc.aio.AioRpcError as error:
        return "", error.code(), error.details() or "", dict(error.trailing_metadata() or ())


@pytest.mark.parametrize("forwarding", ["all"], indirect=True)
async def test_a_compressed_upload_that_stops_does_not_reach_the_balancer(forwarding: tuple[Rig, Forwarding]) -> None:
    """It would keep room there that others need."""
    rig, handler = forwarding
    message = gzip.compress(service_pb2.ModelInferRequest(model_name="m").SerializeToString())
    body = b"\1" + len(message).to_bytes(4, "big") + message
    uploads = [Upload(rig.envoy.endpoint, headers=(("grpc-encoding", "gzip"),)) for _ in range(5)]
    try:
        for upload in uploads:
            await upload.start()
            assert await upload.send(body[:-1])
        assert (await ask(rig))[0] == "balancer"
        await uploads[0].send(body[-1:])
        await uploads[0].end()
        await eventually(lambda: handler.calls[INFER] == 2, "one is whole")
        assert handler.begun[INFER] == 2
    finally:
        for upload in uploads:
            await upload.stop()


async def test_whatever_the_balancer_answers_it_is_asked_again(forwarding: tuple[Rig, Forwarding]) -> None:
    rig, handler = forwarding
    for handler.code in CODES:
        for _ in range(8):
            assert (await ask(rig))[:2] == ("", handler.code)
        for _ in range(8):
            message = service_pb2.ModelInferRequest(model_name="m")
            stream = rig.stub.ModelStreamInfer(iter([message]), timeout=PATIENCE_S)
            assert await stream.code() is handler.code
    handler.code = grpc.StatusCode.OK
    assert {(await ask(rig))[0] for _ in range(10)} == {"balancer"}
    assert not any(worker.requests for worker in rig.workers)


async def test_around_a_balancer_that_is_away_goes_what_it_does_not_keep(
    forwarding: tuple[Rig, Forwarding], request: pytest.FixtureRequest
) -> None:
    rig, _ = forwarding
    limited = request.node.callspec.params["forwarding"] == "limited"
    await rig.balancers[0].stop()

    async def refused(model: str, what: str) -> None:
        who, code, details, trailing = await ask(rig, model)
        assert (who, code) == ("", grpc.StatusCode.UNAVAILABLE)
        assert details == f"{AWAY}{what}; retry later"
        assert int(trailing["grpc-retry-pushback-ms"]) > 0

    await refused("pinned", "the versions of this model")
    await refused("once ü", "ids that are executed once")
    for path, what in (
        ("pinned", "the versions of this model"),
        ("once%20%c3%bC/versions/1", "ids that are executed once"),
    ):
        async with rig.http.post(f"http://{rig.envoy.endpoint}/v2/models/{path}/infer", data=b"{}") as response:
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            assert (await response.json())["error"] == f"{AWAY}{what}; retry later"
    assert not any(worker.requests or worker.http_requests for worker in rig.workers)
    if limited:
        await refused("m", "limits")
        return
    assert {(await ask(rig))[0] for _ in range(30)} == {"w0", "w1", "w2"}
    stream = rig.stub.ModelStreamInfer(timeout=PATIENCE_S)
    await stream.write(service_pb2.ModelInferRequest(model_name="m"))
    assert (await stream.read()).infer_response.id in {"w0", "w1", "w2"}
    await stream.done_writing()
    async with rig.http.post(f"http://{rig.envoy.endpoint}/v2/models/m/infer", data=b"{}") as response:
        assert (response.status, (await response.text())[0]) == (200, "w")


async def test_where_envoy_asks_what_a_pick_keeps_needs_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.options = dataclasses.replace(rig.options, kept=dataclasses.replace(KEPT, of_all="limits"))
    async with rig.running():
        rig.balancers[0].respond = lambda _: go_on(rig.workers[1].grpc_endpoint)
        assert (await ask(rig, "pinned"))[0] == "w1"
        await rig.balancers[0].stop()

        async def unpicked() -> bool:
            return {(await ask(rig, "once ü"))[0] for _ in range(20)} == {"w0", "w1", "w2"}

        await eventually(unpicked)
        who, code, details, _ = await ask(rig, "pinned")
        assert (who, code, details) == (
            "",
            grpc.StatusCode.UNAVAILABLE,
            f"{AWAY}the versions of this model; retry later",
        )
        hidden = service_pb2.ModelInferRequest(model_name="pinned", id="long enough to be compressed" * 9)
        with pytest.raises(grpc.aio.AioRpcError, match="which model a compressed message is for"):
            await rig.stub.ModelInfer(hidden, timeout=PATIENCE_S, compression=grpc.Compression.Gzip)
        for call in ("infer", "generate", "versions/1/generate_stream"):
            url = f"http://{rig.envoy.endpoint}/v2/models/pinned/{call}"
            async with rig.http.post(url, data=b"{}") as response:
                assert response.status == 503
        async with rig.http.get(f"http://{rig.envoy.endpoint}/v2/models/pinned/ready") as response:
            assert response.status == 200
