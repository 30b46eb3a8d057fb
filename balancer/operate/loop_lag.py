"""How late the event loop is: what all that this process does waits for, whatever kept the loop busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD_S = 0.05


class LoopLag:
    """Asks to be called every 50 ms, and tells by how many seconds each call was late."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        loop = asyncio.get_running_loop()
        self._due(loop, loop.time() + PERIOD_S)

    def stop(self) -> None:
        """End."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        self._handle = loop.call_at(at_s, self._called, loop, at_s)

    def _called(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        now_s = loop.time()
        self._observe(max(now_s - at_s, 0.0))
        self._due(loop, now_s + PERIOD_S)
