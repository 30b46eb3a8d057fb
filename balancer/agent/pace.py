"""How often an agent looks at its Triton: at full rate while anything happens, some three times a second else."""

from __future__ import annotations

import asyncio
import contextlib

from balancer.agent.quiet import Activity
from balancer.agent.triton_source import TritonState

QUIET_AFTER_S = 2.0
"""Since the last request ended."""


class Pace:
    """Quiet: no balancer sends requests, and nothing is queued, executes or has ended at Triton of late."""

    def __init__(self) -> None:
        self._activity = Activity()
        self._flows = asyncio.Event()
        self._flows.set()
        self._pause_s = 0.0

    def observe(self, triton: TritonState, allowed_s: float, now_s: float) -> float:
        """Take in what Triton says; returns the seconds until the next look, 0: as few as can be.

        Args:
            triton: What was read.
            allowed_s: What the balancers allow; 0: requests flow.
            now_s: On any clock that only grows.
        """
        self._activity.observe(triton.models, now_s, busy=not triton.ready)
        self._pause_s = allowed_s if now_s - self._activity.busy_s >= QUIET_AFTER_S else 0.0
        if self._pause_s:
            self._flows.clear()
        else:
            self._flows.set()
        return self._pause_s

    def wake(self) -> None:
        """Something happens, so that all who pause go on."""
        self._flows.set()

    async def pause(self, full_s: float) -> None:
        """Return after so many seconds; while all is quiet, after more, and as soon as something happens."""
        if self._flows.is_set():
            await asyncio.sleep(full_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._pause_s, full_s)):
                await self._flows.wait()
