"""How long a Triton has to be quiet until nothing executes there."""

from __future__ import annotations

from collections.abc import Iterable

from balancer.scheduler.events import ModelReport

_LEAST_QUIET_S = 0.3
_MOST_QUIET_S = 10.0
_QUIET_SERVICE_TIMES = 2.0


def is_busy(models: Iterable[ModelReport]) -> bool:
    """Whether something waits or executes, as far as Triton says."""
    return any(model.pending > 0 or model.executing > 0 for model in models)


def ended(models: Iterable[ModelReport]) -> int:
    return sum(model.succeeded + model.failed for model in models)


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
