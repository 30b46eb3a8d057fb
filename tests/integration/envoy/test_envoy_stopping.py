"""A real Triton that is told to stop, and asked to its last moment: no request over gRPC is lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from support.envoy_fakes import FakeWorker, Rig, go_on
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2

from balancer.stack.process import free_ports
from balancer.stack.tritonserver import TritonServer

pytestmark = pytest.mark.integration
MODEL = "identity"
CLIENTS = 64


@pytest.fixture
async def triton(tmp_path: Path) -> AsyncIterator[TritonServer]:
    repository = tmp_path / "models"
    repository.mkdir()
    (repository / MODEL).symlink_to(Path(__file__).parents[3] / "triton" / "feature_models" / MODEL)
    ports = dict(zip(("grpc_port", "http_port", "metrics_port"), free_ports(3), strict=True))
    server = TritonServer(name="stops", model_repository=repository, log_path=tmp_path / "triton.log", **ports)
    await server.start()
    try:
        await server.wait_ready(60)
        yield server
    finally:
        await server.kill()


def request() -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    message.inputs.add(name="INPUT", datatype="FP32", shape=[1])
    message.raw_input_contents.append(bytes(4))
    return message


async def test_what_it_has_not_begun_with_another_worker_serves(tmp_path: Path, triton: TritonServer) -> None:
    other = FakeWorker("other")
    stops = FakeWorker("stops", grpc_port=triton.grpc_port, http_port=triton.http_port)
    rig = Rig(tmp_path, workers=[other])
    async with rig.running():
        rig.balancers[0].ads.update([other.as_endpoint(), stops.as_endpoint()])
        rig.balancers[0].respond = lambda _: go_on(f"{stops.grpc_endpoint},{other.grpc_endpoint}")
        failed: list[str] = []
        served = 0
        ended = asyncio.Event()

        async def client() -> None:
            nonlocal served
            while not ended.is_set():
                try:
                    await rig.stub.ModelInfer(request(), timeout=PATIENCE_S)
                    served += 1
                except grpc.aio.AioRpcError as error:
                    failed.append(f"{error.code().name}: {error.details()}")

        clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
        await eventually(lambda: served >= 10 * CLIENTS, "requests are served")
        triton.process.terminate()
        await triton.wait()
        ended.set()
        await asyncio.gather(*clients)
    assert served > 10 * CLIENTS
    assert not failed
