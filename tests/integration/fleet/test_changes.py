"""Who may change the workers, where a change goes, and what becomes of it when parts die."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support import fronts
from support.fleet_stack import fleet_stack
from support.inputs import input_of
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2, service_pb2_grpc

from balancer.extproc.names import MISSING_HEADER
from balancer.extproc.picker import PER_SERVER

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

OPS, USER = "key-of-the-operator", "key-of-some-user-1"
KEYS = f"ops: {OPS}\nuser: {USER}\n"
MODEL = "string_upper"
CHANGES: tuple[tuple[str, Any], ...] = (
    ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name=MODEL)),
    ("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="identity")),
    ("SystemSharedMemoryRegister", service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/r", byte_size=4)),
    ("SystemSharedMemoryUnregister", service_pb2.SystemSharedMemoryUnregisterRequest()),
    ("CudaSharedMemoryRegister", service_pb2.CudaSharedMemoryRegisterRequest(name="r", byte_size=4)),
    ("CudaSharedMemoryUnregister", service_pb2.CudaSharedMemoryUnregisterRequest()),
    ("LogSettings", service_pb2.LogSettingsRequest(settings={"log_info": {"bool_param": False}})),
    ("TraceSetting", service_pb2.TraceSettingRequest(settings={"trace_rate": {"value": ["7"]}})),
)
REST_CHANGES = (
    *(f"/v2/repository/models/{MODEL}/{verb}" for verb in ("load", "unload")),
    *(f"/v2/systemsharedmemory/{rest}" for rest in ("region/r/register", "unregister")),
    *("/v2/logging", "/v2/trace/setting", "/v2/models/identity/trace/setting"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("changes")
    file = str(directory / "changes.json")
    async with fleet_stack(directory, request.param, ["ops"], KEYS, file=file, timeout_s=PATIENCE_S) as stack:
        yield stack


async def call(stack: Stack, method: str, request: Any, key: str = OPS, **headers: str) -> Any:
    """The answer; AioRpcError."""
    sent = [("x-api-key", key), *((name.replace("_", "-"), value) for name, value in headers.items())]
    async with grpc.aio.insecure_channel(stack.url) as channel:
        under_way = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)(
            request, metadata=sent, timeout=60
        )
        answer = await under_way
        return answer, dict(await under_way.trailing_metadata())


async def ready(stack: Stack, number: int, model: str = MODEL) -> bool:
    """Whether one worker says that it has a model."""
    async with triton_grpc.InferenceServerClient(f"127.0.0.1:{stack.specs[number].grpc_port}") as client:
        try:
            return bool(await client.is_model_ready(model))
        except triton_grpc.InferenceServerException:
            return False


@pytest.mark.parametrize(("method", "request_"), CHANGES)
async def test_whom_the_config_does_not_name_is_refused_word_for_word(stack: Stack, method: str, request_: Any) -> None:
    """Also who names himself another."""
    for headers in ({}, {"x_gateway_principal": "ops"}):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(stack, method, request_, USER, **headers)
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, PER_SERVER)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(stack, method, request_, "no-key-of-anybody")
    assert refused.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize("path", REST_CHANGES)
async def test_rest_refuses_in_the_same_words(stack: Stack, path: str) -> None:
    headers = {"x-api-key": USER, "x-gateway-principal": "ops"}
    url = f"http://{stack.url}{path}"
    async with aiohttp.ClientSession() as session, session.post(url, data=b"{not json", headers=headers) as response:
        assert response.status == 501
        assert await response.json(content_type=None) == {"error": PER_SERVER}


async def test_nothing_was_changed_by_those_who_may_not(stack: Stack) -> None:
    assert not [number for number in range(3) if await ready(stack, number)]
    assert all([await ready(stack, number, "identity") for number in range(3)])
    settings, _ = await call(stack, "LogSettings", service_pb2.LogSettingsRequest(), USER)
    assert settings.settings["log_info"].bool_param is True
    assert await stack.metric("balancer_fleet_changes_total", result="refused") >= len(CHANGES)


async def test_who_may_changes_all_and_that_is_shown(stack: Stack) -> None:
    await call(stack, *CHANGES[0])
    assert all([await ready(stack, number) for number in range(3)])
    (logged,) = [record for record in stack.log.so_far() if record.get("message") == "workers changed"]
    assert logged["principal"] == "ops"
    assert (logged["call"], logged["about"], logged["result"]) == ("RepositoryModelLoad", f"model {MODEL}", "done")
    assert logged["workers"] == ["worker-0", "worker-1", "worker-2"]
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        text = input_of(triton_grpc, "TEXT", np.array([["shout"]], np.object_))

        async def served() -> bool:
            try:
                result = await client.infer(MODEL, [text], headers={"x-api-key": USER}, client_timeout=PATIENCE_S)
            except triton_grpc.InferenceServerException:
                return False
            return result.get_response().model_name == MODEL

        await eventually(served, "the model is served once its workers have reported it")


async def test_a_worker_that_joins_gets_what_the_others_have(stack: Stack) -> None:
    """A new one, and one that lost its models by a restart."""
    await stack.tritons[2].kill()
    await stack.agents[2].stop()
    await stack.replace_worker(2, "worker-3")
    await eventually(lambda: ready(stack, 2), "the new worker has the model")
    await stack.tritons[1].kill()
    await stack.start_triton(1)
    await eventually(lambda: ready(stack, 1), "the restarted worker has the model")
    await stack.all_ready()
    await eventually(
        lambda: stack.metric("balancer_fleet_replays_total", result="done"),
        "both replays are counted",
        until=lambda value: value >= 2,
    )


async def counted(stack: Stack) -> tuple[int, str]:
    """Inferences of `identity` by the fleet's statistics, and who is missing in them."""
    request = service_pb2.ModelStatisticsRequest(name="identity")
    answer, trailers = await call(stack, "ModelStatistics", request, USER)
    return sum(each.inference_count for each in answer.model_stats), str(trailers.get(MISSING_HEADER, ""))


