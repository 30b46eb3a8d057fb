"""When a Triton last did something, and how long it has to be quiet until nothing executes there."""

from __future__ import annotations

import math
from collections.abc import Iterable

from balancer.scheduler.events import ModelReport

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
