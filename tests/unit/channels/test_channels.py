import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from support.certificates import Authority
from support.fake_triton import FakeTriton, serving
from tritonclient.grpc import service_pb2, service_pb2_grpc

from balancer.balancer_tls import BalancerTls
from balancer.channels.channels import Channels, UnknownWorkerError
from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError
from balancer.stack.process import free_ports

_NAME = "triton.internal"


def worker(name: str, address: str) -> WorkerSpec:
    host, _, port = address.rpartition(":")
    (http_port,) = free_ports(1)
    return WorkerSpec(name=name, address=host, grpc_port=int(port), http_port=http_port)


async def ask(channel: grpc.aio.Channel, model: str = "echo") -> str:
    request = service_pb2.ModelInferRequest(model_name=model)
    response = await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    return str(response.model_name)


@asynccontextmanager
async def opened(tls: BalancerTls | None = None) -> AsyncIterator[Channels]:
    channels = Channels(tls)
    try:
        yield channels
    finally:
        await channels.close()


async def test_each_worker_has_one_channel_which_is_opened_at_its_first_use() -> None:
    async with serving(FakeTriton()) as one, serving(FakeTriton()) as other, opened() as channels:
        channels.update([worker("a", one), worker("b", other)])
        assert len(channels) == 0
        assert await ask(channels.of("a")) == "echo"
        assert channels.of("a") is channels.of("a")
        assert len(channels) == 1
        channels.of("b")
        assert len(channels) == 2


async def test_what_a_worker_that_leaves_executes_may_end() -> None:
    fake = FakeTriton()
    async with serving(fake) as address, opened() as channels:
        channels.update([worker("a", address)])
        call = asyncio.create_task(ask(channels.of("a"), "gated"))
        await fake.seen(1)
        channels.update([])
        assert len(channels) == 0
        with pytest.raises(UnknownWorkerError):
            channels.of("a")
        fake.gate.set()
        assert await call == "gated"


async def test_a_worker_that_moved_is_asked_at_its_new_address() -> None:
    before, after = FakeTriton(), FakeTriton()
    async with serving(before) as one, serving(after) as other, opened() as channels:
        channels.update([worker("a", one)])
        await ask(channels.of("a"))
        channels.update([worker("a", other)])
        await ask(channels.of("a"))
    assert (len(before.requests), len(after.requests)) == (1, 1)


async def test_an_end_ends_calls_under_way() -> None:
    fake = FakeTriton()
    async with serving(fake) as address:
        channels = Channels()
        channels.update([worker("a", address), worker("b", address)])
        calls = [asyncio.create_task(ask(channels.of(name), "gated")) for name in ("a", "b")]
        await fake.seen(2)
        channels.update([worker("b", address)])
        await channels.close()
        for call in calls:
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await call


async def test_tls_is_that_of_envoys_upstreams_and_is_renewed(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    server, client = authority.issue("triton", dns=_NAME), authority.issue("balancer", dns="balancer.internal")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(stranger.pem)
    triton = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(FakeTriton(), triton)
    port = triton.add_secure_port("127.0.0.1:0", server.server(authority)[0])
    await triton.start()
    try:
        async with opened(BalancerTls(trusted, _NAME, client.cert, client.key)) as channels:
            channels.update([worker("a", f"127.0.0.1:{port}")])
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(channels.of("a"))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            trusted.write_bytes(authority.pem)
            await channels.renew()
            assert await ask(channels.of("a")) == "echo"
            trusted.unlink()
            with pytest.raises(OperatorError, match=r"trusted\.pem cannot be read"):
                await channels.renew()
            assert await ask(channels.of("a")) == "echo"
    finally:
        await triton.stop(None)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"nothing\.pem cannot be read: .*; name a PEM file"):
        Channels(BalancerTls(tmp_path / "nothing.pem", _NAME))
