"""The listeners for other gateways and for probes, of a real `balancer serve`."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.balancer_alone import BalancerAlone
from support.certificates import Authority
from support.other_gateways import DUPLEX, EchoingWorker, Envoys, Gateway
from support.running import running
from support.waiting import PATIENCE_S

from balancer.extproc.names import ENDPOINTS_SERVICE, OUTCOMES_SERVICE, PICKS_SERVICE
from balancer.stack.process import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PLAIN, OVER_TLS = Gateway(DUPLEX, DUPLEX), Gateway(DUPLEX, DUPLEX, tls=True)


@dataclass
class Served:
    """A balancer with both listeners, and workers that answer."""

    gateways: int
    health: int
    workers: list[EchoingWorker]


@asynccontextmanager
async def serving(directory: Path, tls: dict[str, Any] | None = None) -> AsyncIterator[Served]:
    gateways, health = free_ports(2)
    workers = [EchoingWorker("w0"), EchoingWorker("w1")]
    async with running(*workers):
        listed = [worker.spec.model_dump(mode="json") for worker in workers]
        balancer = BalancerAlone(
            directory,
            listen={"gateways": f"127.0.0.1:{gateways}", "health": f"127.0.0.1:{health}"},
            discovery={"workers": listed},
            **({} if tls is None else {"tls": {"gateways": tls}}),
        )
        async with running(balancer):
            yield Served(gateways, health, workers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serving(tmp_path_factory.mktemp("plain")) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def over_tls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serving(tmp_path_factory.mktemp("tls"), {"self_signed": True}) as served:
        yield served


async def ask(directory: Path, served: Served, gateway: Gateway) -> tuple[int, str]:
    """Status and worker of one request through a real Envoy that is set up so."""
    envoys = Envoys(directory, served.gateways, served.workers, [gateway])
    async with envoys.running(), aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{envoys.ports[gateway]}/v2/models/m/infer"
        async with http.post(url, data=b"{}") as response:
            return response.status, response.headers.get("x-worker", "")


async def test_a_gateway_is_served_with_and_without_tls(tmp_path: Path, plain: Served, over_tls: Served) -> None:
    for served, gateway in ((plain, PLAIN), (over_tls, OVER_TLS)):
        status, worker = await ask(tmp_path, served, gateway)
        assert status == 200
        assert worker in ("w0", "w1")


async def test_a_self_signed_certificate_vouches_for_nobody(over_tls: Served) -> None:
    pem = ssl.get_server_certificate(("127.0.0.1", over_tls.gateways))
    async with grpc.aio.secure_channel(f"localhost:{over_tls.gateways}", grpc.ssl_channel_credentials()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    trusting = grpc.ssl_channel_credentials(pem.encode())
    async with grpc.aio.secure_channel(f"localhost:{over_tls.gateways}", trusting) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="liveness"))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_gateway_shows_its_role_where_that_is_asked_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    own = authority.issue("balancer", dns="localhost")
    async with serving(tmp_path, own.section(authority)) as served:
        for role, code in (("gateway", None), ("agent/w0", grpc.StatusCode.PERMISSION_DENIED)):
            client = authority.issue("client", uri=f"spiffe://balancer/{role}").credentials(authority)
            async with grpc.aio.secure_channel(f"localhost:{served.gateways}", client) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=PICKS_SERVICE))
                assert await check.code() is (code or grpc.StatusCode.OK)


async def test_probes_need_no_tls_and_get_nothing_else(over_tls: Served) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{over_tls.health}") as channel:
        for service in ("readiness", "liveness", PICKS_SERVICE):
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
            assert (await check).status == health_pb2.HealthCheckResponse.SERVING
        assert await called(channel, f"/{PICKS_SERVICE}/Process") == grpc.StatusCode.UNIMPLEMENTED
        health, invented = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest(service="invented")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health.Check(invented)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        async for answer in health.Watch(invented):
            assert answer.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            break


async def test_other_gateways_get_neither_endpoints_nor_a_say_about_outcomes(plain: Served) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{plain.gateways}") as channel:
        for method in (f"/{ENDPOINTS_SERVICE}/StreamAggregatedResources", f"/{OUTCOMES_SERVICE}/StreamAccessLogs"):
            assert await called(channel, method) == grpc.StatusCode.UNIMPLEMENTED


async def called(channel: grpc.aio.Channel, method: str) -> grpc.StatusCode:
    """How a stream without a message ends."""
    stream = channel.stream_stream(method)()
    await stream.done_writing()
    return await stream.code()
