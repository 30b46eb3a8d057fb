"""When a Triton is quiet: how long until nothing executes there, and how often its agent looks meanwhile."""

import asyncio
import contextlib
import math
from collections.abc import Iterable

from balancer.agent.server_state import ServerState
from balancer.scheduler.events import ModelReport

QUIET_AFTER_S = 2.0
"""Since the last request ended."""
_LEAST_QUIET_S = 0.3
_MOST_QUIET_S = 10.0
_QUIET_SERVICE_TIMES = 2.0


class Activity:
    """When a Triton was last seen to do something, by what it reports of its models."""

    def __init__(self, busy_s: float = -math.inf) -> None:
        """`busy_s`: when it is taken to have been busy before it was looked at, on the clock of `observe`."""
        self.busy_s = busy_s
        self.finished = -1
        """Requests that had ended, well or not, at the last look; -1: there was none."""
        self._models: tuple[ModelReport, ...] = ()

    def observe(self, models: tuple[ModelReport, ...], now_s: float, *, busy: bool = False) -> None:
        """Take in what it says now; `busy`: it counts as busy whatever that is."""
        finished = sum(model.succeeded + model.failed for model in models)
        if busy or finished != self.finished or any(model.pending > 0 or model.executing > 0 for model in models):
            self.busy_s = now_s
        self.finished, self._models = finished, models

    @property
    def quiet_needed_s(self) -> float:
        """For how long nothing may happen before nothing executes."""
        return quiet_s(self._models)


def quiet_s(models: Iterable[ModelReport]) -> float:
    """How long nothing may end before nothing executes.

    Triton does not say which requests execute: its counters move when one ends. What began before twice the longest
    mean time of a batch (0.3 to 10 s) would have ended since.
    """
    longest_s = max(
        (seconds / executions for model in models for _, executions, seconds in model.batches if executions),
        default=0.0,
    )
    return min(max(_LEAST_QUIET_S, _QUIET_SERVICE_TIMES * longest_s), _MOST_QUIET_S)


class Pace:
    """Quiet: no balancer sends requests, and nothing is queued, executes or has ended at Triton of late."""

    def __init__(self) -> None:
        self._activity = Activity()
        self._flows = asyncio.Event()
        self._flows.set()
        self._pause_s = 0.0

    def observe(self, triton: ServerState, allowed_s: float, now_s: float) -> float:
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
        self._flows.set()

    async def pause(self, full_s: float) -> None:
        """Return after so many seconds; while all is quiet, after more, and as soon as something happens."""
        if self._flows.is_set():
            await asyncio.sleep(full_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._pause_s, full_s)):
                await self._flows.wait()
