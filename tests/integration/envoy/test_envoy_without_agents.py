"""Through a real Envoy that starts while the balancer has heard no agent: requests are served, as Envoy chooses."""

from pathlib import Path

import aiohttp
import grpc
import pytest
from support.envoy_fakes import FakeWorker, a_request
from support.running import running
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2_grpc

from balancer.config.config import Config, from_mapping
from balancer.config.frontend import bootstrap_options
from balancer.files.yaml_document import dump
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.process import Child, free_port_range, free_ports

pytestmark = pytest.mark.integration


def configured(workers: list[FakeWorker], processes: int) -> Config:
    listener, admin = free_ports(2)
    listen = {
        name: f"127.0.0.1:{free_port_range(processes + (name == 'envoy'))}" for name in ("envoy", "reports", "admin")
    }
    listed = [worker.spec.model_dump(mode="json") for worker in workers]
    envoy = {"listen": f"127.0.0.1:{listener}", "admin": f"127.0.0.1:{admin}", "frontend": "pick"}
    listen |= {"fleet": None}
    return from_mapping({"listen": listen, "envoy": envoy, "processes": processes, "discovery": {"workers": [*listed]}})


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_an_envoy_that_starts_while_all_agents_are_dead_serves(tmp_path: Path, processes: int) -> None:
    workers = [FakeWorker("w0"), FakeWorker("w1")]
    async with running(*workers), aiohttp.ClientSession() as session:
        config = configured(workers, processes)
        file = tmp_path / "balancer.yaml"
        file.write_text(dump(config.model_dump(mode="json")))
        balancer = Child(log_path=tmp_path / "balancer.log", arguments=["serve", "--config", str(file)])

        async def given_up() -> bool:
            """Whether every process has waited for reports for as long as it does."""
            for process in range(processes):
                try:
                    async with session.get(f"http://{config.listen.admin_address(process)}/ready") as answer:
                        if "no worker is ready" not in await answer.text():
                            return False
                except aiohttp.ClientError:
                    return False
            return True

        envoy = EnvoyProcess(options=bootstrap_options(config), log_path=tmp_path / "envoy.log")
        async with running(balancer):
            await eventually(given_up, "every process has given up waiting for reports")
            async with running(envoy), grpc.aio.insecure_channel(envoy.endpoint) as channel:
                await envoy.wait_ready()
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                served = [(await stub.ModelInfer(a_request(), timeout=PATIENCE_S)).id for _ in range(40)]
                assert set(served) == {"w0", "w1"}
                async with session.get(f"http://{envoy.endpoint}/v2/health/ready") as answer:
                    assert await answer.text() in {"w0", "w1"}
