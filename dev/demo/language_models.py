"""Sessions with real language models, the same under each policy: who asks again where the prompt is cached?

Each session begins with instructions of its own and asks a few questions, each with all that was said before. What a
server has computed of a prompt it keeps, so the next question is answered at once there, and after seconds elsewhere.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openai
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from openai.types.chat import ChatCompletionMessageParam
from rich.box import SIMPLE_HEAD
from rich.table import Table

from balancer.load.result import share
from balancer.stack.llama import MODEL
from balancer.stack.stack import OwnStack, new_language_model

POLICIES = ("round_robin", "least_requests", "expected_latency")
SERVERS = 4
TURNS = 3
_ANSWER_TOKENS = 8
_APART_S, _THINKING_S = 2.0, 1.0
"""Mean times between two sessions' beginnings, and from an answer to the next question."""
_INSTRUCTION_WORDS, _QUESTION_WORDS = 140, 12
_WORDS = (
    *("tide", "moon", "harbour", "ship", "sail", "wind", "chart", "depth", "anchor"),
    *("pilot", "coast", "island", "storm", "current", "beacon", "signal", "cargo", "crew"),
    *("captain", "voyage", "compass", "latitude", "weather", "morning", "evening", "water", "level"),
    *("bridge", "channel", "north", "south", "report", "answer"),
)
_PATIENCE_S = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    starts_s: float
    instructions: str
    questions: tuple[str, ...]
    thinking_s: tuple[float, ...]


@dataclasses.dataclass(slots=True)
class PolicyTimes:
    policy: str
    first_token_s: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    errors: list[str] = dataclasses.field(default_factory=list)

    @property
    def cached(self) -> float:
        """The share of prompts' tokens that servers had; NaN: nothing was answered."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else math.nan

    def first_token(self, quantile: float | None) -> float:
        """Seconds: a quantile, or the mean; NaN: nothing was answered."""
        if not self.first_token_s:
            return math.nan
        return float(np.mean(self.first_token_s) if quantile is None else np.quantile(self.first_token_s, quantile))


def sessions(count: int, seed: int) -> list[Session]:
    generator = np.random.default_rng(seed)

    def text(words: int) -> str:
        return " ".join(generator.choice(_WORDS, words))

    begins_s = np.cumsum(generator.exponential(_APART_S, count))
    return [
        Session(
            float(starts_s),
            f"You are assistant {generator.integers(10**6)}: {text(_INSTRUCTION_WORDS)}.",
            tuple(f"{text(_QUESTION_WORDS)}?" for _ in range(TURNS)),
            tuple(float(each) for each in generator.exponential(_THINKING_S, TURNS)),
        )
        for starts_s in begins_s
    ]


async def compare_on_language_models(
    directory: pathlib.Path, count: int, seed: int, show: Callable[[str], None]
) -> list[PolicyTimes]:
    """So many sessions under each policy. Each finds servers that know nothing of it: another policy's sessions began
    otherwise."""
    found = []
    servers = [new_language_model(f"llm-{n}", directory) for n in range(SERVERS)]
    native = {"envoy": {"frontend": "native", "shared_folder": str((directory / "shared").resolve())}}
    async with OwnStack(directory, language_models=servers, policy={"name": POLICIES[0]}, settings=native) as stack:
        url = f"http://{stack.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=_PATIENCE_S) as client:
            for policy in POLICIES:
                show(policy)
                await stack.swap(policy)
                times = PolicyTimes(policy)
                began_s = time.monotonic()
                await asyncio.gather(
                    *(_session(client, policy, each, began_s, times) for each in sessions(count, seed))
                )
                found.append(times)
    return found


async def _session(
    client: openai.AsyncOpenAI, policy: str, session: Session, began_s: float, times: PolicyTimes
) -> None:
    # In its first words, so that nothing of another policy's is of use.
    instructions = f"For {policy}. {session.instructions}"
    said: list[ChatCompletionMessageParam] = [{"role": "system", "content": instructions}]
    await asyncio.sleep(began_s + session.starts_s - time.monotonic())
    for question, thinking_s in zip(session.questions, session.thinking_s, strict=True):
        said.append({"role": "user", "content": question})
        try:
            said.append({"role": "assistant", "content": await _ask(client, said, times)})
        except openai.OpenAIError as error:
            times.errors.append(f"{type(error).__name__}: {error}")
            return
        await asyncio.sleep(thinking_s)


async def _ask(client: openai.AsyncOpenAI, messages: Sequence[ChatCompletionMessageParam], times: PolicyTimes) -> str:
    began_s, first_s, answer = time.monotonic(), math.nan, ""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=_ANSWER_TOKENS,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for event in stream:
        if event.choices and event.choices[0].delta.content:
            first_s = time.monotonic() - began_s if math.isnan(first_s) else first_s
            answer += event.choices[0].delta.content
        if event.usage is not None:
            details = event.usage.prompt_tokens_details
            times.prompt_tokens += event.usage.prompt_tokens
            times.cached_tokens += (details.cached_tokens or 0) if details is not None else 0
    if not math.isnan(first_s):
        times.first_token_s.append(first_s)
    return answer


COLUMNS = ("policy", "answers", "first token, mean s", "p95 s", "prompts cached")


def cells(times: PolicyTimes) -> list[str]:
    mean_s, p95_s = times.first_token(None), times.first_token(0.95)
    return [times.policy, str(len(times.first_token_s)), f"{mean_s:.2f}", f"{p95_s:.2f}", share(times.cached)]


def table(found: Sequence[PolicyTimes]) -> Table:
    title = f"The same sessions with {SERVERS} real language models (SmolLM2-135M, llama.cpp), no GPU"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for times in found:
        shown.add_row(*cells(times))
    return shown


def as_json(found: Sequence[PolicyTimes]) -> list[dict[str, Any]]:
    """Null: nothing was answered."""
    measured = [(times, times.first_token(None), times.first_token(0.95), times.cached) for times in found]
    return [
        {
            "policy": times.policy,
            "answers": len(times.first_token_s),
            "first_token_mean_s": mean_s if math.isfinite(mean_s) else None,
            "first_token_p95_s": p95_s if math.isfinite(p95_s) else None,
            "cached": cached if math.isfinite(cached) else None,
            "errors": times.errors,
        }
        for times, mean_s, p95_s, cached in measured
    ]


def draw(found: Sequence[PolicyTimes], path: pathlib.Path) -> None:
    figure = Figure(figsize=(12, 0.9 + 0.7 * len(found)), layout="constrained", dpi=150)
    first, cached = figure.subplots(1, 2, sharey=True, width_ratios=[2, 1])
    for y, times in enumerate(found):
        first.plot(times.first_token_s, [y] * len(times.first_token_s), "o", color="#332288", alpha=0.4, mew=0)
        first.plot(times.first_token(None), y, "D", color="#CC6677", markersize=9, label="mean" if not y else None)
        cached.barh(y, times.cached, height=0.6, color="#44AA99")
    first.set_yticks(range(len(found)), [times.policy for times in found])
    first.set_ylim(len(found) - 0.5, -0.5)
    first.set_xlabel("seconds to the first token, of each answer (logarithmic)")
    first.set_xscale("log")
    first.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    first.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    first.xaxis.set_minor_formatter(NullFormatter())
    first.legend(frameon=False)
    cached.set_xlim(0, 1)
    cached.set_xlabel("share of prompts' tokens that the server had")
    for axes in (first, cached):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
