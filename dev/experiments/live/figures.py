"""What each policy did in its windows, policies held against each other, and intervals of both. Pure.

A block is the replicate, a window or half a second of one: its requests share queues, and what the machine did. Every
resample draws whole blocks, the same for all policies, so that what a block's arrivals are, or what else went on, is in
both sides of a ratio. Source: Bojinov, Simchi-Levi, Zhao 2023, Design and analysis of switchback experiments,
Management Science 69; the bootstrap after Kunsch 1989, as `balancer.load.result` has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from balancer.load.arrivals import FloatArray
from balancer.load.result import BoolArray, LoadResult
from balancer.load.workload import IntArray
from dev.experiments.live.session import Session
from simulator.compare.statistics import Estimate
from simulator.result import Result, Status

LATENCIES = ("mean", "p50", "p95", "p99")
IN_TIME = "in time"
"""Share of the requests answered within their model's deadline; one that failed is not."""
FIGURES = (*LATENCIES, IN_TIME)
RESAMPLES = 2000
_LEVELS = (0.50, 0.95, 0.99)
_INTERVAL = (0.025, 0.975)
_SEEDS_RANGE = (0.05, 0.95)


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """The requests that count, as columns of shape `(k,)`."""

    policies: tuple[str, ...]
    models: tuple[str, ...]
    policy: IntArray
    block: IntArray
    """From 0 on; the same ones for all policies."""
    model: IntArray
    deadline_s: FloatArray
    latency_s: FloatArray
    """From the scheduled start to the answer; NaN where there was none."""

    @classmethod
    def live(cls, session: Session, live: LoadResult, block_s: float | None = None) -> Self:
        """Of the real stack; columns by what was due when. `block_s`: length of blocks; None: each round is one."""
        latency_s = np.where(live.ok, live.latency_s, np.nan)
        return cls._of(session, block_s, live.scheduled_s, live.models, live.model, live.deadline_s, latency_s)

    @classmethod
    def simulated(cls, session: Session, result: Result, seed: int, block_s: float | None = None) -> Self:
        ok = result.status[seed] == Status.OK
        latency_s = np.where(ok, result.latency_s[seed], np.nan)
        columns = (result.model[seed].astype(np.int64), result.deadline_s[seed], latency_s)
        return cls._of(session, block_s, session.workload().time_s, result.models, *columns)

    @classmethod
    def _of(
        cls,
        session: Session,
        block_s: float | None,
        scheduled_s: FloatArray,
        models: tuple[str, ...],
        model: IntArray,
        deadline_s: FloatArray,
        latency_s: FloatArray,
    ) -> Self:
        turns = session.turns()
        turn = np.searchsorted([each.start_s for each in turns], scheduled_s, side="right") - 1
        since_s = scheduled_s - np.array([each.counted_s for each in turns])[turn]
        policy = np.array([session.policies.index(each.policy) for each in turns])[turn]
        block = np.array([each.round for each in turns])[turn]
        if block_s is not None:
            block = block * math.ceil(session.window_s / block_s) + np.maximum(since_s // block_s, 0).astype(np.int64)
        return cls(session.policies, models, policy, block, model, deadline_s, latency_s).where(since_s >= 0)

    def __len__(self) -> int:
        return len(self.latency_s)

    @property
    def failed(self) -> IntArray:
        """Requests without an answer, `(policies,)`."""
        return np.bincount(self.policy[np.isnan(self.latency_s)], minlength=len(self.policies))

    def where(self, chosen: BoolArray) -> Self:
        names = ("policy", "block", "model", "deadline_s", "latency_s")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    def by_model(self) -> Iterator[tuple[str, Self]]:
        for i, name in enumerate(self.models):
            if (own := self.model == i).any():
                yield name, self.where(own)


def figures(requests: Requests) -> FloatArray:
    """`FIGURES` of each policy over all of its windows: seconds, and a share; `(policies, figures)`."""
    return np.array([_figures(requests, requests.policy == i) for i in range(len(requests.policies))])


def _figures(requests: Requests, chosen: BoolArray | IntArray) -> list[float]:
    latency_s = requests.latency_s[chosen]
    answered_s = latency_s[~np.isnan(latency_s)]
    if not len(answered_s):
        return [float("nan")] * len(LATENCIES) + [0.0 if len(latency_s) else float("nan")]
    # No answer (NaN) is not in time.
    in_time = latency_s <= requests.deadline_s[chosen]
    return [float(answered_s.mean()), *np.quantile(answered_s, _LEVELS).tolist(), float(in_time.mean())]


def resampled(requests: Requests, resamples: int | None = None, seed: int = 0) -> FloatArray:
    """`figures` of whole blocks drawn with replacement, the same for all policies; `(resamples, policies, figures)`."""
    blocks = int(requests.block.max()) + 1
    places = [
        [np.flatnonzero((requests.policy == i) & (requests.block == block)) for block in range(blocks)]
        for i in range(len(requests.policies))
    ]
    drawn = np.random.default_rng(seed).integers(blocks, size=(resamples or RESAMPLES, blocks))
    return np.array(
        [[_figures(requests, np.concatenate([own[block] for block in draw])) for own in places] for draw in drawn]
    )


def against(subject: int, reference: int, of: FloatArray) -> FloatArray:
    """Policy `subject` held against `reference`: ratio of each latency, difference of shares; `(..., figures)`."""
    mine, other = of[..., subject, :], of[..., reference, :]
    compared: FloatArray = mine / other
    compared[..., -1] = mine[..., -1] - other[..., -1]
    return compared


def estimates(value: FloatArray, drawn: FloatArray) -> list[Estimate]:
    """Each measured figure, `(figures,)`, with its 95% interval from resamples, `(resamples, figures)`."""
    low, high = np.nanquantile(drawn, _INTERVAL, axis=0)
    return [Estimate(*map(float, each)) for each in zip(value, low, high, strict=True)]


def predictions(by_seed: FloatArray) -> list[Estimate]:
    """Each simulated figure, `(seeds, figures)`: the median seed, and the range of 90% of them."""
    low, value, high = np.quantile(by_seed, [_SEEDS_RANGE[0], 0.5, _SEEDS_RANGE[1]], axis=0)
    return [Estimate(*map(float, each)) for each in zip(value, low, high, strict=True)]


@dataclass(frozen=True, slots=True)
class Pair:
    figure: str
    measured: Estimate
    """With its 95% interval."""
    predicted: Estimate
    """With the range of 90% of the seeds."""

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.value / self.measured.value - 1

    @property
    def inside(self) -> bool:
        return self.measured.low <= self.predicted.value <= self.measured.high


@dataclass(frozen=True, slots=True)
class Findings:
    """All that is compared; lists are in the order of `FIGURES`."""

    policies: dict[str, list[Pair]]
    ratios: dict[str, list[Pair]]
    """The last policy held against each of the others, by their names: see `against`."""


def find(live: Requests, simulated: Sequence[Requests], resamples: int | None = None) -> Findings:
    """Figures and ratios of one run, measured and predicted; `simulated` has one entry a seed."""
    measured, drawn = figures(live), resampled(live, resamples)
    predicted = np.array([figures(each) for each in simulated])
    subject = len(live.policies) - 1

    def pairs(value: FloatArray, resample: FloatArray, by_seed: FloatArray) -> list[Pair]:
        return list(map(Pair, FIGURES, estimates(value, resample), predictions(by_seed)))

    return Findings(
        {name: pairs(measured[i], drawn[:, i], predicted[:, i]) for i, name in enumerate(live.policies)},
        {
            name: pairs(*(against(subject, i, each) for each in (measured, drawn, predicted)))
            for i, name in enumerate(live.policies[:-1])
        },
    )
