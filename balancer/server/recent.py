"""The last few seconds of traffic in numbers, for a person who looks on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from policies.base import FloatArray

_MOST = 20_000
"""Outcomes kept: beyond that many in the window, the newest stand for all."""


class Of(NamedTuple):
    """What outcomes are told apart by, for people."""

    model: str
    """As a label."""
    worker: str
    """That served; empty: none."""
    policy: str
    """Whose pick it was; empty: nobody's of this process."""


NOBODY = Of("", "", "")


class Part(NamedTuple):
    """The outcomes of the window that are alike."""

    of: Of
    ok: bool
    picked: bool
    latency_s: FloatArray
    """Of each; NaN: not measured."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Traffic within a window."""

    window_s: float
    rate_per_s: float
    p50_s: float
    """NaN where nothing was measured."""
    p99_s: float
    errors: int
    """Inferences that a worker or the gateway failed."""
    picked: int
    """Of the requests in the window, those whose worker this process picked."""
    without_pick: int
    """And those that Envoy placed by itself."""


class Recent:
    """A sliding window over the outcomes of inferences; probes and questions about models are no traffic."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._outcomes: deque[tuple[float, float, bool, bool, Of]] = deque(maxlen=_MOST)

    def add(self, at_s: Sequence[float], latency_s: Sequence[float], ok: bool, picked: bool, of: Of = NOBODY) -> None:
        """Take in the outcomes of inferences; without a latency (NaN) one counts towards rate and errors alone.

        `ok` is False where the worker or the gateway failed, not where a client's mistake was refused.
        """
        self._outcomes.extend(zip(at_s, latency_s, repeat(ok), repeat(picked), repeat(of)))
        # Else the memory of a process that nobody looks at would grow until there is no more room.
        self._let_go(at_s[-1])

    def summary(self, now_s: float) -> Summary:
        """The window that ends now."""
        outcomes, span_s = self._outcomes, self._span_s(now_s)
        p50_s, p99_s = quantiles(np.array([latency_s for _, latency_s, ok, _, _ in outcomes if ok]))
        return Summary(
            self._window_s,
            len(outcomes) / span_s,
            p50_s,
            p99_s,
            errors=sum(not ok for _, _, ok, _, _ in outcomes),
            picked=sum(picked for *_, picked, _ in outcomes),
            without_pick=sum(not picked for *_, picked, _ in outcomes),
        )

    def parts(self, now_s: float) -> tuple[float, list[Part]]:
        """How long the window that ends now is, in seconds, and its outcomes in groups."""
        span_s = self._span_s(now_s)
        groups: dict[tuple[Of, bool, bool], list[float]] = {}
        for _, latency_s, ok, picked, of in self._outcomes:
            groups.setdefault((of, ok, picked), []).append(latency_s)
        return span_s, [Part(*alike, np.array(latencies)) for alike, latencies in groups.items()]

    def _span_s(self, now_s: float) -> float:
        """How long the window is, which is less where there were too many."""
        outcomes = self._outcomes
        self._let_go(now_s)
        return max(now_s - outcomes[0][0] if len(outcomes) == _MOST else self._window_s, 1e-9)

    def _let_go(self, now_s: float) -> None:
        """Of what is older than the window."""
        outcomes = self._outcomes
        while outcomes and outcomes[0][0] < now_s - self._window_s:
            outcomes.popleft()


def quantiles(latency_s: FloatArray) -> tuple[float, float]:
    """p50 and p99 of what was measured, as `numpy.quantile` at a tenth of its price; NaN where nothing was."""
    measured = latency_s[np.isfinite(latency_s)]
    if not len(measured):
        return math.nan, math.nan
    measured.sort()
    p50_s, p99_s = (_between(measured, share * (len(measured) - 1)) for share in (0.5, 0.99))
    return p50_s, p99_s


def _between(measured: FloatArray, at: float) -> float:
    """The value at a place that may lie between two."""
    low = int(at)
    below, above = float(measured[low]), float(measured[min(low + 1, len(measured) - 1)])
    return below + (at - low) * (above - below)
