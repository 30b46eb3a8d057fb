"""Tokens of streamed answers as messages: real brokers, a real stack, an emulated language model's server killed."""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from integration.ingress.test_ingress import all_said, new_ingress
from support.brokers import BROKERS, Asked, RealBroker, Said
from support.running import running
from support.waiting import eventually

from balancer.stack.stack import OwnStack
from dev.emulated_llm.process import EmulatedLanguageModel, new_emulated

STREAMS, TOKENS = 8, 20
SCENARIO = """
summary: A step takes 20 ms.
split: train
fleet:
  models:
    llama:
      device_ms: {"*": {1: 20, 2048: 20}}
      generation: {devices: {"*": {memory_tokens: 1000000}}}
  workers: [{count: 2}]
workload: {rate_per_s: 1, models: {llama: {prompts: {tokens: {fixed: 10}}}}}
"""
BODY = json.dumps({"model": "llama", "prompt": "tide", "max_tokens": TOKENS, "stream": True}).encode()
ASKED = [Asked(f"id-{number}", BODY, {}) for number in range(STREAMS)]
Fleet = tuple[OwnStack, list[EmulatedLanguageModel]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Fleet]:
    folder = tmp_path_factory.mktemp("stack")
    (folder / "scenario.yaml").write_text(SCENARIO)
    servers = new_emulated({"llm-0": "*", "llm-1": "*"}, str(folder / "scenario.yaml"), folder)
    async with OwnStack(folder, language_models=servers, policy={"name": "round_robin"}, settings={}) as stack:
        yield stack, servers


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("scheme", BROKERS)
async def test_events_come_in_order_and_the_answer_has_them_all(fleet: Fleet, scheme: str, tmp_path: Path) -> None:
    (stack, _), broker = fleet, BROKERS[scheme](tmp_path)
    async with running(broker, new_ingress(stack, broker, "--events", "events")):
        await broker.publish(ASKED)
        assert len(await _all_whole(broker)) == STREAMS, "one execution each"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stream_that_breaks_begins_anew_as_another_execution(fleet: Fleet, tmp_path: Path) -> None:
    (stack, servers), broker = fleet, BROKERS["redis"](tmp_path)

    def all_have_begun(events: list[Said]) -> bool:
        return len({each.id for each in events if each.headers["x-sequence"] == "2"}) == STREAMS

    async with running(broker, new_ingress(stack, broker, "--events", "events")):
        await broker.publish(ASKED)
        await eventually(partial(broker.said, ["events"]), "all have begun", until=all_have_begun)
        await servers[0].kill()
        told = await _all_whole(broker)
    assert len(told) > STREAMS
    assert len({id_ for id_, _ in told}) == STREAMS


async def _all_whole(broker: RealBroker) -> dict[tuple[str, str], list[Said]]:
    """Events by id and execution, once all requests are answered; those of the answers' executions are all there."""
    answers = await all_said(broker, STREAMS)
    told: dict[tuple[str, str], list[Said]] = {}

    def all_told(events: list[Said]) -> bool:
        told.clear()
        for event in events:
            told.setdefault((event.id, event.headers["x-execution"]), []).append(event)
        return all(told[answer.id, answer.headers["x-execution"]][-1].body == b"[DONE]" for answer in answers)

    await eventually(partial(broker.said, ["events"]), "all are told", until=all_told)
    for answer in answers:
        events = told[answer.id, answer.headers["x-execution"]]
        assert [int(event.headers["x-sequence"]) for event in events] == [*range(len(events))]
        assert b"".join(b"data: " + event.body + b"\n\n" for event in events) == answer.body
        assert len(events) >= TOKENS
    return told
