"""A scenario's requests, sent as an OpenAI client sends them: texts whose equal blocks are equal, at their times."""

import asyncio
import functools
import hashlib
import json
import math
import time
from dataclasses import dataclass

import aiohttp
import numpy as np

from balancer.extproc.names import CHAT
from dev.emulated_llm.server import TOKEN_BYTES
from simulator.arrivals import Arrivals

_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Question:
    at_s: float
    body: bytes


@dataclass(slots=True)
class Answer:
    """Seconds count from when the question was to be sent; NaN: that did not come."""

    first_s: float = math.nan
    whole_s: float = math.nan
    late_s: float = 0.0
    """By which the client itself was late."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


def questions(arrivals: Arrivals, model: str) -> list[Question]:
    """What is asked in these arrivals.

    Raises ValueError: the scenario's requests are no prompts.
    """
    prompts = arrivals.prompts
    if prompts is None:
        raise ValueError("the scenario's model does not generate: name one with prompts, such as chat")
    ends, found = np.cumsum(prompts.blocks), []
    for number, at_s in enumerate(arrivals.time_s):
        blocks = prompts.block[ends[number] - prompts.blocks[number] : ends[number]]
        text = "".join(_text(f"block {block}", prompts.block_tokens) for block in blocks)
        text += _text(f"own {number}", int(prompts.tokens[number]) - len(blocks) * prompts.block_tokens)
        found.append(Question(float(at_s), _body(model, text, int(prompts.output[number]))))
    return found


def lone_questions(model: str, count: int, apart_s: float) -> list[Question]:
    """Of one token each, with nobody beside them."""
    return [Question(number * apart_s, _body(model, f"{number:04}", 1)) for number in range(count)]


def _body(model: str, text: str, output: int) -> bytes:
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": output,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


@functools.lru_cache(maxsize=1 << 16)
def _text(name: str, tokens: int) -> str:
    """Of so many tokens; two names have nothing in common."""
    size_bytes = tokens * TOKEN_BYTES
    piece = hashlib.blake2b(name.encode(), digest_size=64).hexdigest()
    return (piece * (size_bytes // len(piece) + 1))[:size_bytes]


async def replay(endpoint: str, asked: list[Question]) -> list[Answer]:
    """Ask each at its time, whatever became of those before."""
    answers = [Answer() for _ in asked]
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 16
    ) as session:

        async def ask(question: Question, answer: Answer) -> None:
            at_s = began_s + question.at_s
            await asyncio.sleep(at_s - time.monotonic())
            answer.late_s = time.monotonic() - at_s
            try:
                await _ask(session, f"http://{endpoint}{CHAT}", question.body, answer, at_s)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                answer.error = f"{type(error).__name__}: {error}"

        began_s = time.monotonic() + 1.0
        async with asyncio.TaskGroup() as group:
            for question, answer in zip(asked, answers, strict=True):
                group.create_task(ask(question, answer))
    return answers


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes, answer: Answer, at_s: float) -> None:
    async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
        if response.status != 200:
            answer.error = f"{response.status}: {(await response.text())[:200]}"
            return
        rest = b""
        async for chunk in response.content.iter_any():
            now_s = time.monotonic()
            if math.isnan(answer.first_s) and b'"content"' in chunk:
                answer.first_s = now_s - at_s
            # What is told of tokens comes last.
            rest = (rest + chunk)[-2048:]
        if not rest.endswith(b"data: [DONE]\n\n"):
            answer.error = "the stream broke off"
            return
        answer.whole_s = now_s - at_s
        answer.prompt_tokens, answer.cached_tokens = _tokens(rest)


def _tokens(events: bytes) -> tuple[int, int]:
    """Of the prompt, and those of them that were cached, as the last event but the end tells."""
    usage = json.loads(events.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
    return int(usage["prompt_tokens"]), int(usage["prompt_tokens_details"]["cached_tokens"])
