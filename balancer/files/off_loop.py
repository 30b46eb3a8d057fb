"""Blocking calls in a thread, with a time limit: a network file system that hangs must hold up neither the event loop,
nor the end of the process, nor pile up threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OffLoop(Generic[T]):
    """Runs one call at a time in a thread of its own. Belongs to the event loop that awaits it."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._running: asyncio.Future[T] | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """What `call` returns or raises. While an earlier call still hangs, no other is started.

        Raises:
            TimeoutError: it took longer than the limit; a call that was started goes on by itself.
        """
        async with asyncio.timeout(self.limit_s):
            while self._running is not None:
                await asyncio.wait([self._running])
            self._running = self._start(call)
            # Shielded: who stops waiting does not stop the thread.
            return await asyncio.shield(self._running)

    def _start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            self._running = None
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]  # without an error there is a result
            else:
                future.set_exception(error)
                future.exception()  # nobody may be waiting any more

        def work() -> None:
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(done, result, error)

        # A daemon, unlike the threads of asyncio.to_thread: the process may end while it hangs.
        threading.Thread(target=work, name="off-loop", daemon=True).start()
        return future
