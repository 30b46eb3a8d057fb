"""Some models forwarded by the balancer, and all others picked for, through a real Envoy to real Tritons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from support.stack import Stack
from support.waiting import eventually

from tools.stack.ports import free_port_range

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

KEPT = {"proxy": {"cache_ttl_s": 60}}
FORWARDED = "string_upper"
ODD = '"] = 1, ["x\n\\ --(.*) %s'
"""A name that would break what it is written into, were it written as it is."""
MODELS = (FORWARDED, "several_outputs", "decoupled_count")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("some")
    settings = {
        "models": dict.fromkeys(MODELS, KEPT),
        "envoy": {"frontend": "pick", "forwarded": [FORWARDED, "decoupled_count", "any", ODD]},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
        "proxy": {"cascades": {"any": [FORWARDED]}},
    }
    stack = Stack(directory, workers=2, settings=settings, models=MODELS)
    try:
        await stack.start()
        await stack.count_unpicked()
        yield stack
    finally:
        await stack.stop()


async def kept(stack: Stack) -> float:
    """Requests that came to where answers are kept."""
    return await stack.metric("balancer_proxy_cache_total")


def text(of: Any, value: str) -> list[Any]:
    tensor = of.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[value]], np.object_))
    return [tensor]


def addends(of: Any) -> list[Any]:
    tensors = [of.InferInput(name, [1, 4], "INT32") for name in ("A", "B")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.arange(4, dtype=np.int32)[None])
    return tensors


@pytest.mark.parametrize("of", [triton_grpc, triton_http], ids=["grpc", "rest"])
async def test_a_model_that_is_named_is_forwarded_and_another_is_picked_for(stack: Stack, of: Any) -> None:
    async with of.InferenceServerClient(stack.url) as client:
        for name in (FORWARDED, "any"):
            before = await kept(stack)
            for _ in range(2):
                result = await client.infer(name, text(of, f"{name} {of.__name__}"))
                assert result.as_numpy("UPPER")[0, 0] == f"{name} {of.__name__}".upper().encode()
            assert await kept(stack) == before + 2
        before, requests = await kept(stack), await stack.metric("balancer_requests_total")
        for headers in ({}, {"x-gateway-destination-endpoint-forwarded": "true"}):
            result = await client.infer("several_outputs", addends(of), headers=headers)
            assert result.as_numpy("SUM").tolist() == [[0, 2, 4, 6]]
        assert await kept(stack) == before

    async def told() -> bool:
        return await stack.metric("balancer_requests_total") == requests + 2

    await eventually(told, "Envoy has told of the two")
    assert await stack.metric("balancer_fallbacks_total", cause="no_pick") == stack.unpicked


async def test_a_stream_is_forwarded_too(stack: Stack) -> None:
    async def one() -> AsyncIterator[dict[str, Any]]:
        count = triton_grpc.InferInput("COUNT", [1], "INT32")
        count.set_data_from_numpy(np.array([3], np.int32))
        yield {"model_name": "decoupled_count", "inputs": [count]}

    before = await stack.metric("balancer_decisions_total")
    found = []
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        async for result, error in client.stream_infer(one(), stream_timeout=30):
            assert error is None
            found.append(int(result.as_numpy("INDEX")[0]))
            if len(found) == 3:
                break
    assert found == [0, 1, 2]
    assert await stack.metric("balancer_decisions_total") == before + 1
    assert await stack.metric("balancer_handler_errors_total") == 0
