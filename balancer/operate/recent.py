"""The last few seconds of traffic in numbers, for a person who looks on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

_MOST = 20_000
"""Outcomes kept: beyond that many in the window, the newest stand for all."""


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
        self._outcomes: deque[tuple[float, float, bool, bool]] = deque(maxlen=_MOST)

    def add(self, at_s: Sequence[float], latency_s: Sequence[float], ok: bool, picked: bool) -> None:
        """Take in the outcomes of inferences; without a latency (NaN) one counts towards rate and errors alone.

        `ok` is False where the worker or the gateway failed, not where a client's mistake was refused.
        """
        self._outcomes.extend(zip(at_s, latency_s, repeat(ok), repeat(picked)))

    def summary(self, now_s: float) -> Summary:
        """The window that ends now."""
        outcomes = self._outcomes
        while outcomes and outcomes[0][0] < now_s - self._window_s:
            outcomes.popleft()
        span_s = now_s - outcomes[0][0] if len(outcomes) == _MOST else self._window_s
        latencies = np.array([latency_s for _, latency_s, ok, _ in outcomes if ok])
        measured = latencies[np.isfinite(latencies)]
        p50_s, p99_s = np.quantile(measured, [0.5, 0.99]) if len(measured) else (np.nan, np.nan)
        return Summary(
            self._window_s,
            len(outcomes) / max(span_s, 1e-9),
            float(p50_s),
            float(p99_s),
            errors=sum(not ok for _, _, ok, _ in outcomes),
            picked=sum(picked for *_, picked in outcomes),
            without_pick=sum(not picked for *_, picked in outcomes),
        )
