"""In whatever order things come (requests, cancels, answers, failures, timers), each request gets its own answer or an
error, and no id is executed twice."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fake_worker import echoed
from support.proxied import request
from tritonclient.grpc import service_pb2

from balancer.extproc.inference_bytes import read
from balancer.extproc.kserve import HeaderNames, read_call
from balancer.proxy.attempts import Clocks
from balancer.proxy.batching import Batching
from balancer.proxy.breakers import AttemptLatencies
from balancer.proxy.messages import INFER, OK, UNAVAILABLE, Arrived, ProxyAnswer
from balancer.proxy.settings import ModelProxySection, ProxySection, ProxySettings
from balancer.proxy.sharing import Cache, Callers, Once, Sharing

JOINED: dict[str, Any] = {"repeatable": True, "batch": {"max_rows": 4, "wait_s": 0.0}}
SETTINGS = ProxySettings(
    ProxySection.model_validate({"once_bytes": 600}),
    {
        name: ModelProxySection.model_validate(section)
        for name, section in {
            "once": {"once_s": 5.0},
            "cached": {"cache_ttl_s": 5.0},
            "joined": JOINED,
            "all": JOINED | {"hedge": True, "once_s": 5.0, "cache_ttl_s": 5.0},
            "cached and joined": JOINED | {"hedge": True, "cache_ttl_s": 5.0},
        }.items()
    },
)

SentRequest = tuple[str, int, str, int, str]
"""Model, value, id, rows, tenant."""
SEND = st.tuples(
    st.sampled_from(sorted(SETTINGS.models)),
    st.integers(0, 2),
    st.sampled_from(["", "1", "2"]),
    st.integers(1, 2),
    st.sampled_from(["a", "b"]),
)
AT_ONCE = st.lists(SEND, min_size=1, max_size=4) | st.tuples(SEND, st.lists(st.integers(0, 2), max_size=3)).map(
    lambda drawn: [drawn[0], *((drawn[0][0], value, drawn[0][2], 1, drawn[0][4]) for value in drawn[1])]
)
"""Requests that come together: any, or alike but for their values, which are joined."""
STEPS = st.lists(
    st.one_of(
        AT_ONCE.map(lambda one: ("send", one)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("answer"), st.integers(0, 30)),
        st.tuples(st.just("fail"), st.integers(0, 30)),
        st.tuples(st.just("refuse"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.integers(1, 8)),
    ),
    max_size=40,
)


def rows_of(data: bytes) -> list[tuple[str, float]]:
    """Model and value of each row."""
    message = service_pb2.ModelInferRequest.FromString(data)
    values = np.frombuffer(message.raw_input_contents[0], np.float32).reshape(-1, 2)[:, 0]
    return [(message.model_name, float(value)) for value in values]


@dataclass
class FakeWorkers:
    """Where executions wait for what is to become of them."""

    waiting: list[tuple[Arrived, asyncio.Future[ProxyAnswer]]] = field(default_factory=list)
    begun: Counter[tuple[str, float]] = field(default_factory=Counter)
    """Executions of a row that may have happened, by model and value."""

    async def infer(self, arrived: Arrived) -> ProxyAnswer:
        self.begun.update(rows_of(arrived.data))
        future: asyncio.Future[ProxyAnswer] = asyncio.get_running_loop().create_future()
        self.waiting.append((arrived, future))
        return await future

    def end(self, place: int, how: str) -> None:
        """Of those that wait, one ends."""
        self.waiting = [each for each in self.waiting if not each[1].done()]
        if not self.waiting:
            return
        arrived, future = self.waiting.pop(place % len(self.waiting))
        if how == "answer":
            future.set_result(ProxyAnswer(OK, data=echoed(arrived.data), worker="w"))
        elif how == "fail":
            future.set_result(ProxyAnswer(UNAVAILABLE, "in the middle", worker="w"))
        else:
            self.begun.subtract(rows_of(arrived.data))
            future.set_result(ProxyAnswer(UNAVAILABLE, "nobody took it", unexecuted=True))


class Played:
    """One order of events."""

    def __init__(self) -> None:
        self.now_s = 0.0
        clocks = Clocks(lambda: self.now_s, lambda: 0.0)
        self.workers = FakeWorkers()
        counts: Counter[tuple[str, str]] = Counter()
        callers = Callers()
        batching = Batching(self.workers, lambda model, version: 2, clocks, AttemptLatencies(), counts, callers)
        self.sharing = Sharing(batching, clocks, counts, callers)
        batching.configure(SETTINGS)
        self.sharing.configure(SETTINGS)
        self.sent: list[tuple[SentRequest, asyncio.Task[ProxyAnswer]]] = []

    async def settle(self) -> None:
        """Let everything happen that does not wait for the test."""
        for _ in range(12):
            await asyncio.sleep(0)

    def send(self, one: SentRequest) -> None:
        model, value, name, rows, tenant = one
        data = request(model, float(value), name=name, rows=rows)
        headers = {":path": INFER, "content-type": "application/grpc", "x-tenant": tenant}
        found = read(data)
        call = read_call(headers, found.fields, HeaderNames())
        arrived = Arrived(call, data, (), repeatable=SETTINGS.of(model).repeatable, id_spans=found.id_spans)
        self.sent.append((one, asyncio.create_task(self.sharing.infer(arrived))))

    async def play(self, steps: list[tuple[str, object]]) -> None:
        for kind, what in steps:
            if kind == "send":
                for one in what:  # type: ignore[attr-defined]  # as the strategy makes it
                    self.send(one)
            elif kind == "cancel" and self.sent:
                self.sent[int(what) % len(self.sent)][1].cancel()  # type: ignore[call-overload]
            elif kind == "wait":
                self.now_s += float(what)  # type: ignore[arg-type]
            elif kind != "cancel":
                self.workers.end(int(what), kind)  # type: ignore[call-overload]
            await self.settle()
        for _ in range(200):
            self.workers.end(0, "answer")
            await self.settle()
        await asyncio.gather(*(task for _, task in self.sent), return_exceptions=True)


def check_answers(played: Played) -> None:
    for (model, value, name, rows, _), task in played.sent:
        if task.cancelled():
            continue
        answer = task.result()
        if answer.code != OK:
            continue
        got = service_pb2.ModelInferResponse.FromString(answer.data)
        assert (got.model_name, got.id) == (model, name)
        assert list(got.outputs[0].shape) == [rows, 2]
        expected = service_pb2.ModelInferRequest.FromString(request(model, float(value), rows=rows))
        assert list(got.raw_output_contents) == list(expected.raw_input_contents)


@settings(max_examples=examples(300), deadline=None)
@given(STEPS)
def test_each_gets_its_own_answer_or_an_error(steps: list[tuple[str, object]]) -> None:
    async def run() -> Played:
        played = Played()
        await played.play(steps)
        return played

    played = asyncio.run(run())
    check_answers(played)
    # Nothing is left over, whoever left when.
    assert all(task.done() for _, task in played.sent)
    assert not played.sharing._running
    assert played.sharing.once.kept_bytes <= SETTINGS.proxy.once_bytes


@settings(max_examples=examples(300), deadline=None)
@given(STEPS)
def test_no_id_is_executed_twice(steps: list[tuple[str, object]]) -> None:
    async def run() -> Played:
        played = Played()
        await played.play([of_ids(step) for step in steps if step[0] != "wait"])
        return played

    played = asyncio.run(run())
    check_answers(played)
    tenants: dict[tuple[str, float], set[str]] = {}
    for (model, value, _, _, tenant), _ in played.sent:
        tenants.setdefault((model, float(value)), set()).add(tenant)
    for row, callers in tenants.items():
        assert played.workers.begun[row] <= len(callers)


def of_ids(step: tuple[str, object]) -> tuple[str, object]:
    """The same with requests of one row that all have an id, which says their value: executions then show in rows."""
    if step[0] != "send":
        return step
    one: Any = step[1]
    return "send", [
        ("all" if SETTINGS.of(model).batch.max_rows else "once", value, str(value), 1, tenant)
        for model, value, _, _, tenant in one
    ]


EVENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2000), st.floats(0, 3)), max_size=60)


@given(EVENTS, st.integers(0, 4000))
def test_a_cache_gives_only_what_is_young_and_keeps_no_more_than_it_may(
    events: list[tuple[int, int, float]], most_bytes: int
) -> None:
    cache: Cache[tuple[int, int]] = Cache(most_bytes)
    now_s, until_s = 0.0, dict.fromkeys(range(6), -1.0)
    for number, (key, size, pause_s) in enumerate(events):
        now_s += pause_s
        kept = cache.get(key, now_s)
        if kept is not None:
            assert kept[0] == key
            assert now_s < until_s[key]
        cache.put(key, (key, number), size, now_s + 2)
        until_s[key] = now_s + 2
        assert 0 <= cache.kept_bytes <= most_bytes
    assert cache.kept_bytes > 0 or len(cache) == 0


@given(EVENTS, st.integers(0, 4000), st.integers(2, 5))
def test_ids_are_known_until_their_time_and_are_never_too_many(
    events: list[tuple[int, int, float]], most_bytes: int, most_entries: int
) -> None:
    once: Once[str, int] = Once(most_entries, most_bytes)
    now_s, until_s = 0.0, {}
    for number, (name, size, pause_s) in enumerate(events):
        now_s += pause_s
        key, tenant = (name,), str(name % 2)
        entry = once.find(key, now_s)
        assert (entry is not None) == (until_s.get(key, -1.0) > now_s)
        if entry is None and once.has_room(tenant):
            once.begin(key, tenant, "running")
            assert once.find(key, now_s) is not None
            if size % 3:
                once.executed(key, number, size, now_s + 2)
                until_s[key] = now_s + 2
            else:
                once.not_executed(key)
        assert len(once) <= most_entries
        assert 0 <= once.kept_bytes <= most_bytes
    once.find(("none",), now_s + 10)
    assert len(once) == 0
    assert once.kept_bytes == 0
