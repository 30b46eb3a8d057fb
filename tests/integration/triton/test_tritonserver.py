"""Starting, watching, draining and ending real servers."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from support.waiting import PATIENCE_S
from tritonclient.grpc import service_pb2 as api
from tritonclient.grpc import service_pb2_grpc

from balancer.stack.tritonserver import TritonExitedError, TritonServer

MakeTriton = Callable[..., TritonServer]


def bert_large(rows: int) -> api.ModelInferRequest:
    values = np.zeros((rows, 1), np.float32)
    request = api.ModelInferRequest(model_name="emulated_bert_large", raw_input_contents=[values.tobytes()])
    request.inputs.add(name="INPUT", datatype="FP32", shape=values.shape)
    return request


def shared_memory_of(server: TritonServer) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{server.shared_memory_prefix}*"))


async def test_an_idle_server_ends_when_asked_and_leaves_nothing(make_triton: MakeTriton) -> None:
    server = make_triton("string_upper")
    await server.start()
    await server.wait_ready()
    processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()]
    assert len(processes) == 2
    assert shared_memory_of(server) != []
    await server.stop(grace_s=30)
    assert server.process.returncode == 0
    assert not any(process.is_running() for process in processes)
    assert shared_memory_of(server) == []


async def test_a_killed_server_is_noticed_and_leaves_nothing(make_triton: MakeTriton) -> None:
    server = make_triton("string_upper")
    await server.start()
    await server.wait_ready()
    stubs = psutil.Process(server.process.pid).children()
    ended = asyncio.create_task(server.wait())
    await server.kill()
    assert await ended == -signal.SIGKILL
    psutil.wait_procs(stubs, timeout=PATIENCE_S)
    assert not any(stub.is_running() for stub in stubs)
    assert shared_memory_of(server) == []


async def test_a_draining_server_finishes_what_it_accepted_and_refuses_the_rest(make_triton: MakeTriton) -> None:
    server = make_triton("emulated_bert_large", environment={"EMULATED_GPU": "T4"}, exit_timeout_s=60)
    await server.start()
    await server.wait_ready()
    async with grpc.aio.insecure_channel(server.grpc_endpoint) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        await stub.ServerReady(api.ServerReadyRequest())
        accepted = [asyncio.ensure_future(answer(stub, bert_large(16))) for _ in range(8)]
        # When the first is done, the other 7 have been accepted: they came over the same connection, 218 ms ago.
        await asyncio.wait(accepted, return_when=asyncio.FIRST_COMPLETED)
        server.process.terminate()
        # The server goes on for a moment, so send until it refuses.
        while (refused := await answer(stub, bert_large(1))) == "OK":
            pass
        assert refused in {
            "UNAVAILABLE: [request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting new "
            "inference requests",
            "NOT_FOUND: Request for unknown model: 'emulated_bert_large' has no available versions",
        }
        assert await asyncio.gather(*accepted) == ["OK"] * 8
    assert await server.wait() == 0


async def answer(stub: service_pb2_grpc.GRPCInferenceServiceStub, request: api.ModelInferRequest) -> str:
    try:
        await stub.ModelInfer(request)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"


async def test_several_start_at_once_from_an_empty_cache(make_triton: MakeTriton, tmp_path: Path) -> None:
    servers = [make_triton("string_upper", cache_directory=tmp_path / "cache") for _ in range(3)]
    await asyncio.gather(*(server.start() for server in servers))
    await asyncio.gather(*(server.wait_ready() for server in servers))
    assert len(list((tmp_path / "cache").iterdir())) == 1


async def test_a_model_that_does_not_load_ends_the_server_with_the_reason(
    make_triton: MakeTriton, tmp_path: Path
) -> None:
    server = make_triton("emulated_tft", environment={"EMULATED_GPU": "H100"})
    await server.start()
    with pytest.raises(TritonExitedError, match=r"(?s)worker-0 exited with 1.*EMULATED_GPU=H100; choose one of"):
        await server.wait_ready()


async def test_a_missing_repository_is_named(make_triton: MakeTriton, tmp_path: Path) -> None:
    server = make_triton(model_repository=tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match=r"missing of Triton worker-0 is not a directory"):
        await server.start()


async def test_a_server_starts_once(make_triton: MakeTriton) -> None:
    server = make_triton("string_upper")
    with pytest.raises(RuntimeError, match="was not started"):
        _ = server.process
    await server.start()
    with pytest.raises(RuntimeError, match="was started before"):
        await server.start()
