"""What the front end `proxy` adds to gRPC and REST, through a real Envoy to real Tritons, by Triton's own client."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from support.inputs import input_of
from support.running import running
from support.stack import Stack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.process import free_port_range

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ONCE, COUNTED = "addition_once", "counted"
"""Copies for one test each, so that what others send counts nothing there."""
MODELS = {
    "digits": {},
    "emulated_tft": {"proxy": {"repeatable": True, "batch": {"max_rows": 16, "wait_s": 0.004}}},
    "several_outputs": {},
    ONCE: {"proxy": {"once_s": 600}},
    COUNTED: {},
    "string_upper": {},
    "identity": {},
    "sequence_sum": {},
    "decoupled_count": {},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("proxy_rest")
    settings = {
        "models": MODELS,
        "envoy": {"frontend": "proxy"},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
        "proxy": {"cascades": {"either": ["several_outputs", "string_upper"]}},
    }
    models = tuple(model for model in MODELS if model not in (ONCE, COUNTED))
    stack = Stack(
        directory,
        workers=2,
        settings=settings,
        models=models,
        copies={ONCE: "several_outputs", COUNTED: "string_upper"},
    )
    async with running(stack):
        yield stack


def addends(*, binary: bool = True, more: int = 0) -> list[triton_http.InferInput]:
    values = np.arange(4, dtype=np.int32)[None] + more
    return [input_of(triton_http, name, values, binary_data=binary) for name in ("A", "B")]


async def post(url: str, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON and headers of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{url}/v2/models/{path}", data=data, headers=headers) as response,
    ):
        return response.status, json.loads(await response.read()), {k.lower(): v for k, v in response.headers.items()}


def picked_at(stack: Stack, number: int) -> str:
    return f"127.0.0.1:{stack.specs[number].http_port}"


def given(name: str, datatype: str, shape: list[int], data: list[Any] | None) -> dict[str, Any]:
    """An input as JSON."""
    return {"name": name, "datatype": datatype, "shape": shape} | ({} if data is None else {"data": data})


def body(*inputs: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A request as JSON."""
    return {"inputs": list(inputs), **members}


def both(shape: list[int], data: list[Any], datatype: str = "INT32") -> list[dict[str, Any]]:
    """The two inputs of `several_outputs`."""
    return [given(name, datatype, shape, data) for name in ("A", "B")]


