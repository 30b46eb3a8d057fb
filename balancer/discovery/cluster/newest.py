"""From the thread of a watch to the event loop: of what comes faster than it is taken, the newest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Watch(Protocol):
    """Something that publishes from a thread of its own."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End; does not wait for the thread."""


async def newest_of(make: Callable[[Callable[[Item], None]], Watch], stop: asyncio.Event) -> AsyncGenerator[Item, None]:
    """What a watch publishes, until `stop` is set; `make` gets the function that publishes."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Item]()

    def publish(item: Item) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(queue.put_nowait, item)

    watch = make(publish)
    watch.start()
    stopped = asyncio.create_task(stop.wait())
    try:
        while True:
            item = asyncio.create_task(queue.get())
            await asyncio.wait((item, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                item.cancel()
                return
            newest = item.result()
            while not queue.empty():
                newest = queue.get_nowait()
            yield newest
    finally:
        watch.stop()
        stopped.cancel()
