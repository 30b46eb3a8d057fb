"""OpenAI's own client, unmodified, through each front end, at real language models."""

import asyncio
import json
import math
import re
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx2
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam
from support import fronts
from support.waiting import eventually

from balancer.server.decision_log.reading import read_log
from balancer.stack.llama import MODEL
from balancer.stack.process import free_port_range
from balancer.stack.stack import REPOSITORY, OwnStack, new_language_model

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
BACKGROUND = "You answer questions about the tides, briefly. " * 30


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick", "proxy"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[OwnStack]:
    directory = tmp_path_factory.mktemp("llm")
    envoy = fronts.envoy_section(request.param, directory)
    listen = {"fleet": f"127.0.0.1:{free_port_range(2)}"} if request.param == "proxy" else {}
    models = [new_language_model(f"llm-{n}", directory) for n in range(2)]
    settings = {"envoy": envoy, "listen": listen, "decision_log": {"folder": str(directory / "decisions")}}
    async with OwnStack(directory, language_models=models, settings=settings) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: OwnStack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://{stack.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def conversation(question: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "system", "content": BACKGROUND}, {"role": "user", "content": question}]


async def test_models_are_those_of_the_fleet(client: openai.AsyncOpenAI) -> None:
    assert [model.id for model in (await client.models.list()).data] == [MODEL]


async def test_chat_and_completions_are_answered_whole(client: openai.AsyncOpenAI, stack: OwnStack) -> None:
    chat = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say hello."}], max_tokens=3
    )
    text = await client.completions.create(model=MODEL, prompt="The tide", max_tokens=3)
    assert chat.choices[0].message.content
    assert text.choices[0].text
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 3
    await eventually(lambda: outputs(stack, 6))


async def outputs(stack: OwnStack, tokens: float) -> bool:
    return await stack.metric("balancer_tokens_total", kind="output") >= tokens


async def test_the_next_question_goes_to_the_worker_that_has_what_both_begin_with(
    client: openai.AsyncOpenAI, stack: OwnStack
) -> None:
    cached = []
    for number in range(5):
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=conversation(f"{number}: when is it high?"),
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        events = [event async for event in stream]
        usage = events[-1].usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens or 0)
        assert "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    # From the third on, when the balancer has seen how long a prompt takes that nobody knows.
    assert all(tokens > 200 for tokens in cached[2:])
    await eventually(lambda: counted_cached(stack, sum(cached)))
    assert await stack.metric("gen_ai_server_time_to_first_token_seconds_count") == 5
    assert await stack.metric("gen_ai_server_time_per_output_token_seconds_count") == 5
    workers = (await stack.get("/workers"))["workers"]
    assert [worker["waiting_tokens"] for worker in workers] == [0.0, 0.0]
    await eventually(lambda: logged(stack, cached))


def logged(stack: OwnStack, cached: list[int]) -> bool:
    """Whether the decision log tells what these prompts began with, when their answers came, and of how many tokens."""
    log = read_log(stack.directory / "decisions")
    chats = [each for each in log if each.request.prefix and (each.run, each.request.number) in log.outcomes]
    ends = [log.outcomes[each.run, int(each.request.number)] for each in chats]
    streams = [end for end in ends if math.isfinite(end.first_s)]
    assert all(decision.at_s < end.at_s for decision, end in zip(chats, ends, strict=True))
    return (
        [end.cached_tokens for end in streams] == cached
        and all(end.output_tokens == 3 and end.first_s <= end.said_s for end in streams)
        and len({decision.request.prefix[0] for decision in chats}) < len(chats)
    )


async def counted_cached(stack: OwnStack, tokens: float) -> bool:
    return await stack.metric("balancer_tokens_total", kind="cached") >= tokens


async def test_errors_are_those_that_the_client_knows(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="unknown model: 'nobody-has-it'"):
        await client.chat.completions.create(model="nobody-has-it", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="messages"):
        await client.chat.completions.create(model=MODEL, messages=5)
    with pytest.raises(openai.BadRequestError, match="is the name of a model"):
        await client.post("/completions", body={"prompt": "x"}, cast_to=object)
    with pytest.raises(openai.NotFoundError):
        await client.files.list()


