"""Attacks on a real Triton through a real Envoy: what changes one server never gets there, whoever fails."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.bootstrap import changed
from support.envoy_fakes import Rig, go_on
from support.raw_http2 import Upload
from support.real_triton import running
from tritonclient.grpc import service_pb2

from balancer.extproc import picker
from balancer.extproc.endpoints import Endpoint
from balancer.stack.process import free_ports
from balancer.stack.tritonserver import TritonServer

pytestmark = pytest.mark.integration
MODEL = Path(__file__).parents[2] / "triton" / "feature_models" / "identity"
TEXT = picker.PER_SERVER  # one text for all ways to be refused


@dataclasses.dataclass
class TritonAsWorker:
    """A Triton that runs already, in the place of one of the rig's workers."""

    triton: TritonServer
    name: str = "triton"

    async def start(self) -> None:
        """Done by the fixture."""

    async def stop(self) -> None:
        """Done by the fixture."""

    def as_endpoint(self, state: Any = "healthy") -> Endpoint:
        return Endpoint(self.name, self.triton.address, self.triton.grpc_port, self.triton.http_port, state)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def triton(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TritonServer]:
    directory = tmp_path_factory.mktemp("triton")
    (directory / "models").mkdir()
    (directory / "models" / "identity").symlink_to(MODEL)
    grpc_port, http_port, metrics_port = free_ports(3)
    server = TritonServer(
        name="triton",
        model_repository=directory / "models",
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        log_path=directory / "triton.log",
        extra_args=("--model-control-mode=explicit", "--load-model=identity"),
    )
    async with running(server):
        yield server


