"""Prompts that wait at the balancer until a real language model has room."""

import asyncio
from pathlib import Path

import openai
import pytest

from balancer.stack.llama import MODEL
from balancer.stack.stack import OwnStack, new_language_model

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def test_prompts_wait_for_room_and_are_all_answered(tmp_path: Path) -> None:
    settings = {"holding": {"models": {MODEL: {"window_batches": 0}}}, "envoy": {"frontend": "pick"}}
    models = [new_language_model("llm-0", tmp_path)]
    async with (
        OwnStack(tmp_path, language_models=models, settings=settings) as stack,
        openai.AsyncOpenAI(base_url=f"http://{stack.url}/v1", api_key="none", max_retries=0) as client,
    ):

        async def ask(number: int) -> int:
            stream = await client.completions.create(model=MODEL, prompt=f"{number}", max_tokens=20, stream=True)
            return len([event async for event in stream if event.choices[0].text])

        assert all(await asyncio.gather(*map(ask, range(8))))
        assert await stack.metric("balancer_held_seconds_count", result="placed") == 8
        assert await stack.metric("balancer_held_seconds_sum", result="placed") > 0