_TEXT = given("TEXT", "BYTES", [1, 1], ["ä"])
_ZEROS = given("IMAGE", "FP32", [1, 64], [0.0] * 64)
_CLASSES = [{"name": "PROBABILITIES", "parameters": {"classification": 2}}]
REQUESTS: dict[str, tuple[str, Any]] = {
    "JSON": ("identity", body(given("INPUT", "FP32", [3], [0.1, 1e-7, 2]))),
    "nested": ("several_outputs", body(*both([2, 4], [[1, 2, 3, 4], [5, 6, 7, 8]]))),
    "an id, parameters": ("string_upper", body(_TEXT, id="7", parameters={"mine": 3, "other": "x", "third": True})),
    "outputs": ("several_outputs", body(*both([1, 4], [1, 2, 3, 4]), outputs=[{"name": "SUM"}])),
    "classes": ("digits", body(_ZEROS, outputs=_CLASSES)),
    "another shape": ("several_outputs", body(*both([1, 3], [1, 2, 3]))),
    "another type": ("several_outputs", body(*both([1, 4], [1, 2, 3, 4], "INT64"))),
    "an unknown output": ("string_upper", body(_TEXT, outputs=[{"name": "NONE"}])),
    "too few inputs": ("several_outputs", body(*both([1, 4], [1, 2, 3, 4])[:1])),
    "no inputs": ("several_outputs", body()),
    "a version": ("string_upper/versions/1", body(_TEXT)),
    "no field": ("string_upper", body(given("TEXT", "BYTES", [1, 1], None))),
    "FP16": ("identity", body(given("INPUT", "FP16", [1], [1]))),
    "no type": ("identity", body(given("INPUT", "FP33", [1], [1]))),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_answer_says_what_a_triton_says(stack: Stack, name: str) -> None:
    """Status and JSON, but for the worker's own name."""
    model, body = REQUESTS[name]
    answers = []
    for url in (stack.url, picked_at(stack, 0), picked_at(stack, 1)):
        status, content, _ = await post(url, f"{model}/infer", body)
        for output in content.get("outputs", ()):
            if output["name"] == "WORKER":
                output["data"] = [""]
        answers.append((status, content))
    assert answers[0] in answers[1:], answers


async def test_what_cannot_be_read_is_refused_in_words(stack: Stack) -> None:
    status, content, _ = await post(stack.url, "string_upper/infer", b"{")
    assert status == 400
    assert "failed to parse the request JSON buffer" in content["error"]
    too_large = body(given("INPUT", "INT8", [1], [300]))
    status, content, _ = await post(stack.url, "identity/infer", too_large)
    assert status == 400
    assert "does not fit INT8" in content["error"]
    status, content, _ = await post(stack.url, "nothing/infer", REQUESTS["JSON"][1])
    assert status == 404
    assert content["error"] == "Request for unknown model: 'nothing' is not found"
    assert await stack.metric("balancer_refused_inputs_total", message="request", field="data") >= 1
    assert await stack.metric("balancer_handler_errors_total") == 0


@pytest.mark.parametrize("of", [triton_grpc, triton_http], ids=["grpc", "rest"])
async def test_requests_are_joined_and_each_gets_its_own_rows(stack: Stack, of: Any) -> None:
    """Of many at once, fewer are sent, and each has the answer that it has alone."""
    options = {"conn_limit": 32} if of is triton_http else {}
    async with of.InferenceServerClient(stack.url, **options) as client:

        async def checksum(number: int) -> float:
            given = input_of(of, "INPUT", np.full((1 + number % 2, 4), number, np.float32))
            result = await client.infer("emulated_tft", [given], request_id=str(number))
            response, found = result.get_response(), result.as_numpy("CHECKSUM")
            assert (response["id"] if of is triton_http else response.id) == str(number)
            assert found.shape == (1 + number % 2, 1)
            assert (found == found[0]).all()
            return float(found[0, 0])

        alone = [await checksum(number) for number in range(32)]

        async def some_are_joined() -> bool:
            before = await stack.metric("balancer_proxy_batches_total", result="sent")
            assert await asyncio.gather(*(checksum(number) for number in range(32))) == alone
            return await stack.metric("balancer_proxy_batches_total", result="sent") < before + 32

        # They are where they come within milliseconds.
        await eventually(some_are_joined)
    assert await stack.metric("balancer_proxy_batches_total", result="apart") == 0
    assert await stack.metric("balancer_proxy_batches_total", result="not_split") == 0


async def test_the_model_that_served_a_name_is_shown(stack: Stack) -> None:
    body = REQUESTS["outputs"][1]
    status, content, headers = await post(stack.url, "either/infer", body)
    assert (status, content["model_name"], headers["x-served-model"]) == (200, "several_outputs", "several_outputs")


async def test_a_decoupled_model_is_refused_as_by_a_triton(stack: Stack) -> None:
    status, content, _ = await post(stack.url, "decoupled_count/infer", body(given("COUNT", "INT32", [1], [1])))
    assert status in (400, 501)
    assert "decoupled" in content["error"]


async def test_a_sequence_stays_with_its_worker_without_a_header(stack: Stack) -> None:
    workers = set()
    async with triton_http.InferenceServerClient(stack.url) as client:
        for step in range(6):
            value = input_of(triton_http, "VALUE", np.array([[step]], np.int64))
            result = await client.infer(
                "sequence_sum", [value], sequence_id=77, sequence_start=step == 0, sequence_end=step == 5
            )
            workers.add(bytes(result.as_numpy("WORKER").ravel()[0]))
        assert result.as_numpy("SUM").ravel().tolist() == [15]
    assert len(workers) == 1


async def test_a_large_tensor_comes_back_as_bytes_and_as_json(stack: Stack) -> None:
    """Eight megabytes as bytes; as JSON, both directions are too large to convert, and go as picked."""
    values = np.arange(2_000_000, dtype=np.float32)
    async with triton_http.InferenceServerClient(stack.url) as client:
        for output in (None, [triton_http.InferRequestedOutput("OUTPUT", binary_data=False)]):
            result = await client.infer("identity", [input_of(triton_http, "INPUT", values)], outputs=output)
            assert (result.as_numpy("OUTPUT") == values).all()
        few = values[:200_000]
        result = await client.infer("identity", [input_of(triton_http, "INPUT", few, binary_data=False)])
        assert (result.as_numpy("OUTPUT") == few).all()


async def test_requests_count_once_and_none_goes_without_a_pick(stack: Stack) -> None:
    await stack.count_unpicked()
    async with triton_http.InferenceServerClient(stack.url) as client:
        for _ in range(5):
            await client.infer(COUNTED, [input_of(triton_http, "TEXT", np.array([["a"]], np.object_))])
    await eventually(
        lambda: stack.metric("balancer_requests_total", model=COUNTED),
        "each of them is counted once",
        until=lambda value: value == 5,
    )
    assert await stack.metric("balancer_fallbacks_total", cause="no_pick") == stack.unpicked


async def test_while_the_balancer_is_away_what_only_it_keeps_is_refused(stack: Stack) -> None:
    await stack.balancer.stop()
    try:
        async with triton_http.InferenceServerClient(stack.url) as client:
            with pytest.raises(InferenceServerException, match="cannot keep ids that are executed once; retry later"):
                await client.infer(ONCE, addends())
    finally:
        await stack.start_balancer()
        await stack.all_ready()
