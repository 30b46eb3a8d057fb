"""Which of several models serves a request. Pure: how long each is expected to take is an argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Expected = Callable[[str], float | None]
"""Seconds that a model's best worker is expected to take; None: it has no worker."""

_ANSWER_SHARE, _LEAST_ANSWER_S, _MOST_ANSWER_S = 0.1, 0.01, 0.1


def answer_s(time_s: float) -> float:
    """What of a request's time is left for the way of an answer to its client: a tenth, within bounds."""
    return min(_MOST_ANSWER_S, max(_LEAST_ANSWER_S, _ANSWER_SHARE * time_s))


def in_time(models: Sequence[str], expected: Expected, left_s: float) -> str | None:
    """The first that is expected to be done in time; else the last that has a worker; None: none has."""
    chosen = None
    for model in models:
        expected_s = expected(model)
        if expected_s is not None:
            chosen = model
            if expected_s <= left_s:
                break
    return chosen


def next_step(models: Sequence[str], expected: Expected, left_s: float) -> tuple[str | None, bool]:
    """Of models that were not asked yet, the first that has a worker and is expected to be done in time; and whether
    one was passed over because it is not."""
    late = False
    for model in models:
        expected_s = expected(model)
        if expected_s is not None:
            if expected_s <= left_s:
                return model, late
            late = True
    return None, late
