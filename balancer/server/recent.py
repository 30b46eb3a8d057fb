"""The last few seconds of traffic in numbers, for people."""

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


class OutcomeKey(NamedTuple):
    model: str
    worker: str
    """That served; empty: none."""
    policy: str
    """Whose pick it was; empty: nobody's of this process."""


class RecentOutcomes(NamedTuple):
    of: OutcomeKey
    ok: bool
    picked: bool
    latency_s: FloatArray
    """Of each; NaN: not measured."""


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    rate_per_s: float
    errors: int
    p50_s: float | None
    """NaN (as JSON: null) where nothing was measured, as the next."""
    p99_s: float | None


class Recent:
    """A sliding window over the outcomes of inferences; probes and questions about models are no traffic."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._outcomes: deque[tuple[float, float, bool, bool, OutcomeKey]] = deque(maxlen=_MOST)

    def add(self, at_s: Sequence[float], latency_s: Sequence[float], ok: bool, picked: bool, of: OutcomeKey) -> None:
        """Take in the outcomes of inferences; without a latency (NaN) one counts towards rate and errors alone.

        `ok` is False where the worker or the gateway failed, not where an invalid request was refused.
        """
        self._outcomes.extend(zip(at_s, latency_s, repeat(ok), repeat(picked), repeat(of)))
        # Else the memory of a process that nobody looks at would grow until there is no more room.
        self._let_go(at_s[-1])

    def parts(self, now_s: float) -> tuple[float, list[RecentOutcomes]]:
        """How long the window that ends now is, in seconds, less where there were too many; its outcomes in groups."""
        self._let_go(now_s)
        outcomes = self._outcomes
        span_s = max(now_s - outcomes[0][0] if len(outcomes) == _MOST else self._window_s, 1e-9)
        groups: dict[tuple[OutcomeKey, bool, bool], list[float]] = {}
        for _, latency_s, ok, picked, of in outcomes:
            groups.setdefault((of, ok, picked), []).append(latency_s)
        return span_s, [RecentOutcomes(*alike, np.array(latencies)) for alike, latencies in groups.items()]

    def _let_go(self, now_s: float) -> None:
        outcomes = self._outcomes
        while outcomes and outcomes[0][0] < now_s - self._window_s:
            outcomes.popleft()


def summary(span_s: float, parts: Sequence[RecentOutcomes]) -> TrafficSummary:
    count = sum(len(part.latency_s) for part in parts)
    errors = sum(len(part.latency_s) for part in parts if not part.ok)
    p50_s, p99_s = _quantiles([part.latency_s for part in parts if part.ok])
    return TrafficSummary(count / span_s, errors, p50_s, p99_s)


def picked(parts: Sequence[RecentOutcomes]) -> dict[str, int]:
    """How many requests got their worker from this process, and how many Envoy placed by itself."""
    counts = [(part.picked, len(part.latency_s)) for part in parts]
    by_us = sum(count for picked, count in counts if picked)
    return {"picked": by_us, "without_pick": sum(count for _, count in counts) - by_us}


def _quantiles(latencies_s: Sequence[FloatArray]) -> tuple[float, float]:
    """p50 and p99 of what was measured, as `numpy.quantile` at a tenth of its price; NaN where nothing was."""
    measured = np.concatenate(latencies_s) if latencies_s else np.zeros(0)
    measured = measured[np.isfinite(measured)]
    if not len(measured):
        return math.nan, math.nan
    measured.sort()
    p50_s, p99_s = (_between(measured, share * (len(measured) - 1)) for share in (0.5, 0.99))
    return p50_s, p99_s


def _between(measured: FloatArray, at: float) -> float:
    low = int(at)
    below, above = float(measured[low]), float(measured[min(low + 1, len(measured) - 1)])
    return below + (at - low) * (above - below)
