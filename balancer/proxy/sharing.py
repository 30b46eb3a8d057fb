"""Requests that share one execution: those of one id, and, for models that allow it, equal ones.

Whose may: a Triton may restrict calls by any header, and hand any header to its models. So all that go on to the worker
count but those that say by which way a request came, or where and how soon it is to go: they differ between requests of
one caller, also where it sends the same again.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections import Counter
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Generic, Protocol, TypeVar

from balancer.channels import restricted
from balancer.extproc.inference_bytes import digest, with_id
from balancer.extproc.names import GATEWAY_REQUEST_ID_HEADER, REQUEST_ID_HEADER, TRACE_HEADER, TRACE_STATE_HEADER
from balancer.extproc.wire import WireError
from balancer.proxy.attempts import Clocks
from balancer.proxy.messages import (
    ALREADY_EXISTS,
    INTERNAL,
    OK,
    RESOURCE_EXHAUSTED,
    Arrived,
    Metadata,
    ProxyAnswer,
    pushback,
)
from balancer.proxy.settings import ModelProxySection, ProxySettings

_OF_THE_WAY = frozenset(
    (
        *(REQUEST_ID_HEADER, GATEWAY_REQUEST_ID_HEADER, TRACE_HEADER, TRACE_STATE_HEADER),
        *("b3", "x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags", "x-ot-span-context"),
        # An address is a proxy's as often as a client's: sent again, a request may come by another one.
        *("x-forwarded-for", "x-forwarded-proto"),
    )
)


class Callers:
    def __init__(self) -> None:
        self.configure(ProxySettings())

    def configure(self, settings: ProxySettings) -> None:
        names = settings.names
        self._left_out = _OF_THE_WAY | {*settings.proxy.ignored_headers, names.rows, names.priority, names.deadline}

    def headers(self, arrived: Arrived) -> Metadata:
        there = frozenset(arrived.metadata)

        def counts(name: str, value: str | bytes) -> bool:
            plain = restricted.plain_name(name)
            # One in gRPC's form is a copy of ours where the other is there as well; else it may open a Triton.
            return (plain if (plain, value) in there else name) not in self._left_out

        return tuple((name, value) for name, value in arrived.metadata if counts(name, value))

    def key(self, arrived: Arrived) -> bytes:
        """Equal for requests of one caller, whatever the protocol; of bounded size."""
        headers = self.headers(arrived)
        there = frozenset(headers)
        # A copy says nothing new: who sends the one could have sent the other.
        counted = [
            (name, value)
            for name, value in headers
            if (plain := restricted.plain_name(name)) == name or (plain, value) not in there
        ]
        counted.sort(key=lambda header: header[0])  # the order of those of one name stays, as a worker may go by it
        return hashlib.blake2b(repr(counted).encode("utf-8", "backslashreplace"), digest_size=32).digest()


Running = TypeVar("Running")
Kept = TypeVar("Kept")
Key = tuple[object, ...]

_MOST_OF_TENANT = 0.5
_OVERHEAD_BYTES = 512


class Cache(Generic[Kept]):
    """Bounded by bytes; the least recently used go first, and none outlives its time."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.kept_bytes = 0
        self._entries: dict[Hashable, tuple[Kept, int, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, now_s: float) -> Kept | None:
        """The answer, which has then been used; None: there is none, or it is too old."""
        found = self._entries.pop(key, None)
        if found is None:
            return None
        kept, size_bytes, until_s = found
        if now_s >= until_s:
            self.kept_bytes -= size_bytes
            return None
        self._entries[key] = found
        return kept

    def put(self, key: Hashable, kept: Kept, size_bytes: int, until_s: float) -> None:
        size_bytes += _OVERHEAD_BYTES
        before = self._entries.pop(key, None)
        if before is not None:
            self.kept_bytes -= before[1]
        if size_bytes > self.most_bytes:
            return
        self._entries[key] = kept, size_bytes, until_s
        self.kept_bytes += size_bytes
        while self.kept_bytes > self.most_bytes:
            self.kept_bytes -= self._entries.pop(next(iter(self._entries)))[1]


@dataclass(slots=True)
class Entry(Generic[Running, Kept]):
    tenant: str
    running: Running | None
    """What executes it; None: it has ended."""
    kept: Kept | None = None
    """Its answer; None with `running` None: there was no room for that."""
    size_bytes: int = 0


class Once(Generic[Running, Kept]):
    """The ids of the last seconds, so that none is executed twice: bounded by number, and by bytes of answers kept.

    Where there is no room for another id, its request is refused: one that is forgotten could be executed again.
    """

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self.most_entries, self.most_bytes = most_entries, most_bytes
        self.kept_bytes = 0
        self._entries: dict[Key, Entry[Running, Kept]] = {}
        self._answers: dict[Key, None] = {}
        self._ends: list[tuple[float, int, Key]] = []
        self._ended = 0
        self._of_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Key, now_s: float) -> Entry[Running, Kept] | None:
        """What is known of an id; None: it is new."""
        self._forget(now_s)
        return self._entries.get(key)

    def has_room(self, tenant: str) -> bool:
        """Whether another id can be remembered, of this tenant, who may have a part of the room."""
        own = self._of_tenant[tenant] < max(1, self.most_entries * _MOST_OF_TENANT)
        return own and len(self._entries) < self.most_entries

    def begin(self, key: Key, tenant: str, running: Running) -> None:
        self._entries[key] = Entry(tenant, running)
        self._of_tenant[tenant] += 1

    def executed(self, key: Key, answer: Kept, size_bytes: int, until_s: float) -> None:
        """It has ended, and a worker may have executed it."""
        entry = self._entries[key]
        entry.running = None
        self._ended += 1
        heapq.heappush(self._ends, (until_s, self._ended, key))
        if size_bytes > self.most_bytes:
            return
        entry.kept, entry.size_bytes = answer, size_bytes
        self._answers[key] = None
        self.kept_bytes += size_bytes
        while self.kept_bytes > self.most_bytes:
            self._drop_answer(next(iter(self._answers)))

    def not_executed(self, key: Key) -> None:
        """It has ended, and certainly no worker began with it."""
        self._remove(key)

    def _forget(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            self._remove(heapq.heappop(self._ends)[2])

    def _remove(self, key: Key) -> None:
        self._drop_answer(key)
        entry = self._entries.pop(key)
        self._of_tenant[entry.tenant] -= 1
        if not self._of_tenant[entry.tenant]:
            del self._of_tenant[entry.tenant]

    def _drop_answer(self, key: Key) -> None:
        entry = self._entries[key]
        if key in self._answers:
            del self._answers[key]
            self.kept_bytes -= entry.size_bytes
            entry.kept, entry.size_bytes = None, 0


_LONGEST_S = 600.0
_CACHE_CONTROL = "cache-control"
_UNSHARED = {"no-cache", "no-store"}
_GONE = "this request was executed before, and its answer is no longer kept"
_FULL = "too many request ids are remembered; retry later, or send the request without an id"


class Unary(Protocol):
    async def infer(self, arrived: Arrived) -> ProxyAnswer: ...


class Flight:
    """One execution, and those who wait for it. Each may leave without the others noticing."""

    def __init__(self, work: Coroutine[Any, Any, ProxyAnswer], *, goes_on: bool) -> None:
        self._task = asyncio.create_task(work)
        self._goes_on = goes_on
        self._waiting = 0

    @property
    def over(self) -> bool:
        return self._task.done() or self._task.cancelling() > 0

    async def answer(self) -> ProxyAnswer:
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._goes_on:
                self._task.cancel()


class Sharing:
    def __init__(self, inner: Unary, clocks: Clocks, counts: Counter[tuple[str, str]], callers: Callers) -> None:
        self._inner, self._clocks, self._counts, self._callers = inner, clocks, counts, callers
        self._running: dict[Key, Flight] = {}
        self.once: Once[Flight, ProxyAnswer] = Once(0, 0)
        self.configure(ProxySettings())

    def configure(self, settings: ProxySettings) -> None:
        """From now on. Answers that are kept for equal requests are forgotten: what a model is may have changed."""
        self._settings = settings
        self.cache: Cache[ProxyAnswer] = Cache(settings.proxy.cache_bytes)
        self.once.most_entries, self.once.most_bytes = settings.constants.once_entries, settings.proxy.once_bytes

    async def infer(self, arrived: Arrived) -> ProxyAnswer:
        request, model = arrived.call.request, self._settings.of(arrived.call.request.model)
        if request.sequence:
            return await self._inner.infer(arrived)
        if model.once_s and arrived.call.triton_request_id:
            return await self._once(arrived, model)
        return await self._equal(arrived, model)

    async def _once(self, arrived: Arrived, model: ModelProxySection) -> ProxyAnswer:
        key = (*self._caller(arrived), arrived.call.triton_request_id, digest(arrived.data))
        while True:
            entry = self.once.find(key, self._clocks.now())
            if entry is None:
                return await self._first(key, arrived, model)
            if entry.running is None:
                self._counts["once", "answered" if entry.kept is not None else "forgotten"] += 1
                return entry.kept or ProxyAnswer(ALREADY_EXISTS, _GONE)
            answer = await entry.running.answer()
            if not answer.unexecuted:
                self._counts["once", "joined"] += 1
                return _shared(answer)

    async def _first(self, key: Key, arrived: Arrived, model: ModelProxySection) -> ProxyAnswer:
        # Sent again where nothing was executed, but not where it may have been.
        alone = replace(self._without_deadline(arrived), repeatable=False, hedged=False)
        tenant = arrived.call.request.tenant
        if not self.once.has_room(tenant):
            self._counts["once", "no_room"] += 1
            return pushback(
                ProxyAnswer(RESOURCE_EXHAUSTED, _FULL, unexecuted=True), self._settings.constants.pushback_s
            )
        self._counts["once", "new"] += 1
        flight = Flight(self._executed(key, alone, model), goes_on=True)
        self.once.begin(key, tenant, flight)
        return await flight.answer()

    async def _executed(self, key: Key, arrived: Arrived, model: ModelProxySection) -> ProxyAnswer:
        answer = ProxyAnswer(INTERNAL)
        try:
            answer = await self._inner.infer(arrived)
        finally:
            if answer.unexecuted and answer.code != OK:
                self.once.not_executed(key)
            else:
                kept = _shared(answer)
                self.once.executed(key, kept, len(kept.data), self._clocks.now() + model.once_s)
        return answer

    async def _equal(self, arrived: Arrived, model: ModelProxySection) -> ProxyAnswer:
        # What is in a region may be another thing each time, and whoever asks for an output there waits for it there.
        if not model.cache_ttl_s or arrived.in_memory or _header(arrived, _CACHE_CONTROL) in _UNSHARED:
            return await self._inner.infer(arrived)
        name = arrived.call.triton_request_id
        key = (*self._caller(arrived), digest(arrived.data, arrived.id_spans))
        kept = self.cache.get(key, self._clocks.now())
        if kept is not None:
            self._counts["cache", "hit"] += 1
            return replace(kept, data=with_id(kept.data, name))
        flight = self._running.get(key)
        joined = flight is not None and not flight.over
        if flight is None or not joined:
            self._counts["cache", "miss"] += 1
            flight = self._running[key] = Flight(self._kept(key, self._without_deadline(arrived), model), goes_on=False)
        answer = await flight.answer()
        if not joined:
            return answer
        if answer.code != OK and answer.unexecuted:
            # What kept that one from being executed may not hold for this one: its deadline, its priority.
            return await self._inner.infer(arrived)
        try:
            answer = replace(_shared(answer), data=with_id(answer.data, name) if answer.code == OK else b"")
        except WireError:
            return await self._inner.infer(arrived)
        self._counts["cache", "joined"] += 1
        return answer

    async def _kept(self, key: Key, arrived: Arrived, model: ModelProxySection) -> ProxyAnswer:
        cache = self.cache
        mine = self._running.get(key)
        try:
            answer = await self._inner.infer(arrived)
        finally:
            if self._running.get(key) is mine:
                self._running.pop(key, None)
        if answer.code == OK:
            try:
                kept = replace(_shared(answer), data=with_id(answer.data, ""))
            except WireError:
                return answer
            cache.put(key, kept, len(kept.data), self._clocks.now() + model.cache_ttl_s)
        return answer

    def _caller(self, arrived: Arrived) -> Key:
        """Who may see an answer: callers for whom other rules hold share nothing."""
        return arrived.call.request.tenant, arrived.call.request.model, self._callers.key(arrived)

    def _without_deadline(self, arrived: Arrived) -> Arrived:
        return replace(arrived, deadline_s=self._clocks.now() + _LONGEST_S)


def _shared(answer: ProxyAnswer) -> ProxyAnswer:
    """The same for another request: no worker answered that one."""
    return replace(answer, worker="", latency_s=nan, initial=(), trailing=(), policy="", by="")


def _header(arrived: Arrived, name: str) -> str:
    found = [value for key, value in arrived.metadata if key == name and isinstance(value, str)]
    return found[-1] if found else ""
