"""A language model's server is killed. At many streams: its own end by an error, or go on at another. Before it has
said anything: another is asked."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from support import fronts
from support.waiting import eventually

from balancer.stack.llama import MODEL, OpenAIServer
from balancer.stack.process import free_port_range
from balancer.stack.stack import OwnStack, new_language_model
from dev.emulated_llm.process import new_emulated

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

STREAMS, MORE = 50, 40
SLOW = """
summary: A step takes 50 ms, so that clients read what is said as it is said.
split: train
fleet:
  models:
    llama:
      device_ms: {"*": {1: 50, 2048: 50}}
      generation: {devices: {"*": {memory_tokens: 1000000}}}
  workers: [{count: 2}]
workload: {rate_per_s: 1, models: {llama: {prompts: {tokens: {fixed: 10}}}}}
"""
LATE = SLOW.replace("A step takes 50 ms", "A long prompt takes 2.5 s").replace("2048: 50", "2048: 2500")
LONG = "tide " * 1600


@asynccontextmanager
async def served(
    directory: Path, servers: Sequence[OpenAIServer], *, frontend: str = "proxy", resume: bool = False
) -> AsyncIterator[tuple[OwnStack, openai.AsyncOpenAI]]:
    settings: dict[str, Any] = {"envoy": fronts.envoy_section(frontend, directory)}
    if frontend == "proxy":
        settings |= {"listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"}, "proxy": {"resume": resume}}
    policy = {"name": "round_robin"}
    async with (
        OwnStack(directory, language_models=servers, policy=policy, settings=settings) as stack,
        openai.AsyncOpenAI(base_url=f"http://{stack.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield stack, client


def emulated(directory: Path, how: str = SLOW) -> list[OpenAIServer]:
    scenario = directory / "scenario.yaml"
    scenario.write_text(how)
    return [*new_emulated({"llm-0": "*", "llm-1": "*"}, str(scenario), directory)]


class Streams:
    """That would go on for minutes."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client
        self._begun = 0
        self.all_begun, self.killed = asyncio.Event(), asyncio.Event()

    async def ask(self) -> str:
        """The error by which it ended; empty: it went on after the server was killed."""
        more, begun = 0, False
        try:
            stream = await self._client.chat.completions.create(
                model="llama", messages=[{"role": "user", "content": "?"}], max_tokens=5000, stream=True
            )
            async with stream:
                async for event in stream:
                    assert event.choices[0].finish_reason is None
                    if not begun:
                        begun = True
                        self._begun += 1
                    if self._begun == STREAMS:
                        self.all_begun.set()
                    more += self.killed.is_set()
                    if more == MORE:
                        return ""
        except openai.APIError as error:
            return error.message
        return "it ended as if it were complete"


@pytest.mark.parametrize("resume", [False, True])
async def test_a_worker_that_is_killed_ends_exactly_its_streams_or_none(tmp_path: Path, resume: bool) -> None:
    async with served(tmp_path, emulated(tmp_path), resume=resume) as (stack, client):
        streams = Streams(client)
        asked = [asyncio.create_task(streams.ask()) for _ in range(STREAMS)]
        await asyncio.wait_for(streams.all_begun.wait(), 60)
        await stack.language_models[0].kill()
        streams.killed.set()
        ends = [end for end in await asyncio.gather(*asked) if end]
        if resume:
            assert ends == []
            assert await stack.metric("balancer_proxy_resumed_total", result="made") == STREAMS / 2
        else:
            assert len(ends) == STREAMS / 2
            assert all("has failed" in end for end in ends)


@pytest.mark.parametrize("frontend", ["native", "proxy"])
async def test_before_a_killed_worker_has_said_anything_another_is_asked(tmp_path: Path, frontend: str) -> None:
    async with served(tmp_path, emulated(tmp_path, LATE), frontend=frontend) as (stack, client):
        asked = asyncio.create_task(client.completions.create(model="llama", prompt=LONG, max_tokens=2))

        async def computing() -> str:
            workers = (await stack.get("/workers"))["workers"]
            return next((worker["worker"] for worker in workers if worker["in_flight"]), "")

        first = await eventually(computing)
        (server,) = (each for each in stack.language_models if each.name == first)
        await server.kill()
        answer = await asked
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
        again = {"native": "balancer_fallbacks_total", "proxy": "balancer_proxy_retries_total"}[frontend]
        await eventually(lambda: stack.metric(again))


async def test_a_real_model_goes_on_with_the_words_that_it_would_have_said(tmp_path: Path) -> None:
    servers = [new_language_model(f"llm-{number}", tmp_path) for number in range(2)]
    asked = {"model": MODEL, "prompt": "The tide is", "max_tokens": 60, "temperature": 0.0}
    async with served(tmp_path, servers, resume=True) as (stack, client):
        expected = (await client.completions.create(**asked)).choices[0].text
        # By round robin the next is asked.
        stream = await client.completions.create(**asked, stream=True)
        texts = []
        async for event in stream:
            texts.append(event.choices[0].text if event.choices else "")
            if len(texts) == 10:
                await servers[1].kill()
        assert await stack.metric("balancer_proxy_resumed_total", result="made") == 1
        assert "".join(texts) == expected
