"""The text that Prometheus scrapes: made in slices while requests are served, at most once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

PERIOD_S = 1.0
"""A text is served for so long before another is made, however many ask."""
_HEAD_LINES = 2
"""HELP and TYPE, which stand before the first slice of a family alone."""


class _One(Collector):
    """A registry of one family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """Yield it."""
        yield self._metric


class Exposition:
    """The text of one registry."""

    def __init__(self, registry: Collector, clock: Callable[[], float], prepare: Callable[[], None]) -> None:
        """`clock` in seconds, which never goes back; `prepare` is called before a text is made."""
        self._registry = registry
        self._clock = clock
        self._prepare = prepare
        self._text = b""
        self._made_s = -PERIOD_S
        self._making: asyncio.Task[None] | None = None

    def slices(self) -> Iterator[bytes]:
        """The text in parts, each made when it is asked for."""
        before = ""
        self._prepare()
        for metric in self._registry.collect():
            text = generate_latest(_One(metric))
            yield text if metric.name != before else text.split(b"\n", _HEAD_LINES)[_HEAD_LINES]
            before = metric.name

    async def latest(self) -> bytes:
        """The text, no older than a second and what it takes to make one; those who ask meanwhile share it."""
        if self._clock() - self._made_s >= PERIOD_S:
            if self._making is None:
                self._making = asyncio.create_task(self._make())
                self._making.add_done_callback(self._made)
            # Who asked first may leave; the others still want it.
            await asyncio.shield(self._making)
        return self._text

    async def _make(self) -> None:
        made_s = self._clock()
        parts = []
        for part in self.slices():
            parts.append(part)
            # Whatever came meanwhile goes first.
            await asyncio.sleep(0)
        self._text, self._made_s = b"".join(parts), made_s

    def _made(self, task: asyncio.Task[None]) -> None:
        self._making = None
        if not task.cancelled():
            # Who asked is told of an error; where all have left, there is nobody to tell.
            task.exception()
