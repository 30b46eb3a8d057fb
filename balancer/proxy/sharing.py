"""Requests that share one execution: those of one id, and, for models that allow it, equal ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from math import nan
from typing import Any, Protocol

from balancer.extproc.inference_bytes import digest, with_id
from balancer.extproc.wire import WireError
from balancer.proxy.attempts import Clocks
from balancer.proxy.callers import Callers
from balancer.proxy.messages import ALREADY_EXISTS, INTERNAL, OK, RESOURCE_EXHAUSTED, Arrived, ProxyAnswer, pushback
from balancer.proxy.rules.kept import Cache, Key, Once
from balancer.proxy.settings import ModelProxySection, ProxySettings

_LONGEST_S = 600.0
"""Of an execution that goes on although its client has left."""
_CACHE_CONTROL = "cache-control"
_UNSHARED = {"no-cache", "no-store"}
_GONE = "this request was executed before, and its answer is no longer kept"
_FULL = "too many request ids are remembered; retry later, or send the request without an id"


class Unary(Protocol):
    async def infer(self, arrived: Arrived) -> ProxyAnswer:
        """The answer to one."""


class Flight:
    """One execution, and those who wait for it. Each may leave without the others noticing."""

    def __init__(self, work: Coroutine[Any, Any, ProxyAnswer], *, goes_on: bool) -> None:
        """`goes_on`: also when nobody waits any more."""
        self._task = asyncio.create_task(work)
        self._goes_on = goes_on
        self._waiting = 0

    @property
    def over(self) -> bool:
        """Whether nobody can join any more."""
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
        """Execute an id's request, unless it was or is being executed."""
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
        """Whoever waits ends the wait by himself."""
        return replace(arrived, deadline_s=self._clocks.now() + _LONGEST_S)


def _shared(answer: ProxyAnswer) -> ProxyAnswer:
    """The same for another request: no worker answered that one."""
    return replace(answer, worker="", latency_s=nan, initial=(), trailing=(), policy="", by="")


def _header(arrived: Arrived, name: str) -> str:
    found = [value for key, value in arrived.metadata if key == name and isinstance(value, str)]
    return found[-1] if found else ""
