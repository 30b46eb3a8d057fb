"""What the front end `proxy` adds, through a real Envoy to real Tritons, by Triton's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support.joined import assert_joined
from support.stack import Stack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.digits import held_out

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MODELS = {
    "digits": {"proxy": {"cache_ttl_s": 60}},
    "emulated_tft": {"proxy": {"repeatable": True, "batch": {"max_rows": 16, "wait_s": 0.004}}},
    "string_upper": {"proxy": {"repeatable": True, "batch": {"max_rows": 8, "wait_s": 0.004}}},
    "several_outputs": {"proxy": {"once_s": 60}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("proxy")
    settings = {"models": MODELS, "envoy": {"frontend": "proxy"}, "limits": {"max_pending_per_worker": 64}}
    stack = Stack(directory, workers=2, settings=settings, models=tuple(MODELS))
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()


def tensor(name: str, array: np.ndarray, kind: str) -> triton_grpc.InferInput:
    value = triton_grpc.InferInput(name, array.shape, kind)
    value.set_data_from_numpy(array)
    return value


async def test_requests_are_joined_and_each_gets_its_own_rows(stack: Stack) -> None:
    async with triton_grpc.InferenceServerClient(stack.url) as client:

        async def infer(rows: np.ndarray, name: str) -> tuple[str, np.ndarray]:
            result = await client.infer("emulated_tft", [tensor("INPUT", rows, "FP32")], request_id=name)
            return result.get_response().id, result.as_numpy("CHECKSUM")

        await assert_joined(stack, infer)
    assert await stack.metric("balancer_proxy_batches_total", result="apart") == 0
    assert await stack.metric("balancer_proxy_batches_total", result="not_split") == 0


async def test_texts_are_joined_too(stack: Stack) -> None:
    async with triton_grpc.InferenceServerClient(stack.url) as client:

        async def upper(text: str) -> str:
            value = tensor("TEXT", np.array([[text]], dtype=np.object_), "BYTES")
            answer = (await client.infer("string_upper", [value])).as_numpy("UPPER")[0, 0]
            return str(answer.decode())

        texts = [f"grüße {'x' * number}" for number in range(20)]
        assert await asyncio.gather(*(upper(text) for text in texts)) == [text.upper() for text in texts]


async def test_a_message_whose_bytes_do_not_fit_is_refused_in_tritons_words_and_fails_no_other(stack: Stack) -> None:
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        good, bad = (tensor("INPUT", np.ones((1, 4), np.float32), "FP32") for _ in range(2))
        bad._raw_content = b"\0" * 7
        results = await asyncio.gather(
            *(client.infer("emulated_tft", [each]) for each in (good, bad, good)), return_exceptions=True
        )
    assert isinstance(results[1], InferenceServerException)
    assert results[1].status() == "StatusCode.INVALID_ARGUMENT"
    assert "byte" in results[1].message()
    assert not any(isinstance(each, BaseException) for each in (results[0], results[2]))


async def test_an_answer_serves_equal_requests(stack: Stack) -> None:
    digits = held_out()
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        results = [
            await client.infer("digits", [tensor("IMAGE", digits.images[:1], "FP32")], request_id=name)
            for name in ("1", "2", "3")
        ]
    assert [each.get_response().id for each in results] == ["1", "2", "3"]
    assert len({int(each.as_numpy("LABEL")[0, 0]) for each in results}) == 1
    assert await stack.metric("balancer_proxy_cache_total", result="hit") == 2
    assert await stack.metric("balancer_decisions_total") > 0


async def test_an_id_is_executed_once(stack: Stack) -> None:
    a, b = np.arange(4, dtype=np.int32)[None], np.full((1, 4), 10, np.int32)
    inputs = [tensor("A", a, "INT32"), tensor("B", b, "INT32")]
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        results = await asyncio.gather(*(client.infer("several_outputs", inputs, request_id="mine") for _ in range(5)))
    assert all((each.as_numpy("SUM") == a + b).all() for each in results)

    async def executed() -> int:
        count = 0
        for spec in stack.specs:
            async with triton_grpc.InferenceServerClient(spec.grpc_endpoint) as worker:
                statistics = await worker.get_inference_statistics("several_outputs")
                count += statistics.model_stats[0].inference_count
        return count

    assert await eventually(executed, "a Triton has counted it, which may be after its answer") == 1
