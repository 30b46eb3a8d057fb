"""Requests that wait for capacity, while their callers wait for the answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from typing import Any, Protocol

from balancer.kernel.settings import HoldingSettings
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.holding.capacity import batches_there
from balancer.scheduler.holding.waiting import Departure, Waiting
from policies.base import Request

_MARGIN_S = 0.2
_MOST_SHOWN = 20


def longest_answer_s(held_s: float) -> float:
    """How long Envoy waits for a request that may be held for so many seconds."""
    return held_s + _MARGIN_S


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


class HoldingListener(Protocol):
    """Is called with what became of those who waited."""

    def held(self, request: Request, seconds: float, how: str) -> None:
        """A request waits no longer: `placed`, `refused` or `withdrawn`, after so many seconds."""

    def failed_internally(self, error: Exception) -> None:
        """An internal error kept a dispatch from its end."""


class Holding:
    """The waiting room of one router, in one event loop. Whoever has the router observe something calls `soon`."""

    def __init__(self, router: AnyRouter, clock: Callable[[], float]) -> None:
        """`clock`: the event loop's."""
        self.waiting = Waiting(router)
        self._clock = clock
        self.listener: HoldingListener | None = None
        self._futures: dict[int, asyncio.Future[Decision | RoutingError]] = {}
        self._settings: HoldingSettings | None = None
        self._dispatch_is_due = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        return bool(self.waiting.settings.models)

    def ask(
        self, request: Request, subset: Collection[str] | None, size_bytes: int
    ) -> asyncio.Future[Decision | RoutingError]:
        """Hold a request; the future is done at once where a worker has capacity.

        Raises:
            RoutingError: no worker may serve it.
        """
        now_s = self._clock()
        place = self.waiting.hold(request, now_s, subset, size_bytes)
        future = self._futures[place] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: self._leave(place, request, now_s) if done.cancelled() else None)
        self.dispatch()
        return future

    def soon(self) -> None:
        """Something happened: ask again, once for all that happens now."""
        if self._futures and not self._dispatch_is_due:
            self._dispatch_is_due = True
            asyncio.get_running_loop().call_soon(self.dispatch)

    def dispatch(self) -> None:
        self._dispatch_is_due = False
        try:
            if self._settings != self.waiting.settings:
                self._take_settings()
            now_s = self._clock()
            self._settle(self.waiting.expire(now_s), now_s)
            self._settle(self.waiting.dispatch(now_s), now_s)
        except Exception as error:  # a policy of somebody else's may raise anything
            if self.listener is not None:
                self.listener.failed_internally(error)
        self._arm()

    def place_all(self) -> None:
        """Nobody waits any longer: before the process ends."""
        now_s = self._clock()
        self._settle(self.waiting.place_all(now_s), now_s)

    def explain(self, model: str, now_s: float) -> dict[str, Any]:
        """Who waits for a worker with the model, in order, and what each worker has to do; empty: nobody may wait."""
        waiting, settings = self.waiting, self.waiting.settings
        if model not in settings.models:
            return {}
        ahead = [(ahead, waiting.waiters[place]) for ahead, place in enumerate(waiting.places())]
        shown = [
            {
                "ahead": before,
                "waited_s": now_s - waiter.since_s,
                "deadline_in_s": _finite(waiter.request.deadline_s - (now_s - waiter.since_s)),
                "priority": waiter.request.priority,
                "tenant": waiter.request.tenant,
            }
            for before, waiter in ahead
            if waiter.request.model == model
        ]
        why = {"order": settings.order, "window_batches": settings.models[model].window_batches}
        router = waiting.router
        column = router.fleet.column(model)
        batches = {name: batches_there(router.fleet, row, column, now_s) for row, name in enumerate(router.fleet.names)}
        return {"held": {"count": len(shown), "first": shown[:_MOST_SHOWN], **why, "unfinished_batches": batches}}

    def _take_settings(self) -> None:
        """Whose model is not held any more waits no longer. All others wait on, by the order that is in force now."""
        now_s = self._clock()
        self._settle(self.waiting.place_all(now_s, but=self.waiting.settings.models), now_s)
        self._settings = self.waiting.settings

    def _settle(self, gone: list[Departure], now_s: float) -> None:
        for left in gone:
            future = self._futures.pop(left.place)
            if not future.done():
                future.set_result(left.outcome)
            refused = isinstance(left.outcome, RoutingError)
            self._count(left.request, now_s - left.since_s, "refused" if refused else "placed")

    def _count(self, request: Request, seconds: float, how: str) -> None:
        if self.listener is not None:
            self.listener.held(request, seconds, how)

    def _leave(self, place: int, request: Request, since_s: float) -> None:
        """Whoever asked is gone. Callbacks come later: the place may be another's by now."""
        future = self._futures.get(place)
        if future is not None and future.cancelled():
            del self._futures[place]
            self.waiting.withdraw(place)
            self._count(request, self._clock() - since_s, "withdrawn")

    def _arm(self) -> None:
        """Come back when somebody will have waited for as long as may be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._futures:
            delay_s = max(self.waiting.due_s - self._clock(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.dispatch)
