"""Workers from pods: a `WorkerSource` over the watch's thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable

from balancer.discovery.pods.api import Access, PodApi
from balancer.discovery.pods.watch import PodsWanted, PodWatch, WatchCounts
from balancer.discovery.workers import WorkerSpec


class PodSource:
    """A `WorkerSource` that watches the pods of a namespace. While the API is away, it yields nothing."""

    def __init__(self, wanted: PodsWanted, connect: Callable[[Access], PodApi] = PodApi) -> None:
        self._wanted = wanted
        self._connect = connect
        self.counts = WatchCounts()

    async def updates(self, stop: asyncio.Event) -> AsyncGenerator[tuple[WorkerSpec, ...], None]:
        """The list of workers, first as it is and then after every change, until `stop` is set. Of lists that come
        faster than they are taken, the newest.
        """
        newest = _Newest(asyncio.get_running_loop())
        watch = PodWatch(self._wanted, newest.put, self.counts, self._connect)
        watch.start()
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(lambda _: newest.there.set())
        try:
            while True:
                await newest.there.wait()
                if stop.is_set():
                    return
                yield newest.take()
        finally:
            watch.stop()
            stopped.cancel()


class _Newest:
    """Holds the newest list, from the watch's thread to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._workers: tuple[WorkerSpec, ...] | None = None
        self.there = asyncio.Event()

    def put(self, workers: tuple[WorkerSpec, ...]) -> None:
        """From the thread. Only the first of several that were not taken yet wakes the loop."""
        with self._lock:
            wakes, self._workers = self._workers is None, workers
        if wakes:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self.there.set)

    def take(self) -> tuple[WorkerSpec, ...]:
        """In the loop, once `there` is set."""
        with self._lock:
            workers, self._workers = self._workers, None
            self.there.clear()
        assert workers is not None
        return workers