async def test_a_worker_that_dies_takes_nothing_from_the_sum_and_fails_a_change_by_name(stack: Stack) -> None:
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        value = input_of(triton_grpc, "INPUT", np.ones(1, np.float32))
        before, missing = await counted(stack)
        assert not missing
        for _ in range(12):
            await client.infer("identity", [value], headers={"x-api-key": USER})
        assert await counted(stack) == (before + 12, "")
        await stack.tritons[0].kill()
        assert await counted(stack) == (before + 12, "worker-0")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(stack, *CHANGES[0])
        assert failed.value.details().startswith("RepositoryModelLoad failed on 1 of 3 workers: worker-0: ")
        server, _ = await call(stack, "ServerReady", service_pb2.ServerReadyRequest(), USER)
        assert server.ready
        await stack.start_triton(0)
        await eventually(lambda: ready(stack, 0), "it has the model again")
        await stack.all_ready()


async def test_without_a_balancer_a_worker_answers_and_nobody_changes_anything(stack: Stack) -> None:
    await stack.balancer.kill()

    async def a_workers() -> bool:
        try:
            answer, _ = await call(stack, "ServerMetadata", service_pb2.ServerMetadataRequest(), USER)
        except grpc.aio.AioRpcError:
            return False
        return str(answer.name).startswith("worker-")

    await eventually(a_workers, "a worker answers")
    for method, request in CHANGES:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(stack, method, request)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    async def a_workers_by_rest() -> bool:
        headers = {"x-api-key": USER}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"http://{stack.url}/v2") as response:
            return response.status == 200 and (await response.json())["name"].startswith("worker-")

    await eventually(a_workers_by_rest, "a worker answers by REST, too")
    await stack.start_balancer()
    await stack.all_ready()

    async def the_fleets() -> bool:
        answer, _ = await call(stack, "ServerMetadata", service_pb2.ServerMetadataRequest(), USER)
        return str(answer.name) == "triton"

    await eventually(the_fleets, "the balancer answers again")


async def test_what_was_changed_outlives_the_balancer(stack: Stack) -> None:
    kept = json.loads((stack.directory / "changes.json").read_text())
    assert [each["method"] for each in kept] == ["RepositoryModelLoad"]
    await stack.tritons[1].kill()
    await stack.start_triton(1)
    await eventually(lambda: ready(stack, 1), "the restarted worker has the model")
