"""Through a real Envoy: a message that is compressed is picked for by its fields, and passes as it is."""

import asyncio
import contextlib
import gzip
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from support.envoy_fakes import FakeBalancer, FakeWorker, Rig, a_request
from support.fleets import make_router
from support.other_gateways import Listening
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.extproc.pick_service import ExternalProcessor
from balancer.extproc.picker import Addresses, Picker
from balancer.scheduler.events import ModelReport
from policies.round_robin import RoundRobin

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
INFER = "/inference.GRPCInferenceService/ModelInfer"
ALGORITHMS = [grpc.Compression.Gzip, grpc.Compression.Deflate]


@dataclass
class Picked:
    rig: Rig
    listening: Listening
    processor: ExternalProcessor


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def picked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Picked]:
    listening = Listening()
    workers = [FakeWorker("w0"), FakeWorker("w1")]
    picker = Picker(make_router(2, RoundRobin(), models=[ModelReport("m", "1", ready=True)]), lambda: 0.1)
    processor = ExternalProcessor(picker, listening, lambda: True)
    folder: Path = tmp_path_factory.mktemp("compressed")
    async with contextlib.AsyncExitStack() as parts:
        rig = Rig(folder, [FakeBalancer(picks=processor.handler())], workers)
        await parts.enter_async_context(rig.running())
        picker.addresses = Addresses([worker.spec for worker in workers])
        yield Picked(rig, listening, processor)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("payload_bytes", [16, 10_000, 5_000_000])
async def test_it_is_picked_for_by_its_fields_and_passes(
    picked: Picked, algorithm: grpc.Compression, payload_bytes: int
) -> None:
    sent = a_request(payload_bytes=payload_bytes)
    sent.id, sent.inputs[0].shape[0] = "mine" * 20, 7
    sent.parameters["priority"].uint64_param = 3
    names = []
    for _ in range(4):
        answer = await picked.rig.stub.ModelInfer(sent, timeout=PATIENCE_S, compression=algorithm)
        names.append(answer.id)
        [worker] = [worker for worker in picked.rig.workers if worker.name == answer.id]
        assert worker.requests[-1] == sent
        call = picked.listening.calls[-1]
        assert (call.request.model, call.request.rows, call.request.priority) == ("m", 7, 3)
        assert call.triton_request_id == sent.id
    assert names in (["w0", "w1"] * 2, ["w1", "w0"] * 2)
    assert picked.listening.served_calls == [], "our own Envoy tells nothing after a pick"
    assert picked.listening.internal_errors == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_stream_goes_on_while_its_client_waits_for_answers(picked: Picked, algorithm: grpc.Compression) -> None:
    stream = picked.rig.stub.ModelStreamInfer(timeout=PATIENCE_S, compression=algorithm)
    before = len(picked.listening.calls)
    for _ in range(3):
        await stream.write(a_request(payload_bytes=100_000))
        assert isinstance(await stream.read(), service_pb2.ModelStreamInferResponse)
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK
    assert len(picked.listening.calls) == before + 1


async def refused(picked: Picked, body: bytes) -> str:
    """The words of a refusal of such a message, which is packed once more by gRPC."""
    async with grpc.aio.insecure_channel(picked.rig.envoy.endpoint) as channel:
        method: Any = channel.unary_unary(INFER)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await method(body, timeout=PATIENCE_S, compression=grpc.Compression.Gzip)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(raised.value.details())


async def test_what_must_not_go_on_is_refused_in_words(picked: Picked) -> None:
    honest = a_request(payload_bytes=1_000_000).SerializeToString()
    before = sum(len(worker.requests) for worker in picked.rig.workers)
    late = honest + service_pb2.ModelInferRequest(model_name="other").SerializeToString()
    assert await refused(picked, late) == "model_name: comes after the tensors, which is refused"
    bomb = honest[:20] + b"\x3a" + b"\x80\x80\x80\x30" + bytes(100_663_296)
    assert f"has more than {bounds.MAX_INFLATED_BYTES} bytes inflated" in await refused(picked, bomb)
    assert await refused(picked, honest[:-1]) == "message: '' is refused; it is a protobuf message"
    assert await refused(picked, b"\x0a\x01\xff" + honest) == r"model_name: '\xff' is refused; it is UTF-8"
    unnamed = a_request(model="", payload_bytes=10_000).SerializeToString()
    assert "is not empty" in await refused(picked, unnamed)
    assert sum(len(worker.requests) for worker in picked.rig.workers) == before
    await eventually(lambda: picked.processor._inflating == 0, "nothing is inflated any more")


async def test_who_leaves_in_the_middle_takes_nothing_along(picked: Picked) -> None:
    body = gzip.compress(a_request(payload_bytes=100_000).SerializeToString())
    headers = {"content-type": "application/grpc", "te": "trailers", "grpc-encoding": "gzip"}

    async def some() -> AsyncIterator[bytes]:
        yield b"\1" + struct.pack(">I", len(body)) + body[:8]
        await asyncio.Event().wait()

    url = f"http://{picked.rig.envoy.endpoint}{INFER}"

    def send() -> Any:
        return asyncio.ensure_future(picked.rig.http.post(url, data=some(), headers=headers))

    upload = send()

    async def there() -> bool:
        nonlocal upload
        if upload.done():  # a busy machine was too slow for Envoy, which has answered by itself
            upload = send()
        return picked.processor._inflating == 1

    await eventually(there, "its body is awaited")
    upload.cancel()

    async def gone() -> bool:
        return picked.processor._inflating == 0

    await eventually(gone, "nobody awaits it")


async def test_while_the_balancer_is_away_envoy_sends_it_on(picked: Picked) -> None:
    """Once it has seen that: a body that is on its way through the balancer at that moment is lost."""
    [balancer] = picked.rig.balancers
    await balancer.stop()
    await eventually(
        lambda: picked.rig.statistic(r"cluster\.balancer\.membership_healthy"),
        "Envoy knows",
        until=lambda value: value == 0,
    )
    sent = a_request(payload_bytes=1_000_000)
    answer = await picked.rig.stub.ModelInfer(sent, timeout=PATIENCE_S, compression=grpc.Compression.Gzip)
    [worker] = [worker for worker in picked.rig.workers if worker.name == answer.id]
    assert worker.requests[-1] == sent
