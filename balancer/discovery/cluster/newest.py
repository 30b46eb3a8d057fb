"""From the thread of a watch to the event loop: of what comes faster than it is taken, the newest."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Generic, Protocol, TypeVar

Told = TypeVar("Told")


class Watch(Protocol):
    """Something that tells from a thread of its own."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End; does not wait for the thread."""


async def newest_of(make: Callable[[Callable[[Told], None]], Watch], stop: asyncio.Event) -> AsyncGenerator[Told, None]:
    """What a watch tells, until `stop` is set; `make` is given where it is to be told."""
    newest: _Newest[Told] = _Newest(asyncio.get_running_loop())
    watch = make(newest.put)
    watch.start()
    stopped = asyncio.create_task(stop.wait())
    stopped.add_done_callback(lambda _: newest.there.set())
    try:
        while True:
            await newest.there.wait()
            if stop.is_set():
                return
            for told in newest.take():
                yield told
    finally:
        watch.stop()
        stopped.cancel()


class _Newest(Generic[Told]):
    """Holds the newest that was told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._told: list[Told] = []
        """One, or none where it was taken."""
        self.there = asyncio.Event()

    def put(self, told: Told) -> None:
        """From the thread. Only the first of several that were not taken yet wakes the loop."""
        with self._lock:
            wakes, self._told = not self._told, [told]
        if wakes:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self.there.set)

    def take(self) -> list[Told]:
        """In the loop, once `there` is set."""
        with self._lock:
            told, self._told = self._told, []
            self.there.clear()
        return told
