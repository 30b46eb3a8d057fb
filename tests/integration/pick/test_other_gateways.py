"""Real Envoys, set up as other gateways set up theirs, ask for picks; what passes by them stays as it is."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio
from support.envoy_fakes import a_request
from support.fleets import make_router
from support.other_gateways import (
    DUPLEX,
    GRPC,
    MODES,
    NONE,
    STREAMED,
    EchoingWorker,
    Envoys,
    Gateway,
    Listening,
    digest,
)
from support.running import running
from support.waiting import PATIENCE_S
from tritonclient.grpc import service_pb2, service_pb2_grpc

from balancer.extproc.pick_service import ExternalProcessor
from balancer.extproc.picker import Addresses, Picker
from balancer.kernel.settings import SplitSettings
from balancer.scheduler.events import ModelReport
from policies.round_robin import RoundRobin

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

EVERY = [Gateway(request, response) for request in MODES for response in MODES]
MESSAGES = Gateway(GRPC, GRPC)
BY_METADATA = Gateway(DUPLEX, DUPLEX, by="metadata")
SILENT = Gateway(tells=False)
BODY = os.urandom(5_000_000)


@dataclass
class Stack:
    """A picker, two workers, and an Envoy with a listener for each gateway."""

    envoys: Envoys
    listening: Listening
    workers: list[EchoingWorker]
    http: aiohttp.ClientSession
    picker: Picker
    ready: list[bool] = field(default_factory=lambda: [True])

    def url(self, gateway: Gateway, verb: str = "infer") -> str:
        return f"http://127.0.0.1:{self.envoys.ports[gateway]}/v2/models/m/{verb}"

    def channel(self, gateway: Gateway) -> grpc.aio.Channel:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.envoys.ports[gateway]}", options=unlimited)

    async def served(self) -> Any:
        """What is told of the last call."""
        return await self.listening.end_of(self.listening.calls[-1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    workers = [EchoingWorker("w0"), EchoingWorker("w1")]
    listening, ready = Listening(), [True]
    async with AsyncExitStack() as parts:
        await parts.enter_async_context(running(*workers))
        models = [ModelReport("m", version, ready=True) for version in ("1", "2", "7")]
        picker = Picker(make_router(2, RoundRobin(), models=models), lambda: 0.1)
        picker.addresses = Addresses([worker.spec for worker in workers])
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        processor = ExternalProcessor(picker, listening, lambda: ready[0])
        server.add_generic_rpc_handlers((processor.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        parts.push_async_callback(server.stop, None)
        gateways = [*EVERY, MESSAGES, BY_METADATA]
        folder: Path = tmp_path_factory.mktemp("gateways")
        envoys = await parts.enter_async_context(Envoys(folder, port, workers, gateways).running())
        http = await parts.enter_async_context(aiohttp.ClientSession())
        yield Stack(envoys, listening, workers, http, picker, ready)


@pytest.fixture
def split(stack: Stack) -> Iterator[Stack]:
    """All requests for the model `m` that name no version get version 2."""
    stack.picker.splits.configure({"m": SplitSettings("1", "2", 1.0)})
    yield stack
    stack.picker.splits.configure({})


@pytest.mark.parametrize("gateway", [*EVERY, MESSAGES, BY_METADATA], ids=str)
@pytest.mark.parametrize("payload_bytes", [0, 1_000_000])
async def test_a_message_of_grpc_gets_a_version_where_the_gateway_hands_it_over(
    split: Stack, gateway: Gateway, payload_bytes: int
) -> None:
    sent, metadata = a_request(payload_bytes=payload_bytes), (("x-gateway-model-name", "m"),)
    left = split.picker.splits.left.total()
    async with split.channel(gateway) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = await stub.ModelInfer(sent, metadata=metadata, timeout=PATIENCE_S)
        served = await split.served()
        assert (served.status, served.grpc_status, served.decision.worker) == (200, 0, answer.id)
        [got] = [worker.requests[-1] for worker in split.workers if worker.name == answer.id]
        assert answer.raw_output_contents == sent.raw_input_contents
        given = gateway.request not in (NONE, GRPC)
        assert got.model_version == ("2" if given else "")
        assert (served.draw is not None) is given
        assert split.picker.splits.left.total() - left == (not given)
        got.ClearField("model_version")
        assert got == sent
        named = service_pb2.ModelInferRequest()
        named.CopyFrom(sent)
        named.model_version = "7"
        answer = await stub.ModelInfer(named, metadata=metadata, timeout=PATIENCE_S)
        assert (await split.served()).draw is None
        [got] = [worker.requests[-1] for worker in split.workers if worker.name == answer.id]
        assert got == named


@pytest.mark.parametrize("gateway", [Gateway(mode, NONE) for mode in MODES if mode != NONE], ids=str)
async def test_a_message_in_compressed_form_is_left_alone_and_counted(split: Stack, gateway: Gateway) -> None:
    left = split.picker.splits.left["m", "compressed"]
    sent = a_request(payload_bytes=10_000)
    async with split.channel(gateway) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = (("x-gateway-model-name", "m"),)
        answer = await stub.ModelInfer(sent, metadata=metadata, timeout=PATIENCE_S, compression=grpc.Compression.Gzip)
    assert (await split.served()).draw is None
    assert split.picker.splits.left["m", "compressed"] == left + 1
    [got] = [worker.requests[-1] for worker in split.workers if worker.name == answer.id]
    assert got == sent


@pytest.mark.parametrize("gateway", [*EVERY, BY_METADATA], ids=str)
async def test_five_megabytes_pass_both_ways_and_their_path_gets_a_version(split: Stack, gateway: Gateway) -> None:
    async with split.http.post(split.url(gateway), data=BODY) as response:
        back = await response.read()
    assert response.headers["x-digest"] == digest(BODY) == digest(back)
    served = await split.served()
    assert (served.status, served.decision.worker) == (200, response.headers["x-worker"])
    assert served.draw is not None
    [worker] = [worker for worker in split.workers if worker.name == served.decision.worker]
    assert worker.http_requests[-1][0] == "/v2/models/m/versions/2/infer"


@pytest.mark.parametrize("gateway", [EVERY[0], Gateway(DUPLEX, DUPLEX), MESSAGES], ids=str)
async def test_a_failure_of_grpc_is_shown_as_one(
    stack: Stack, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(request: service_pb2.ModelInferRequest, context: Any) -> service_pb2.ModelInferResponse:
        # Headers first, so that the status is in the trailers.
        await context.send_initial_metadata(())
        await context.abort(grpc.StatusCode.UNAVAILABLE, "full")
        raise AssertionError

    for worker in stack.workers:
        monkeypatch.setattr(worker, "infer", fail)
    async with stack.channel(gateway) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="full"):
            await stub.ModelInfer(a_request(), metadata=(("x-gateway-model-name", "m"),), timeout=PATIENCE_S)
    assert (await stack.served()).grpc_status == grpc.StatusCode.UNAVAILABLE.value[0]


@pytest.mark.parametrize("mode", [NONE, STREAMED, DUPLEX])
async def test_events_arrive_one_by_one(stack: Stack, mode: str) -> None:
    gateway = Gateway(mode, mode)
    for worker in stack.workers:
        worker.go_on.clear()
    async with stack.http.post(stack.url(gateway, "generate_stream"), data=b"{}") as response:
        first = await asyncio.wait_for(response.content.readuntil(b"\n\n"), PATIENCE_S)
        for worker in stack.workers:
            worker.go_on.set()
        rest = await response.read()
    assert (first, rest) == (b"data: first\n\n", b"data: second\n\n")


@pytest_asyncio.fixture(loop_scope="module")
async def waiting(stack: Stack) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Workers that hold an inference: the first event says that one is there, the second lets it go on."""
    arrived, release = asyncio.Event(), asyncio.Event()

    async def wait(request: service_pb2.ModelInferRequest, context: Any) -> service_pb2.ModelInferResponse:
        arrived.set()
        await release.wait()
        return service_pb2.ModelInferResponse()

    for worker in stack.workers:
        worker.infer = wait
    yield arrived, release
    release.set()
    for worker in stack.workers:
        worker.infer = None


