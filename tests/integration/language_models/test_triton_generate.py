"""Triton's own `generate` and `generate_stream`, at a real language model in real Tritons."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from support import fronts
from support.waiting import eventually
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from balancer.stack.llama import MODEL
from balancer.stack.stack import REPOSITORY, OwnStack, new_triton, read_samples

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
MODELS = REPOSITORY / "triton" / "language_models"
BACKGROUND = "You answer questions about the tides, briefly. " * 30
TOKENS = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick", "proxy"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[OwnStack]:
    directory = tmp_path_factory.mktemp("generate")
    envoy = fronts.envoy_section(request.param, directory)
    tritons = [new_triton(f"w{n}", MODELS, directory) for n in range(2)]
    async with OwnStack(directory, tritons=tritons, settings={"envoy": envoy}) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def http(stack: OwnStack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{stack.url}") as session:
        yield session


async def ask(http: aiohttp.ClientSession, text: str, how: str, tokens: int = TOKENS) -> list[str]:
    asked = {"text_input": text, "stream": how == "generate_stream", "max_tokens": tokens}
    async with http.post(f"/v2/models/{MODEL}/{how}", json=asked) as response:
        assert response.status == 200, await response.text()
        lines = (await response.text()).splitlines()
    return [json.loads(line.removeprefix("data:"))["text_output"] for line in lines if line]


async def written(stack: OwnStack) -> dict[str, float]:
    """Tokens of answers by worker."""
    found = await read_samples(stack.admin(0))
    of_tokens = [each for each in found if each.name == "balancer_tokens_total"]
    return {each.labels["worker"]: each.value for each in of_tokens if each.labels["kind"] == "output"}


async def counted(stack: OwnStack, before: dict[str, float]) -> dict[str, float]:
    """Tokens of five answers by worker, once all are counted."""

    async def more() -> dict[str, float]:
        return {worker: tokens - before.get(worker, 0.0) for worker, tokens in (await written(stack)).items()}

    found: dict[str, float] = await eventually(more, until=lambda by: sum(by.values()) >= 5 * TOKENS)
    return found


async def test_an_answer_is_the_same_whole_and_in_pieces(http: aiohttp.ClientSession, stack: OwnStack) -> None:
    (whole,) = await ask(http, "The tide is", "generate")
    pieces = await ask(http, "The tide is", "generate_stream")
    assert len(pieces) > 1
    assert "".join(pieces) == whole


async def test_the_next_question_goes_to_the_triton_that_has_what_both_begin_with(
    http: aiohttp.ClientSession, stack: OwnStack
) -> None:
    before = await written(stack)
    began = await stack.metric("gen_ai_server_time_to_first_token_seconds_count")
    for number in range(5):
        pieces = await ask(http, f"{BACKGROUND}{number}: when is it high?", "generate_stream", TOKENS)
        assert len(pieces) == TOKENS

    more = await counted(stack, before)
    # From the third on, when the balancer has seen how long a prompt takes that nobody knows.
    assert max(more.values()) >= 3 * TOKENS
    assert await stack.metric("gen_ai_server_time_to_first_token_seconds_count") == began + 5
    await eventually(lambda: idle(stack))


async def stream(client: InferenceServerClient, text: str) -> list[str]:
    """What a model says to one prompt, by gRPC."""
    prompt, streams = InferInput("text_input", [1], "BYTES"), InferInput("stream", [1], "BOOL")
    prompt.set_data_from_numpy(np.array([text.encode()], np.object_))
    streams.set_data_from_numpy(np.array([True]))

    async def one() -> AsyncIterator[dict[str, object]]:
        yield {"model_name": MODEL, "inputs": [prompt, streams], "parameters": {"max_tokens": TOKENS}}

    pieces = []
    async for result, error in client.stream_infer(one()):
        assert error is None, error
        pieces.append(result.as_numpy("text_output")[0].decode())
    return pieces


async def test_a_prompt_by_grpc_is_one_too(stack: OwnStack) -> None:
    """Read within Envoy, and by the proxy; with `pick`, Envoy hands over no tensors, and it is a stream as others."""
    before, began = await written(stack), await stack.metric("gen_ai_server_time_to_first_token_seconds_count")
    async with InferenceServerClient(stack.url) as client:
        for number in range(5):
            pieces = await stream(client, f"{BACKGROUND * 2}{number}: by gRPC, when is it high?")
            assert len(pieces) == TOKENS

    if stack.config.frontend == "pick":
        assert await stack.metric("gen_ai_server_time_to_first_token_seconds_count") == began
        return
    more = await counted(stack, before)
    assert max(more.values()) >= 3 * TOKENS
    assert await stack.metric("gen_ai_server_time_to_first_token_seconds_count") == began + 5
    await eventually(lambda: idle(stack))


async def idle(stack: OwnStack) -> bool:
    workers = (await stack.get("/workers"))["workers"]
    return all(worker["in_flight"] == worker["pending"] == worker["waiting_tokens"] == 0 for worker in workers)


@pytest.mark.parametrize("body", [b'{"text_input": [', b'{"text_input": "%s"}' % (b"tide " * 5_000), b"{}"])
async def test_what_cannot_be_answered_is_triton_s_to_say(
    body: bytes, http: aiohttp.ClientSession, stack: OwnStack
) -> None:
    async with http.post(f"/v2/models/{MODEL}/generate", data=body) as response:
        ours = response.status, await response.json()
    async with http.post(f"http://{stack.tritons[0].http_endpoint}/v2/models/{MODEL}/generate", data=body) as response:
        assert ours == (response.status, await response.json())
    assert ours[0] != 200


async def test_the_page_s_example_runs(stack: OwnStack) -> None:
    page = (REPOSITORY / "docs" / "language_models" / "triton.md").read_text().replace("localhost:8080", stack.url)
    (command,) = re.findall(r"^\$ (curl .*/v2/.*)$", page, re.MULTILINE)
    ran = await asyncio.to_thread(subprocess.run, ["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ran.stdout.count("text_output") == 5


async def test_an_unknown_model_is_refused_as_triton_does(http: aiohttp.ClientSession) -> None:
    async with http.post("/v2/models/nobody_has_it/generate", json={"text_input": "x"}) as response:
        assert response.status == 404
        assert "nobody_has_it" in (await response.json())["error"]


async def test_a_client_that_leaves_ends_its_request_at_the_worker(
    http: aiohttp.ClientSession, stack: OwnStack
) -> None:
    asked = {"text_input": "Count to a thousand.", "stream": True, "max_tokens": 1500}
    async with http.post(f"/v2/models/{MODEL}/generate_stream", json=asked) as response:
        await response.content.readline()

    await eventually(lambda: idle(stack))
