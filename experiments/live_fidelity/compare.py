"""The simulated session held against the live one: errors, intervals and ranking. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from experiments.live_fidelity.session import Session
from simulator.result import Result
from tools.load.arrivals import FloatArray
from tools.load.result import BoolArray, LoadResult
from tools.load.statistics import quantile_interval

LEVELS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_BLOCK_S = 0.5
_RANGE = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one policy, live and simulated."""

    live_s: float
    low_s: float
    high_s: float
    """The live one's 95% interval, from a bootstrap of half-second blocks."""
    simulated_s: float
    """Median over seeds."""
    simulated_low_s: float
    simulated_high_s: float
    """Over 90% of the seeds."""

    @property
    def error(self) -> float:
        """Simulated over live, less 1."""
        return self.simulated_s / self.live_s - 1


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """One policy."""

    policy: str
    figures: dict[str, Figure]
    """By the names of `LEVELS`."""
    within: dict[str, dict[str, float]]
    """Errors of the same figures among the requests to one model, by its name."""
    live_mean_s: float
    simulated_mean_s: float
    live_s: FloatArray
    """Latencies of the requests that count; `(k,)`."""
    simulated_s: FloatArray
    """The same, of all seeds; `(e * k,)`."""
    live_share: FloatArray
    """Share of the requests that each worker served, in the fleet's order."""
    simulated_share: FloatArray


@dataclass(frozen=True, slots=True)
class Pair:
    """Two policies whose live intervals of one figure do not overlap."""

    figure: str
    faster: str
    """Live."""
    slower: str
    agrees: bool
    """Whether the simulator puts them in the same order."""


def counted(session: Session, policy: str, scheduled_s: FloatArray) -> BoolArray:
    """Which requests, by their times, count for the policy; `(k,)`."""
    chosen: BoolArray = np.zeros(len(scheduled_s), np.bool_)
    for turn in session.turns():
        if turn.policy == policy:
            chosen |= (turn.counted_s <= scheduled_s) & (scheduled_s < turn.end_s)
    return chosen


def compare(session: Session, live: LoadResult, simulated: Result) -> list[Comparison]:
    """One comparison a policy, in the session's order.

    Raises:
        ValueError: not every request was answered, so there is nothing to compare one to one.
    """
    if not live.ok.all() or len(live) != simulated.latency_s.shape[1]:
        raise ValueError(f"{live.ok.sum()} of {simulated.latency_s.shape[1]} requests were answered live: run it again")
    return [
        _compare(policy, counted(session, policy, live.scheduled_s), live, simulated) for policy in session.policies
    ]


def _compare(policy: str, chosen: BoolArray, live: LoadResult, simulated: Result) -> Comparison:
    latency_s, simulated_s = live.latency_s[chosen], simulated.latency_s[:, chosen]
    block = (live.scheduled_s[chosen] / _BLOCK_S).astype(np.int64)
    names = np.array([simulated.workers.index(name) for name in live.workers])
    n = len(simulated.workers)
    return Comparison(
        policy=policy,
        figures={
            name: Figure(
                float(np.quantile(latency_s, level)),
                *quantile_interval(latency_s, block, level, resamples=1000),
                *np.quantile(np.quantile(simulated_s, level, axis=1), [0.5, *_RANGE]).tolist(),
            )
            for name, level in LEVELS.items()
        },
        within={
            model: {
                name: _error(live.model[chosen] == i, latency_s, simulated_s, level) for name, level in LEVELS.items()
            }
            for i, model in enumerate(live.models)
        },
        live_mean_s=float(latency_s.mean()),
        simulated_mean_s=float(simulated_s.mean()),
        live_s=latency_s,
        simulated_s=simulated_s.ravel(),
        live_share=np.bincount(names[live.worker[chosen]], minlength=n) / chosen.sum(),
        simulated_share=np.bincount(simulated.worker[:, chosen].ravel(), minlength=n) / simulated_s.size,
    )


def _error(own: BoolArray, live_s: FloatArray, simulated_s: FloatArray, level: float) -> float:
    """As `Figure.error`, of the requests chosen; not a number where there are none."""
    if not own.any():
        return float("nan")
    simulated = np.median(np.quantile(simulated_s[:, own], level, axis=1))
    return float(simulated / np.quantile(live_s[own], level) - 1)


def median_error(comparisons: Sequence[Comparison], figure: str) -> float:
    """Median over policies of the absolute relative error of one figure."""
    return float(np.median([abs(one.figures[figure].error) for one in comparisons]))


def pairs(comparisons: Sequence[Comparison], figure: str) -> list[Pair]:
    """The pairs of policies that the live session tells apart by this figure."""
    found = []
    for a, b in combinations(sorted(comparisons, key=lambda one: one.figures[figure].live_s), 2):
        fast, slow = a.figures[figure], b.figures[figure]
        if fast.high_s < slow.low_s:
            found.append(Pair(figure, a.policy, b.policy, fast.simulated_s < slow.simulated_s))
    return found
