"""Whether requests flow: what follows them is done at full rate then, and rarely else."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable

from balancer.kernel.settings import Settings
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.selector import PolicySelector
from balancer.server.internal_errors import InternalErrors

QUIET_AFTER_S = 2.0
"""Since the last request that was decided or in flight."""
MOST_PAUSE_S = 0.5
"""Between two reports of an agent."""
_LOOK_S, _QUIET_LOOK_S = 0.025, 0.25
_TICK_S, _QUIET_TICK_S = 0.05, 0.5


class Traffic:
    """Of one router, whoever decides: this process, or Envoys over the same state."""

    def __init__(self, router: AnyRouter, clock: Callable[[], float], ready: Callable[[], bool] = lambda: True) -> None:
        """`clock`: in seconds; before it is `ready`, all is done at full rate."""
        self._router, self._clock, self._ready = router, clock, ready
        self._number = self._revision = -1
        self._seen_s = math.inf
        self._is_due = self._is_quiet = False
        self._woken = asyncio.Event()

    def flows(self) -> bool:
        """Whether requests flow. A request that came and ended since the last call has left its number."""
        now_s, number = self._clock(), self._router.next_number
        if number != self._number or self._router.fleet.queue.in_flight.any() or not self._ready():
            self._number, self._seen_s = number, now_s
        was_quiet, self._is_quiet = self._is_quiet, now_s - self._seen_s >= QUIET_AFTER_S
        if was_quiet and not self._is_quiet:
            self._woken.set()
        return not self._is_quiet

    def noticing(self, may_pick: Callable[[], bool]) -> Callable[[], bool]:
        """`may_pick`, to be called at each request: so the first one after a pause is noticed at once."""

        def noticed() -> bool:
            if self._is_quiet:
                self._seen_s, self._is_quiet = self._clock(), False
                self._woken.set()
            return may_pick()

        return noticed

    def report_pause_s(self) -> float:
        """Seconds that may pass between two reports now; 0: requests flow."""
        return 0.0 if self.flows() else quiet_pause_s(self._router.settings, self._router.selector)

    def tick_soon(self) -> None:
        self._is_due = True
        self._woken.set()

    async def follow(
        self,
        stop: asyncio.Event,
        tick: Callable[[float], Awaitable[None]],
        began: Callable[[], Awaitable[None]],
        internal_errors: InternalErrors,
    ) -> None:
        """Until `stop` is set, call `tick` as time passes and workers change, `began` when requests begin to flow."""
        flows, flowed, due_s = True, True, -math.inf
        while not stop.is_set():
            try:
                now_s, fleet, flows = self._clock(), self._router.fleet, self.flows()
                if flows and not flowed:
                    await began()
                flowed = flows
                if now_s >= due_s or self._is_due or self._revision != fleet.revision:
                    due_s = now_s + (_TICK_S if flows else _QUIET_TICK_S)
                    self._is_due, self._revision = False, fleet.revision
                    await tick(now_s)
            except Exception as error:  # what fails once may well do so at each tick, and requests go on meanwhile
                internal_errors.caught("tick", error)
            if flows:
                await asyncio.sleep(_LOOK_S)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_QUIET_LOOK_S):
                        await self._woken.wait()
                self._woken.clear()


def quiet_pause_s(settings: Settings, selector: PolicySelector | None) -> float:
    """Seconds between two reports while no requests flow: nobody is to take them for old."""
    plan = None if selector is None else selector.plan
    guards = () if plan is None else (plan.guard, plan.guard_new, None if plan.rollout is None else plan.rollout.guard)
    ages_s = [guard.report_age_s / 2 for guard in guards if guard is not None]
    return min(MOST_PAUSE_S, settings.stale_after_s / 3, *ages_s)
