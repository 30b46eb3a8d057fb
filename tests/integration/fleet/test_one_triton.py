"""Each call about the fleet, through the listener and at one Triton itself: the same answers, in the same words."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.inputs import input_of
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2, service_pb2_grpc

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MODEL = "identity"
GRPC_CALLS: dict[str, Any] = {
    "ServerLive": service_pb2.ServerLiveRequest(),
    "ServerReady": service_pb2.ServerReadyRequest(),
    "ModelReady": service_pb2.ModelReadyRequest(name=MODEL),
    "ModelReady of a version": service_pb2.ModelReadyRequest(name=MODEL, version="1"),
    "ModelReady of no such version": service_pb2.ModelReadyRequest(name=MODEL, version="7"),
    "ModelReady of a version that is none": service_pb2.ModelReadyRequest(name=MODEL, version="x"),
    "ModelReady of nothing": service_pb2.ModelReadyRequest(name="nothing"),
    "ModelMetadata": service_pb2.ModelMetadataRequest(name=MODEL),
    "ModelMetadata of nothing": service_pb2.ModelMetadataRequest(name="nothing"),
    "ModelConfig": service_pb2.ModelConfigRequest(name="sequence_sum"),
    "ModelConfig of nothing": service_pb2.ModelConfigRequest(name="nothing"),
    "ModelConfig without a name": service_pb2.ModelConfigRequest(),
    "ModelStatistics of nothing": service_pb2.ModelStatisticsRequest(name="nothing"),
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "RepositoryIndex of what is ready": service_pb2.RepositoryIndexRequest(ready=True),
    "RepositoryIndex of a repository": service_pb2.RepositoryIndexRequest(repository_name="other"),
    "TraceSetting": service_pb2.TraceSettingRequest(),
    "TraceSetting of a model": service_pb2.TraceSettingRequest(model_name=MODEL),
    "TraceSetting of nothing": service_pb2.TraceSettingRequest(model_name="nothing"),
    "LogSettings": service_pb2.LogSettingsRequest(),
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
    "SystemSharedMemoryStatus of nothing": service_pb2.SystemSharedMemoryStatusRequest(name="nothing"),
    "CudaSharedMemoryStatus": service_pb2.CudaSharedMemoryStatusRequest(),
    "RepositoryModelLoad of nothing": service_pb2.RepositoryModelLoadRequest(model_name="nothing"),
    "RepositoryModelUnload of nothing": service_pb2.RepositoryModelUnloadRequest(model_name="nothing"),
    "SystemSharedMemoryRegister of nothing": service_pb2.SystemSharedMemoryRegisterRequest(
        name="r", key="/nothing-there", byte_size=4
    ),
    "SystemSharedMemoryUnregister of nothing": service_pb2.SystemSharedMemoryUnregisterRequest(name="r"),
}
REST_CALLS = (
    ("GET", "/v2/health/live", ""),
    ("GET", "/v2/health/ready", ""),
    ("POST", "/v2/health/live", ""),
    *(
        ("GET", f"/v2/models/{MODEL}{verb}", "")
        for verb in ("", "/ready", "/config", "/versions/1", "/versions/1/ready")
    ),
    *(("GET", f"/v2/models/nothing{verb}", "") for verb in ("", "/ready", "/config", "/stats")),
    ("GET", f"/v2/models/{MODEL}/versions/7/ready", ""),
    ("POST", f"/v2/models/{MODEL}/stats", ""),
    ("POST", "/v2/repository/index", ""),
    ("POST", "/v2/repository/index", '{"ready":true}'),
    ("GET", "/v2/repository/index", ""),
    ("GET", "/v2/trace/setting", ""),
    ("GET", f"/v2/models/{MODEL}/trace/setting", ""),
    ("GET", "/v2/logging", ""),
    ("POST", "/v2/logging", '{"log_verbose_level":0}'),
    ("GET", "/v2/systemsharedmemory/status", ""),
    ("GET", "/v2/cudasharedmemory/status", ""),
    ("GET", "/v2/systemsharedmemory/region/nothing/status", ""),
    ("POST", "/v2/repository/models/nothing/load", ""),
    ("POST", "/v2/repository/models/nothing/unload", ""),
    ("POST", "/v2/systemsharedmemory/region/r/register", '{"key":"/nothing-there","byte_size":4}'),
    ("POST", "/v2/systemsharedmemory/unregister", ""),
)


async def by_grpc(address: str, call: str, request: Any) -> tuple[str, Any]:
    """Status, and the answer or its words."""
    async with grpc.aio.insecure_channel(address) as channel:
        method = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call.partition(" ")[0])
        try:
            return "OK", MessageToDict(await method(request, timeout=PATIENCE_S))
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details()


async def by_rest(address: str, method: str, path: str, body: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{address}{path}", data=body) as response,
    ):
        text = await response.text()
    return response.status, json.loads(text) if text else ""


def grpc_of(stack: Stack) -> str:
    return f"127.0.0.1:{stack.specs[0].grpc_port}"


def http_of(stack: Stack) -> str:
    return f"127.0.0.1:{stack.specs[0].http_port}"


@pytest.mark.parametrize("call", GRPC_CALLS)
async def test_grpc_says_what_one_triton_says(stack: Stack, call: str) -> None:
    through = await by_grpc(stack.url, call, GRPC_CALLS[call])
    assert through == await by_grpc(grpc_of(stack), call, GRPC_CALLS[call])


@pytest.mark.parametrize(("method", "path", "body"), REST_CALLS)
async def test_rest_says_what_one_triton_says(stack: Stack, method: str, path: str, body: str) -> None:
    through = await by_rest(stack.url, method, path, body)
    assert through == await by_rest(http_of(stack), method, path, body)


async def test_the_server_has_one_name_and_health(stack: Stack) -> None:
    _, alone = await by_grpc(grpc_of(stack), "ServerMetadata", service_pb2.ServerMetadataRequest())
    assert alone["name"] == "worker-0"
    _, fleet = await by_grpc(stack.url, "ServerMetadata", service_pb2.ServerMetadataRequest())
    assert fleet == alone | {"name": "triton"}
    assert await by_rest(stack.url, "GET", "/v2", "") == (200, {**fleet, "name": "triton"})


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", MODEL, "anything"])
async def test_health_says_what_one_triton_says(stack: Stack, service: str) -> None:
    through = await health(stack.url, service)
    assert through == await health(grpc_of(stack), service)


async def health(address: str, service: str) -> list[str]:
    """What it says to Check and to Watch, first."""
    statuses, request = [], health_pb2.HealthCheckRequest(service=service)
    async with grpc.aio.insecure_channel(address) as channel:
        health_of = health_pb2_grpc.HealthStub(channel)
        for call in (health_of.Check(request, timeout=PATIENCE_S), aiter(health_of.Watch(request, timeout=PATIENCE_S))):
            try:
                answer = await (anext(call) if isinstance(call, AsyncIterator) else call)
                statuses.append(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
            except grpc.aio.AioRpcError as error:
                statuses.append(error.code().name)
    return statuses


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_is_not_there_as_at_one_triton(stack: Stack, version: str) -> None:
    """grpcurl and its like need the definitions in files at either."""

    async def status(address: str) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(address) as channel:
            ask = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
            # Without a message: an answer that comes before it is written makes grpc.aio report INTERNAL by itself.
            return await ask(timeout=PATIENCE_S).code()

    assert await status(stack.url) == await status(grpc_of(stack)) == grpc.StatusCode.UNIMPLEMENTED


async def statistics(client: triton_grpc.InferenceServerClient) -> dict[str, Any]:
    found = await client.get_inference_statistics(MODEL, as_json=True)
    (model,) = found["model_stats"]
    return dict(model)


async def infer(client: triton_grpc.InferenceServerClient) -> str:
    value = input_of(triton_grpc, "INPUT", np.ones(4, np.float32))
    result = await client.infer(MODEL, [value], client_timeout=PATIENCE_S)
    return str(result.as_numpy("WORKER").ravel()[0].decode())


async def test_statistics_are_one_sum_to_the_request(stack: Stack) -> None:
    """As perf_analyzer reads them: before and after what it sends, and nothing settles in between."""
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        before = await statistics(client)
        workers = await asyncio.gather(*(infer(client) for _ in range(60)))
        after = await statistics(client)
    assert set(workers) == {"worker-0", "worker-1", "worker-2"}
    assert int(after["inference_count"]) - int(before.get("inference_count", 0)) == 60
    successes = [int(each["inference_stats"]["success"].get("count", 0)) for each in (before, after)]
    assert successes[1] - successes[0] == 60
    status, rest = await by_rest(stack.url, "GET", f"/v2/models/{MODEL}/stats", "")
    assert status == 200
    assert rest["model_stats"][0]["inference_count"] == int(after["inference_count"])
    alone = [
        (await by_rest(f"127.0.0.1:{spec.http_port}", "GET", f"/v2/models/{MODEL}/stats", ""))[1]["model_stats"][0]
        for spec in stack.specs
    ]
    assert sum(each["inference_count"] for each in alone) == rest["model_stats"][0]["inference_count"]
    assert max(each["last_inference"] for each in alone) == rest["model_stats"][0]["last_inference"]


async def on_all(stack: Stack, holds: Callable[[Any], bool]) -> bool:
    """Whether it holds of the index of every worker."""
    answers = [await by_rest(f"127.0.0.1:{spec.http_port}", "POST", "/v2/repository/index", "") for spec in stack.specs]
    return all(holds({each["name"]: each.get("state", "") for each in answer}) for _, answer in answers)


async def test_models_are_loaded_and_unloaded_everywhere_by_tritons_own_clients(stack: Stack) -> None:
    """gRPC and HTTP, with a configuration over that of the repository."""
    config = json.dumps({"backend": "python", "max_batch_size": 0, "parameters": {"own": {"string_value": "so"}}})
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        await client.load_model("string_upper")
        assert await on_all(stack, lambda index: index["string_upper"] == "READY")
        assert await client.is_model_ready("string_upper")
        await client.unload_model("string_upper")
        await eventually(
            lambda: on_all(stack, lambda index: index["string_upper"] == "UNAVAILABLE"), "string_upper is unloaded"
        )
        assert not await client.is_model_ready("string_upper")
    async with triton_http.InferenceServerClient(stack.url) as rest:
        own = json.loads((await rest.get_model_config(MODEL)) and config)
        whole = {**await rest.get_model_config(MODEL), "parameters": own["parameters"]}
        await rest.load_model(MODEL, config=json.dumps(whole))
        for spec in stack.specs:
            _, loaded = await by_rest(f"127.0.0.1:{spec.http_port}", "GET", f"/v2/models/{MODEL}/config", "")
            assert loaded["parameters"]["own"] == {"string_value": "so"}
        await rest.load_model(MODEL)


async def test_settings_go_to_all(stack: Stack) -> None:
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        settings = await client.update_log_settings({"log_verbose_level": 1}, as_json=True)
        assert settings["settings"]["log_verbose_level"] == {"uint32_param": 1}
        await client.update_trace_settings(settings={"trace_rate": "77"})
    for spec in stack.specs:
        async with triton_grpc.InferenceServerClient(f"127.0.0.1:{spec.grpc_port}") as alone:
            settings = await alone.get_log_settings(as_json=True)
            assert settings["settings"]["log_verbose_level"] == {"uint32_param": 1}
            traces = await alone.get_trace_settings(as_json=True)
            assert traces["settings"]["trace_rate"] == {"value": ["77"]}
    async with triton_http.InferenceServerClient(stack.url) as rest:
        assert (await rest.update_log_settings({"log_verbose_level": 0}))["log_verbose_level"] == 0
        assert (await rest.update_trace_settings(settings={"trace_rate": "1000"}))["trace_rate"] == "1000"
        assert (await rest.get_trace_settings())["trace_level"] == ["OFF"]


async def test_no_call_about_the_fleet_counts_as_a_request_to_a_worker(stack: Stack) -> None:
    """Neither as one without a pick, nor as an internal error."""
    assert await stack.metric("balancer_handler_errors_total") == 0
    before = await stack.metric("balancer_fallbacks_total")
    calls = await stack.metric("balancer_fleet_calls_total", call="ModelConfig", result="answered")
    requests = await stack.metric("balancer_requests_total")
    for _ in range(5):
        await by_grpc(stack.url, "ModelConfig", GRPC_CALLS["ModelConfig"])
    assert await stack.metric("balancer_fleet_calls_total", call="ModelConfig", result="answered") == calls + 5
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        await infer(client)
    await eventually(
        lambda: stack.metric("balancer_requests_total"),
        "the inference alone is counted",
        until=lambda value: value == requests + 1,
    )
    assert await stack.metric("balancer_fallbacks_total") == before