async def test_tools_are_passed_through(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the weather in Kiel?"}],
        tools=[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
        max_tokens=3,
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 20


async def test_a_client_that_leaves_ends_its_request_at_the_worker(client: openai.AsyncOpenAI, stack: OwnStack) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Count to a thousand."}], max_tokens=1500, stream=True
    )
    async for _ in stream:
        break
    await stream.close()

    async def idle() -> bool:
        workers = (await stack.get("/workers"))["workers"]
        return all(worker["in_flight"] == worker["pending"] == worker["waiting_tokens"] == 0 for worker in workers)

    await eventually(idle)


async def test_two_hundred_at_once_are_all_answered(client: openai.AsyncOpenAI) -> None:
    async def ask(number: int) -> int:
        answer = await client.completions.create(model=MODEL, prompt=f"{number}", max_tokens=1)
        return answer.usage.completion_tokens if answer.usage else 0

    assert await asyncio.gather(*map(ask, range(200))) == [1] * 200


async def test_a_time_limit_of_the_client_s_ends_its_request(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.05).completions.create(model=MODEL, prompt=BACKGROUND, max_tokens=500)


async def test_a_body_of_megabytes_reaches_the_worker(client: openai.AsyncOpenAI) -> None:
    """Which has no room for it, and says so."""
    with pytest.raises(openai.BadRequestError, match="context"):
        await client.completions.create(model=MODEL, prompt="tide " * 1_000_000, max_tokens=1)


async def test_a_body_that_is_too_large_is_refused_at_the_listener(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match=r"has more than 16777216 bytes|Payload Too Large") as refused:
        await client.completions.create(model=MODEL, prompt="tide " * 4_000_000, max_tokens=1)
    assert isinstance(refused.value.body, dict)


async def test_the_synchronous_client_and_curl_are_served_too(stack: OwnStack) -> None:
    def ask() -> str:
        with openai.OpenAI(base_url=f"http://{stack.url}/v1", api_key="none", max_retries=0) as client:
            return client.completions.create(model=MODEL, prompt="The tide", max_tokens=2).choices[0].text

    assert await asyncio.to_thread(ask)
    body = json.dumps({"model": MODEL, "prompt": "The tide", "max_tokens": 2, "stream": True})
    command = ["curl", "-sN", f"http://{stack.url}/v1/completions", "-d", body]
    answer = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert answer.stdout.rstrip().endswith("data: [DONE]")


async def test_the_pages_examples_run(stack: OwnStack) -> None:
    pages = REPOSITORY / "docs" / "language_models"
    page = (pages / "clients.md").read_text() + (pages / "servers.md").read_text()
    page = page.replace("localhost:8080", stack.url).replace("localhost:8090", stack.admin(0))
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    commands = re.findall(r"^\$ (curl .*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for arguments in ([sys.executable, "-c", program], *(["bash", "-c", command] for command in commands)):
        ran = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, check=True)
        assert len(ran.stdout) > 10
    assert "matched_tokens" in ran.stdout  # the last one asks why


async def test_a_stream_outlives_the_balancer(client: openai.AsyncOpenAI, stack: OwnStack) -> None:
    """From the first token on nobody asks it. Another one goes on."""
    if stack.config.frontend == "proxy":
        pytest.skip("what the proxy forwards passes through the balancer, and ends with it")
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Count to a hundred."}],
        max_tokens=100,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    events = 0
    async for _ in stream:
        if not events:
            await stack.balancer.kill()
        events += 1
    assert events > 100
    # Envoy goes on alone. Where it cannot read what is large, it refuses that: by many such one could keep the balancer
    # from reading.
    assert (await client.completions.create(model=MODEL, prompt="The tide", max_tokens=1)).choices
    with pytest.raises(openai.APIStatusError, match=r"no balancer read this large request in time|exceeds .* context"):
        await client.completions.create(model=MODEL, prompt="tide " * 300_000, max_tokens=1)
    await stack.start_balancer()
    await stack.all_ready()
    assert (await client.completions.create(model=MODEL, prompt="The tide", max_tokens=1)).choices


async def test_a_server_that_is_killed_ends_its_streams_alone_and_is_no_longer_asked(
    client: openai.AsyncOpenAI, stack: OwnStack
) -> None:
    """The last of these, since it leaves one server."""
    began = asyncio.Semaphore(0)

    async def complete(number: int) -> bool:
        try:
            # The server may let one wait until others are done, before it says anything.
            stream = await client.completions.create(
                model=MODEL, prompt=f"{number}", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
            )
            async for _ in stream:
                began.release()
        except (openai.APIError, httpx2.HTTPError):
            return False
        return True

    streams = [asyncio.create_task(complete(number)) for number in range(6)]
    for _ in range(60):
        await began.acquire()
    in_flight = {str(worker["worker"]): int(worker["in_flight"]) for worker in (await stack.get("/workers"))["workers"]}
    killed, other = sorted(stack.language_models, key=lambda server: in_flight[server.name], reverse=True)
    await killed.kill()
    # Of those there, the other server is asked for the ones that had said nothing yet, and some may just have ended.
    assert 0 < (await asyncio.gather(*streams)).count(False) <= in_flight[killed.name] <= 6
    answers = [await client.completions.create(model=MODEL, prompt=f"{n}", max_tokens=1) for n in range(8)]
    assert all(answer.choices for answer in answers)
    # Without any, the answer is Envoy's or the balancer's, and an error that the client can read.
    await other.kill()
    with pytest.raises(openai.InternalServerError) as refused:
        await client.completions.create(model=MODEL, prompt="The tide", max_tokens=1)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["type"] in ("server_error", "service_unavailable_error")
    assert refused.value.body["message"]
