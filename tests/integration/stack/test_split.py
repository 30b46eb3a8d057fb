"""Requests that name no version get one of a split or pinned model's, through each front end to real Tritons."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from support import fronts
from support.inputs import input_of
from support.running import running
from support.stack import Stack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.process import free_port_range

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
MODEL, PINNED = "string_upper", "pinned"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick", "proxy"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("split")
    settings = {
        # Version 2 is nowhere, so that nobody must be sent there.
        "models": {MODEL: {"split": {"old": 1, "new": 2, "share": 0}}, PINNED: {"versions": [1]}},
        "envoy": {"frontend": request.param, "shared_folder": str(directory / "shared")},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
    }
    copies = {PINNED: MODEL}
    stack = Stack(directory, workers=1, settings=settings, models=(MODEL,), copies=copies, versions=("1", "2"))
    async with running(stack):
        yield stack


@pytest.mark.parametrize("of", [triton_grpc, triton_http], ids=["grpc", "rest"])
async def test_triton_reads_the_version_that_was_given(stack: Stack, of: Any) -> None:
    before = await stack.metric("balancer_split_requests_total", model=MODEL, version="1")
    tensor = input_of(of, "TEXT", np.array([["a"]], np.object_))
    async with of.InferenceServerClient(stack.url) as client:
        for _ in range(10):
            result = await client.infer(MODEL, [tensor])
            assert result.as_numpy("UPPER")[0, 0] == b"A"
    await eventually(
        lambda: stack.metric("balancer_split_requests_total", model=MODEL, version="1"),
        "all ten count for version 1",
        until=lambda value: value == before + 10,
    )
    assert await stack.metric("balancer_split_errors_total") == 0
    assert await stack.metric("balancer_handler_errors_total") == 0


@pytest.mark.parametrize("of", [triton_grpc, triton_http], ids=["grpc", "rest"])
async def test_triton_is_asked_for_the_version_that_is_pinned(stack: Stack, of: Any) -> None:
    """Both are loaded, and Triton would choose the other one."""
    tensor = input_of(of, "TEXT", np.array([["a"]], np.object_))
    async with of.InferenceServerClient(stack.url) as client:
        for version in ("", "1"):
            result = await client.infer(PINNED, [tensor], model_version=version)
            answer = result.get_response()
            assert (answer["model_version"] if of is triton_http else answer.model_version) == "1"
        with pytest.raises(InferenceServerException, match="no worker may serve model 'pinned' now"):
            await client.infer(PINNED, [tensor], model_version="2")


async def test_the_balancer_says_which_version_is_pinned(stack: Stack) -> None:
    assert (await stack.get(f"/explain?model={PINNED}"))["version"] == "1"


async def test_the_balancer_says_what_a_key_gets_and_what_became_of_each_version(stack: Stack) -> None:
    explained = await stack.get(f"/explain?model={MODEL}&key=user-42")
    assert explained["split"] == {"old": "1", "new": "2", "share": 0.0, "returned": "", "gets": "1"}
    assert explained["version"] == "1"
    (counted,) = (await stack.get("/recent"))["splits"]
    assert [(each["version"], each["errors"]) for each in counted["versions"]] == [("1", 0), ("2", 0)]
