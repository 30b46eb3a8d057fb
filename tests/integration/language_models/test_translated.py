"""OpenAI's own client, unmodified, at a real Triton's language model: the proxy translates."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
import yaml
from openai.types.chat import ChatCompletionMessageParam
from support import fronts
from support.waiting import eventually

from balancer.stack.llama import MODEL
from balancer.stack.process import free_port_range
from balancer.stack.stack import REPOSITORY, OwnStack, new_language_model, new_triton

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
MODELS = REPOSITORY / "triton" / "language_models"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a tide?"}]
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OwnStack]:
    directory = tmp_path_factory.mktemp("translated")
    page = (REPOSITORY / "docs" / "language_models" / "triton.md").read_text()
    page = page.replace(": triton/", f": {REPOSITORY}/triton/")
    (example,) = (
        each for each in re.findall(r"^```yaml\n(.*?)```", page, re.MULTILINE | re.DOTALL) if "chat_template" in each
    )
    settings = {
        "envoy": fronts.envoy_section("proxy", directory),
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
        "models": yaml.safe_load(example)["models"],
    }
    async with OwnStack(directory, tritons=[new_triton("w0", MODELS, directory)], settings=settings) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def beside(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a `llama-server` with the same model, which the balancer does not know."""
    server = new_language_model("beside", tmp_path)
    await server.start()
    try:
        await server.wait_ready()
        async with openai.AsyncOpenAI(base_url=f"http://{server.http_endpoint}/v1", api_key="none") as opened:
            yield opened
    finally:
        await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: OwnStack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://{stack.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


async def test_a_chat_gets_the_words_that_a_server_of_openai_s_api_says(
    client: openai.AsyncOpenAI, beside: openai.AsyncOpenAI
) -> None:
    ours, theirs = [await each.chat.completions.create(messages=MESSAGES, **ASKED) for each in (client, beside)]
    assert ours.choices[0].message.content
    assert ours.choices[0].message == theirs.choices[0].message
    assert ours.choices[0].finish_reason == theirs.choices[0].finish_reason == "length"
    assert ours.usage is not None
    assert ours.usage.completion_tokens == 12


async def test_a_stream_says_the_same_and_its_tokens(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(prompt="The tide is", **ASKED)
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    events = [event async for event in await client.completions.create(prompt="The tide is", **ASKED, **options)]
    assert "".join(event.choices[0].text for event in events if event.choices) == whole.choices[0].text
    assert events[-1].usage.completion_tokens == 12


async def test_models_are_those_that_can_be_asked_for(client: openai.AsyncOpenAI) -> None:
    assert [model.id for model in (await client.models.list()).data] == [MODEL]


async def test_what_triton_cannot_do_is_refused_by_name(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="response_format"):
        await client.chat.completions.create(messages=MESSAGES, response_format={"type": "json_object"}, **ASKED)


async def test_a_client_that_leaves_ends_its_request_at_triton(client: openai.AsyncOpenAI, stack: OwnStack) -> None:
    long = ASKED | {"max_tokens": 1500, "stream": True}
    stream = await client.chat.completions.create(messages=MESSAGES, **long)
    await anext(aiter(stream))
    await stream.close()

    async def idle() -> bool:
        workers = (await stack.get("/workers"))["workers"]
        return all(worker["in_flight"] == worker["pending"] == 0 for worker in workers)

    await eventually(idle)
