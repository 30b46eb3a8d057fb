"""Events of streamed answers: in order, each execution from its first on, and never in the way of answers."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from unit.ingress.test_calls import called, message
from unit.ingress.test_ingress import FakeBroker

from balancer.ingress import events as events_module
from balancer.ingress.events import Events
from balancer.ingress.message import BrokerError, Event
from balancer.ingress.metrics import IngressMetrics
from balancer.ingress.outcomes import Answer

STREAM = b': hello\n\ndata: {"a": 1}\n\nevent: more\r\ndata:b\r\ndata: c\r\n\r\nid: 3\n\ndata: [DONE]\n\n'
SAID = [b'{"a": 1}', b"b\nc", b"[DONE]"]


def counted(metrics: IngressMetrics) -> dict[str, float]:
    return {fate: metrics.events.labels(fate)._value.get() for fate in ("told", "lost")}


async def told(events: Events, until: asyncio.Event) -> None:
    running = asyncio.create_task(events.run())
    await asyncio.wait_for(until.wait(), 30)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_however_a_stream_is_cut_its_events_are_the_same(cuts: list[int]) -> None:
    kept: list[Event] = []

    class Kept(Events):
        def add(self, event: Event) -> None:
            kept.append(event)

    execution = Kept(FakeBroker(), IngressMetrics()).of(message())
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(places):
        execution.feed(STREAM[start:end])
    assert [event.data for event in kept] == SAID
    assert [event.headers for event in kept] == [
        {"x-request-id": "a-1", "x-execution": execution.name, "x-sequence": str(number)} for number in range(3)
    ]


async def test_a_streamed_answer_is_told_as_it_comes_and_returned_whole() -> None:
    done = asyncio.Event()

    class Broker(FakeBroker):
        async def tell(self, events: Sequence[Event]) -> None:
            await super().tell(events)
            if len(self.told) == len(SAID):
                done.set()

    broker, metrics = Broker(), IngressMetrics()
    events = Events(broker, metrics)
    execution = events.of(message())

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(STREAM)
        return response

    found = await called(answer, execution=execution)
    assert isinstance(found, Answer)
    assert (found.body, found.headers["x-execution"]) == (STREAM, execution.name)
    await told(events, done)
    assert [event.data for event in broker.told] == SAID
    assert counted(metrics) == {"told": 3, "lost": 0}


async def test_what_is_no_stream_has_no_events() -> None:
    broker = FakeBroker()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=STREAM.decode(), content_type="application/json")

    events = Events(broker, IngressMetrics())
    found = await called(answer, execution=events.of(message()))
    assert isinstance(found, Answer)
    assert "x-execution" not in found.headers
    assert not events._waiting


async def test_what_a_broker_does_not_take_is_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()

    class Away(FakeBroker):
        async def tell(self, events: Sequence[Event]) -> None:
            tried.set()
            raise BrokerError("it is away")

    metrics = IngressMetrics()
    events = Events(Away(), metrics)
    monkeypatch.setattr(events_module, "MOST_WAITING", 5)
    execution = events.of(message())
    for _ in range(8):
        execution.feed(b"data: x\n\n")
    assert counted(metrics) == {"told": 0, "lost": 3}
    await told(events, tried)
    assert counted(metrics) == {"told": 0, "lost": 8}


async def test_an_event_that_is_too_long_ends_the_telling_of_its_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "_MOST_EVENT_BYTES", 2000)
    metrics = IngressMetrics()
    events = Events(FakeBroker(), metrics)
    execution = events.of(message())
    execution.feed(b"data: " + b"x" * 1500 + b"\n\n")
    assert counted(metrics)["lost"] == 1, "more than the broker takes"
    execution.feed(b"data: " + b"x" * 2500)
    execution.feed(b"\n\ndata: y\n\n")
    assert counted(metrics)["lost"] == 2
    assert not events._waiting


async def test_who_waits_for_all_to_be_told_waits_for_the_broker_and_for_what_comes_meanwhile() -> None:
    may_go_on, begun = asyncio.Event(), asyncio.Event()

    class Slow(FakeBroker):
        async def tell(self, events: Sequence[Event]) -> None:
            begun.set()
            await may_go_on.wait()
            await super().tell(events)

    broker = Slow()
    events = Events(broker, IngressMetrics())
    await events.until_told()
    execution = events.of(message())
    execution.feed(b"data: a\n\n")
    running = asyncio.create_task(events.run())
    await begun.wait()
    waiting = asyncio.create_task(events.until_told())
    execution.feed(b"data: b\n\n")
    may_go_on.set()
    await asyncio.wait_for(waiting, 30)
    assert [event.data for event in broker.told] == [b"a", b"b"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
