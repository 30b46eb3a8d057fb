"""A language model's server is killed at many streams: its own end by an error, or go on at another."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest

from balancer.stack.llama import MODEL, OpenAIServer
from balancer.stack.process import free_port_range, free_ports
from balancer.stack.stack import OwnStack, new_language_model
from dev.emulated_llm.process import EmulatedLanguageModel

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

STREAMS, TOKENS = 50, 200
WORD = " tide"


@asynccontextmanager
async def served(
    directory: Path, servers: Sequence[OpenAIServer], *, resume: bool
) -> AsyncIterator[tuple[OwnStack, openai.AsyncOpenAI]]:
    settings = {
        "envoy": {"frontend": "proxy"},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
        "proxy": {"resume": resume},
    }
    policy = {"name": "round_robin"}
    async with (
        OwnStack(directory, language_models=servers, policy=policy, settings=settings) as stack,
        openai.AsyncOpenAI(base_url=f"http://{stack.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield stack, client


def emulated(directory: Path) -> list[OpenAIServer]:
    return [
        EmulatedLanguageModel(
            name=f"llm-{number}",
            http_port=port,
            log_path=directory / f"llm-{number}.log",
            scenario="chat",
            device="A100",
        )
        for number, port in enumerate(free_ports(2))
    ]


class Streams:
    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client
        self.begun = 0
        self.all_begun = asyncio.Event()

    async def ask(self) -> tuple[str, str]:
        """What was said, and the error by which it ended."""
        text = ""
        try:
            stream = await self._client.chat.completions.create(
                model="llama", messages=[{"role": "user", "content": "?"}], max_tokens=TOKENS, stream=True
            )
            async for event in stream:
                if not text:
                    self.begun += 1
                    if self.begun == STREAMS:
                        self.all_begun.set()
                text += event.choices[0].delta.content or ""
        except openai.APIError as error:
            return text, error.message
        return text, ""


@pytest.mark.parametrize("resume", [False, True])
async def test_a_worker_that_is_killed_ends_exactly_its_streams_or_none(tmp_path: Path, resume: bool) -> None:
    async with served(tmp_path, emulated(tmp_path), resume=resume) as (stack, client):
        streams = Streams(client)
        asked = [asyncio.create_task(streams.ask()) for _ in range(STREAMS)]
        await asyncio.wait_for(streams.all_begun.wait(), 60)
        await stack.language_models[0].kill()
        answers = await asyncio.gather(*asked)
        broken = [text for text, error in answers if error]
        whole = [text for text, error in answers if not error]
        assert whole == [TOKENS * WORD] * len(whole)
        if resume:
            assert not broken
            assert await stack.metric("balancer_proxy_resumed_total", result="made") == STREAMS / 2
        else:
            assert len(broken) == STREAMS / 2
            assert all(0 < len(text) < TOKENS * len(WORD) for text in broken)
            assert "has failed" in next(error for _, error in answers if error)


async def test_a_real_model_goes_on_with_the_words_that_it_would_have_said(tmp_path: Path) -> None:
    servers = [new_language_model(f"llm-{number}", tmp_path) for number in range(2)]
    asked = {"model": MODEL, "prompt": "The tide is", "max_tokens": 60, "temperature": 0.0}
    async with served(tmp_path, servers, resume=True) as (stack, client):
        expected = (await client.completions.create(**asked)).choices[0].text  # type: ignore[call-overload]
        # By round robin the next is asked.
        stream = await client.completions.create(**asked, stream=True)  # type: ignore[call-overload]
        texts = []
        async for event in stream:
            texts.append(event.choices[0].text if event.choices else "")
            if len(texts) == 10:
                await servers[1].kill()
        assert await stack.metric("balancer_proxy_resumed_total", result="made") == 1
        assert "".join(texts) == expected
