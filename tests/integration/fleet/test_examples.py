"""What the examples of Triton's client library do, through the listener as against one Triton: each kind once.

Those of `tests/integration/stack/test_clients.py` are not repeated: infer, tensors as JSON, streams of a decoupled
model, sequences by unary calls.
"""

import asyncio
import json
import queue
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from support import fronts
from support.fleet_stack import fleet_stack
from support.inputs import input_of
from support.stack import Stack
from support.waiting import PATIENCE_S
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
MODELS = ("decoupled_count", "identity", "sequence_sum", "several_outputs", "string_upper")
VALUES = (11, 7, 5, 3, 2, 0, 1)
"""Of the sequences."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("proxy", "pick", "native"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("examples")
    restricted = ("--grpc-restricted-protocol=trace:own-key=secret", "--http-restricted-api=trace:own-key=secret")
    async with fleet_stack(directory, request.param, loaded=MODELS, arguments=restricted) as stack:
        yield stack


def numbers(of: Any, name: str, values: list[int], kind: str = "INT32") -> Any:
    array = np.array(values, np.int32 if kind == "INT32" else np.int64)
    return input_of(of, name, array.reshape(1, -1))


async def test_contents_stand_in_the_message_by_type(stack: Stack) -> None:
    """Explicit contents: no raw bytes, but numbers and strings as fields."""
    request = service_pb2.ModelInferRequest(model_name="several_outputs")
    for name in ("A", "B"):
        tensor = request.inputs.add(name=name, datatype="INT32", shape=[1, 4])
        tensor.contents.int_contents.extend([4, 3, 2, 1])
    texts = service_pb2.ModelInferRequest(model_name="string_upper", id="mine")
    texts.inputs.add(name="TEXT", datatype="BYTES", shape=[2, 1]).contents.bytes_contents.extend([b"one", b"two"])
    async with grpc.aio.insecure_channel(stack.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = await stub.ModelInfer(request, timeout=PATIENCE_S)
        sums = dict(zip([output.name for output in answer.outputs], answer.raw_output_contents, strict=True))
        assert np.frombuffer(sums["SUM"], np.int32).tolist() == [8, 6, 4, 2]
        answer = await stub.ModelInfer(texts, timeout=PATIENCE_S)
        assert answer.id == "mine"
        assert answer.raw_output_contents[0] == b"\3\0\0\0ONE\3\0\0\0TWO"


async def test_sequences_by_a_stream(stack: Stack) -> None:
    """Two of them, interleaved on one stream."""

    def both() -> dict[str, list[int]]:
        answers: queue.Queue[Any] = queue.Queue()
        with triton_grpc.InferenceServerClient(stack.url) as client:
            client.start_stream(lambda result, error: answers.put(error or result))
            for place, number in enumerate(VALUES):
                for sequence_id, sign in ((2001, 1), (2002, -1)):
                    client.async_stream_infer(
                        "sequence_sum",
                        [numbers(triton_grpc, "VALUE", [sign * number], "INT64")],
                        request_id=str(sequence_id),
                        sequence_id=sequence_id,
                        sequence_start=place == 0,
                        sequence_end=place == len(VALUES) - 1,
                    )
            found: dict[str, list[int]] = {}
            for _ in range(2 * len(VALUES)):
                result = answers.get(timeout=PATIENCE_S)
                found.setdefault(result.get_response().id, []).append(int(result.as_numpy("SUM").ravel()[0]))
            client.stop_stream()
        return found

    sums = np.cumsum(VALUES)
    assert await asyncio.to_thread(both) == {"2001": sums.tolist(), "2002": (-sums).tolist()}


@pytest.mark.parametrize("of", [triton_grpc, triton_http], ids=["grpc", "http"])
async def test_shared_memory_on_one_machine_is_every_workers(stack: Stack, of: Any) -> None:
    """Registered once, used by requests that any worker serves, and let go."""

    def several() -> tuple[set[bytes], list[str]]:
        values = np.arange(16, dtype=np.float32)
        given = shm.create_shared_memory_region("given", "/balancer-test-given", values.nbytes)
        taken = shm.create_shared_memory_region("taken", "/balancer-test-taken", values.nbytes)
        served = set()
        try:
            shm.set_shared_memory_region(given, [values])
            with of.InferenceServerClient(stack.url) as client:
                for name in ("given", "taken"):
                    client.register_system_shared_memory(name, f"/balancer-test-{name}", values.nbytes)
                listed = client.get_system_shared_memory_status(**({"as_json": True} if of is triton_grpc else {}))
                names = listed["regions"] if of is triton_grpc else [region["name"] for region in listed]
                tensor = of.InferInput("INPUT", [16], "FP32")
                tensor.set_shared_memory("given", values.nbytes)
                output = of.InferRequestedOutput("OUTPUT")
                output.set_shared_memory("taken", values.nbytes)
                worker = of.InferRequestedOutput("WORKER")
                for _ in range(9):
                    shm.set_shared_memory_region(taken, [np.zeros_like(values)])
                    result = client.infer("identity", [tensor], outputs=[output, worker])
                    served.add(bytes(result.as_numpy("WORKER").ravel()[0]))
                    assert shm.get_contents_as_numpy(taken, np.float32, [16]).tolist() == values.tolist()
                client.unregister_system_shared_memory()
                after = client.get_system_shared_memory_status(**({"as_json": True} if of is triton_grpc else {}))
                assert not (after.get("regions") if of is triton_grpc else after)
            return served, sorted(names)
        finally:
            shm.destroy_shared_memory_region(given)
            shm.destroy_shared_memory_region(taken)

    served, names = await asyncio.to_thread(several)
    assert len(served) == 3
    assert names == ["given", "taken"]


async def test_generate_and_its_stream(stack: Stack) -> None:
    """The generate extension: plain JSON, and server-sent events of a decoupled model."""
    async with aiohttp.ClientSession() as session:
        url = f"http://{stack.url}/v2/models"
        async with session.post(f"{url}/string_upper/generate", json={"TEXT": "quiet"}) as response:
            assert response.status == 200, await response.text()
            assert (await response.json(content_type=None))["UPPER"] == "QUIET"
        async with session.post(f"{url}/decoupled_count/generate_stream", json={"COUNT": 3}) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            events = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: ")]
        assert [event["INDEX"] for event in events] == [0, 1, 2]
        # Of several responses, or none: whatever one Triton answers.
        for count in (3, 0):
            answers = []
            for address in (stack.url, f"127.0.0.1:{stack.specs[0].http_port}"):
                path = f"http://{address}/v2/models/decoupled_count/generate"
                async with session.post(path, json={"COUNT": count}) as response:
                    text = (await response.text()).replace("worker-1", "worker-0").replace("worker-2", "worker-0")
                    answers.append((response.status, text))
            assert answers[0] == answers[1]


async def test_a_call_that_tritons_restrict_stays_restricted(stack: Stack) -> None:
    """By either protocol, read and changed; who has the key is served, and nobody else with him."""

    async def by_grpc(url: str, key: str, change: bool) -> str:
        settings = {"trace_rate": "5"} if change else {}
        async with grpc_aio.InferenceServerClient(url) as client:
            headers = {"triton-grpc-protocol-own-key": key} if key else {}
            try:
                answer = await client.update_trace_settings(settings=settings, headers=headers, as_json=True)
            except InferenceServerException as error:
                return str(error)
            return str(answer["settings"]["trace_rate"]["value"][0])

    async def by_rest(url: str, key: str, change: bool) -> tuple[int, str]:
        async with aiohttp.ClientSession(headers={"own-key": key} if key else {}) as session:
            path = f"http://{url}/v2/trace/setting"
            call = session.post(path, data=b'{"trace_rate":"7"}') if change else session.get(path)
            async with call as response:
                return response.status, str((await response.json(content_type=None)).get("error", ""))

    first = stack.specs[0]
    for change in (False, True):
        for key in ("", "wrong"):
            refused = await by_grpc(stack.url, key, change)
            assert refused == await by_grpc(f"127.0.0.1:{first.grpc_port}", key, change)
            assert "secret" not in refused
            answers = [await by_rest(url, key, change) for url in (stack.url, f"127.0.0.1:{first.http_port}")]
            assert answers[0][0] in (403, answers[1][0])
            assert answers[0][1]
    together = await asyncio.gather(*(by_grpc(stack.url, key, False) for key in ("secret", "", "secret", "wrong")))
    assert [answer.isdigit() for answer in together] == [True, False, True, False]
    assert await by_grpc(stack.url, "secret", True) == "5"
    assert await by_rest(stack.url, "secret", True) == (200, "")
    assert await by_grpc(stack.url, "secret", False) == "7"
