"""The emulated language model: what it answers, when, and of what it has a prompt cached."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from aiohttp import web

from balancer.agent.openai_source import read_metrics
from dev.emulated_llm.server import TOKEN_BYTES, EmulatedServer
from simulator.spec import GeneratingDevice, GenerationSpec, ModelSpec, ServiceTime

STEP_S = 0.002
BLOCK = 16
MEMORY = 1000


def model(step_s: float = STEP_S) -> ModelSpec:
    generation = GenerationSpec({"*": GeneratingDevice(MEMORY)}, step_tokens=512, max_sequences=8)
    return ModelSpec("llama", {"*": ServiceTime((1, 512), (step_s, step_s))}, generation=generation)


@pytest_asyncio.fixture
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    server = EmulatedServer(model(getattr(request, "param", STEP_S)), "any", BLOCK)
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest_asyncio.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def text(tokens: int, of: str = "a") -> str:
    return of * (tokens * TOKEN_BYTES)


async def state(url: str) -> Any:
    """As the agent reads it."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        return read_metrics(await response.read())


async def test_answers_have_the_tokens_that_were_asked_for_and_say_what_was_cached(client: openai.AsyncOpenAI) -> None:
    cached = []
    for _ in range(2):
        answer = await client.completions.create(model="llama", prompt=text(3 * BLOCK + 5), max_tokens=4)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3 * BLOCK + 5, 4)
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, 3 * BLOCK]


async def test_a_stream_has_an_event_a_token(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="llama",
        messages=[{"role": "user", "content": text(9)}],
        max_completion_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    events = [event async for event in stream]
    assert sum(bool(event.choices and event.choices[0].delta.content) for event in events) == 6
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 6


async def test_answers_take_their_steps(client: openai.AsyncOpenAI) -> None:
    """No sooner: how much later a machine is, is its own affair."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    await client.completions.create(model="llama", prompt=text(600), max_tokens=10)
    assert clock() - began_s >= (2 + 9) * STEP_S


@pytest.mark.parametrize("url", [60.0], indirect=True)
async def test_a_client_that_leaves_gives_its_place_back(url: str, client: openai.AsyncOpenAI) -> None:
    calls = [asyncio.create_task(client.completions.create(model="llama", prompt=text(5))) for _ in range(2)]
    while (await state(url))["waiting"] + (await state(url))["running"] < 2:
        await asyncio.sleep(0)
    found = await state(url)
    assert found["memory_tokens"] == MEMORY // BLOCK * BLOCK
    for call in calls:
        call.cancel()
    # The step that is under way lasts; nobody waits behind it.
    while (await state(url))["waiting"]:
        await asyncio.sleep(0)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"prompt": 3}', b"{}", json.dumps({"prompt": text(2000)}).encode()])
async def test_what_it_cannot_answer_is_an_error(url: str, body: bytes) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/completions", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"]


def test_a_model_that_does_not_generate_is_refused() -> None:
    with pytest.raises(ValueError, match="does not generate on 'any'"):
        EmulatedServer(ModelSpec("m", {"*": ServiceTime((1, 2), (1.0, 2.0))}), "any", BLOCK)