@pytest.mark.parametrize("gateway", [EVERY[0], Gateway(DUPLEX, DUPLEX), MESSAGES], ids=str)
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_request_is_in_flight_until_it_has_ended(
    stack: Stack, waiting: tuple[asyncio.Event, asyncio.Event], gateway: Gateway, leaves: bool
) -> None:
    arrived, release = waiting
    async with stack.channel(gateway) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        inference = stub.ModelInfer(a_request(), metadata=(("x-gateway-model-name", "m"),))
        await asyncio.wait_for(arrived.wait(), PATIENCE_S)
        picked = stack.listening.calls[-1]
        async with stack.http.post(stack.url(EVERY[0]), data=b"{}"):
            await stack.served()  # what came later has ended
        assert id(picked) not in stack.listening.ended
        if leaves:
            inference.cancel()
        else:
            release.set()
            await inference
        served = await stack.listening.end_of(picked)
    assert (served.status, served.grpc_status) == ((0, -1) if leaves else (200, 0))


async def test_of_a_gateway_that_reports_nothing_no_end_is_made_up(stack: Stack, tmp_path: Path) -> None:
    async with Envoys(tmp_path, stack.envoys.picker_port, stack.workers, [SILENT]).running() as envoys:
        async with stack.http.post(
            f"http://127.0.0.1:{envoys.ports[SILENT]}/v2/models/m/infer", data=b"{}"
        ) as response:
            assert response.status == 200
        picked = stack.listening.calls[-1]
        async with stack.http.post(stack.url(EVERY[0]), data=b"{}"):
            await stack.served()
    assert id(picked) not in stack.listening.ended


async def test_without_workers_a_gateway_that_fails_closed_says_503(stack: Stack) -> None:
    stack.ready[0] = False
    try:
        async with stack.http.post(stack.url(Gateway(DUPLEX, DUPLEX)), data=b"{}") as response:
            assert response.status == 503
            assert "does not know its workers yet" in (await response.json())["error"]
    finally:
        stack.ready[0] = True