@pytest.fixture(params=["picks", "fails", "is gone"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path, triton: TritonServer) -> AsyncIterator[Rig]:
    """Envoy before the Triton, with a balancer that says yes to everything, one that fails, and with none."""
    worker: Any = TritonAsWorker(triton)
    rig = Rig(tmp_path, workers=[worker])
    rig.options = changed(rig.options, access_log=str(tmp_path / "access.log"))

    def fail(_: ext_proc.ProcessingRequest) -> ext_proc.ProcessingResponse:
        raise RuntimeError("fake failure of the balancer")

    def pick(request: ext_proc.ProcessingRequest) -> ext_proc.ProcessingResponse:
        headers = {header.key: header.raw_value for header in request.request_headers.headers.headers}
        grpc_call = headers.get("content-type", b"").startswith(b"application/grpc")
        # In metadata only, as the balancer answers this gateway: headers that it added would count as the client's.
        return go_on(triton.grpc_endpoint if grpc_call else triton.http_endpoint)

    async with rig.running():
        rig.balancers[0].respond = pick if request.param == "picks" else fail
        if request.param == "is gone":
            await rig.balancers[0].stop()
        yield rig


async def state(triton: TritonServer) -> dict[str, str]:
    """What a stranger would change, from Triton itself."""
    pages = ("logging", "trace/setting", "systemsharedmemory/status", "models/identity/ready")
    found = {}
    async with aiohttp.ClientSession() as session:
        for page in pages:
            async with session.get(f"http://{triton.http_endpoint}/v2/{page}") as response:
                found[page] = f"{response.status} {await response.text()}"
    return found


async def raw(rig: Rig, start: str, *headers: bytes, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of a request that no client library would send."""
    host, port = rig.envoy.endpoint.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [start.encode(), b"Host: gateway", b"Connection: close", b"Content-Length: %d" % len(body), *headers]
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1]), answer.partition(b"\r\n\r\n")[2]


async def calls(rig: Rig) -> int:
    """How many requests Envoy has sent to workers."""
    return sum([await rig.statistic(rf"cluster\.triton_{name}\.upstream_rq_total") for name in ("grpc", "http")])


LOGGING = json.dumps({"log_verbose_level": 1}).encode()
REGION = json.dumps({"key": "/stolen", "offset": 0, "byte_size": 64}).encode()
TRACE = json.dumps({"trace_level": ["TIMESTAMPS"]}).encode()
SPELLINGS = [
    ("/v2/logging", LOGGING),
    ("/v2/logging?x=/v2/health/ready", LOGGING),
    ("/v2/logging/", LOGGING),
    ("//v2///logging", LOGGING),
    ("/v2/%6cogging", LOGGING),
    ("/v2%2flogging", LOGGING),
    ("/v2/models/x%2f..%2f..%2flogging", LOGGING),
    ("/v2/%6C%6f%67ging", LOGGING),
    ("/v2/health/../logging", LOGGING),
    ("/v2/health/%2e%2e/logging", LOGGING),
    ("/v2/models/m/infer;x/../../../logging", LOGGING),
    ("/v2\\logging", LOGGING),
    ("/v2/models/x%5c..%5c..%5clogging", LOGGING),
    ("/V2/LOGGING", LOGGING),
    ("http://elsewhere/v2/logging", LOGGING),
    ("/v2/trace/setting", TRACE),
    ("/v2/models/identity/trace/setting", TRACE),
    ("/v2/models/identity/versions/1/trace/setting", TRACE),
    ("/v2/repository/models/identity/unload", b"{}"),
    ("/v2/repository/%6dodels/identity/unload", b"{}"),
    ("/v2/repository/index/../models/identity/unload", b"{}"),
    ("/v2/systemsharedmemory/region/mine/register", REGION),
    ("/v2/systemsharedmemory/unregister", b""),
    ("/v2/cudasharedmemory/unregister", b""),
    ("/v2/systemsharedmemory/status", b""),
]
GRPC = b"content-type: application/grpc"
POISON: list[tuple[bytes, ...]] = [
    (),
    # A client's header that made the balancer fail, so that the gateway went on without it.
    (b"grpc-timeout: " + b"9" * 5000,),
    (b"grpc-timeout: 1\xb2S",),
    (GRPC,),
    (b"content-type: application/grpc-web",),
    (b"x-gateway-destination-endpoint: 127.0.0.1:1", b"x-envoy-original-path: /v2/health/ready"),
]


async def test_a_stranger_cannot_change_a_server_over_rest_in_any_spelling(rig: Rig, triton: TritonServer) -> None:
    before = await state(triton)

    async def attempt(method: str, path: str, body: bytes, headers: tuple[bytes, ...]) -> None:
        status, answer = await raw(rig, f"{method} {path} HTTP/1.1", *headers, body=body)
        # 200 is gRPC's way: its status is in a header.
        allowed = {400, 404, 415, 431, 501} | ({200} if GRPC in headers else set())
        assert status in allowed, (method, path, headers, answer)

    # At once: Envoy leaves each a second to read its refusal.
    for headers in POISON:
        await asyncio.gather(
            *(attempt(method, path, body, headers) for path, body in SPELLINGS for method in ("POST", "GET"))
        )
    assert await calls(rig) == 0
    assert await state(triton) == before


async def test_a_stranger_cannot_change_a_server_over_grpc(rig: Rig, triton: TritonServer) -> None:
    before = await state(triton)
    log = service_pb2.LogSettingsRequest()
    log.settings["log_verbose_level"].uint32_param = 1
    trace = service_pb2.TraceSettingRequest(model_name="identity")
    trace.settings["trace_level"].value.append("TIMESTAMPS")
    requests = {
        "LogSettings": log,
        "TraceSetting": trace,
        "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="identity"),
        "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name="identity"),
        "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(name="mine", key="/stolen"),
        "SystemSharedMemoryUnregister": service_pb2.SystemSharedMemoryUnregisterRequest(),
        "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
        "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterRequest(name="mine"),
        "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterRequest(),
        "CudaSharedMemoryStatus": service_pb2.CudaSharedMemoryStatusRequest(),
    }
    for name, message in requests.items():
        for metadata in ([], [("x-gateway-destination-endpoint", triton.grpc_endpoint)]):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await getattr(rig.stub, name)(message, timeout=10, metadata=metadata)
            assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, TEXT), name
    assert await calls(rig) == 0
    assert await state(triton) == before


async def test_what_is_balanced_still_is(rig: Rig) -> None:
    """With a pick, and without one: the balancer's failure costs nothing that it would have allowed."""
    for path in (
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/identity"),
        *("/v2/models/identity/ready", "/v2/models/identity/config", "/v2/models/identity/stats"),
        *("/v2/models/identity/versions/1", "/v2/models/identity/versions/1/ready", "/v2/models/%69dentity/ready?x=1"),
    ):
        async with rig.http.get(f"http://{rig.envoy.endpoint}{path}") as response:
            assert response.status == 200, path
    async with rig.http.post(f"http://{rig.envoy.endpoint}/v2/repository/index", data=b"{}") as response:
        assert [model["name"] for model in await response.json()] == ["identity"]
    for call in ("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex"):
        await getattr(rig.stub, call)(getattr(service_pb2, f"{call}Request")(), timeout=10)
    for call in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
        await getattr(rig.stub, call)(getattr(service_pb2, f"{call}Request")(name="identity"), timeout=10)
    async with grpc.aio.insecure_channel(rig.envoy.endpoint) as channel:
        assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10) == b"\x08\x01"


LIMIT_BYTES = 5 * 1024
"""Of all headers together, names and values; `max_request_headers_kb` of the bootstrap."""
ALWAYS_TAKEN_BYTES = LIMIT_BYTES - 1280
"""Leaves room for what Envoy and the balancer add, with all fallbacks that there can be."""


async def outcome_of_headers(rig: Rig, count: int, total_bytes: int) -> tuple[str, int]:
    """The gRPC status and the HTTP status of a request with so many headers of so many bytes, gRPC's own included."""
    # What a client library sends of itself: at most 11 headers.
    own_bytes = 350
    names = [f"x-{number:02}" for number in range(count)]
    value = "a" * max((total_bytes - own_bytes) // count - 4, 1)
    try:
        metadata = [(name, value) for name in names]
        await rig.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=10, metadata=metadata)
        status = "OK"
    except grpc.aio.AioRpcError as error:
        status = error.code().name
    http_status, _ = await raw(rig, "GET /v2/health/ready HTTP/1.1", *(f"{name}: {value}".encode() for name in names))
    return status, http_status


async def access_log(rig: Rig, seen: int) -> list[dict[str, Any]]:
    """The entries after the first `seen`, once two more are there."""
    return (await rig.logged(Path(rig.options.envoy.access_log or ""), seen + 2))[seen:]


async def test_a_stranger_cannot_make_a_worker_look_guilty_with_headers(rig: Rig) -> None:
    seen = 0
    for count, total_bytes in ((1, ALWAYS_TAKEN_BYTES), (37, ALWAYS_TAKEN_BYTES)):
        for _ in range(10):
            # Triton refuses at random where it may refuse at all.
            assert await outcome_of_headers(rig, count, total_bytes) == ("OK", 200)
            assert {entry["status"] for entry in await access_log(rig, seen)} == {200}
            seen += 2
    # In between, what the balancer adds may be too much. That is Envoy's refusal as well, and no worker's.
    for _ in range(10):
        assert await outcome_of_headers(rig, 1, LIMIT_BYTES - 64) in {("OK", 200), ("UNKNOWN", 500)}
        for entry in await access_log(rig, seen):
            assert (entry["served"] is None) == (entry["status"] == 500 or entry["grpc_status"] == 2), entry
        seen += 2
    before = await calls(rig)
    for count, total_bytes in ((1, LIMIT_BYTES + 512), (1, 9000), (1, 50_000), (64, 1000)):
        assert await outcome_of_headers(rig, count, total_bytes) == ("INTERNAL", 431)
        for entry in await access_log(rig, seen):
            assert (entry["served"], entry["attempts"]) == (None, 0)
        seen += 2
    assert await calls(rig) == before


@pytest.mark.parametrize(
    "header",
    [("grpc-timeout", "0.5S"), ("grpc-timeout", "\u00b2S"), ("grpc-timeout", "9" * 9 + "S"), ("x-any", "\u00b2")],
)
async def test_a_stranger_cannot_break_the_requests_of_others(rig: Rig, header: tuple[str, str]) -> None:
    live = service_pb2.ServerLiveRequest()

    async def hostile() -> None:
        upload = Upload(rig.envoy.endpoint, "/inference.GRPCInferenceService/ServerLive", (header,))
        await upload.start()
        try:
            await upload.send(b"\0\0\0\0\0")
        finally:
            await upload.stop()

    for _ in range(10):
        # The hostile ones between the honest ones, on the same connections from Envoy to the worker.
        answers = await asyncio.gather(
            *(rig.stub.ServerLive(live, timeout=10) for _ in range(20)),
            *(hostile() for _ in range(4)),
            *(rig.stub.ServerLive(live, timeout=10) for _ in range(20)),
        )
        assert all(answer.live for answer in answers if answer is not None)
