"""What the runs amount to: ratios with paired intervals, the bar, the gap to the clairvoyant, what the guard cost.

A ratio is the geometric mean over seeds of the ratio on equal arrivals. Over scenarios: the median of their ratios, and
an interval from resampling the seeds within each scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.held_out.kinds import counts
from experiments.held_out.plan import BASELINE, CLAIRVOYANT, WEIGHTED, Judged, bare
from policies.base import FloatArray
from simulator.scoreboard import statistics
from simulator.scoreboard.metrics import Metrics
from simulator.scoreboard.statistics import Estimate
from simulator.scoreboard.summary import NAMES, Figure, by_seed

LEAST_GAP = 0.03
"""As a share of the baseline's latency: of a smaller gap to the clairvoyant it means little how much is closed."""
_ANSWERED_ALIKE = 0.001


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that the bar asks, and what was found."""

    what: str
    figure: Figure
    against: str
    limit: float
    """Of the ratio, at most."""
    found: Estimate
    where: str = ""
    """The scenario, where it is of one."""
    with_all: Estimate | None = None
    """A median over all scenarios, those with keys worth following included."""

    @property
    def met(self) -> bool:
        """Whether the ratio itself is within; its interval may reach beyond."""
        return self.found.value <= self.limit


def ratio(judged: Judged, policy: str, against: str, figure: Figure) -> Estimate:
    """Of the policy's latency to the other's."""
    policies = judged.board.policies
    return statistics.ratio(by_seed(policies[policy], figure), by_seed(policies[against], figure))


def model_ratios(judged: Judged, policy: str, against: str) -> dict[str, Estimate]:
    """Of p99 within each model that got requests."""
    ours, theirs = judged.board.policies[policy].models, judged.board.policies[against].models
    found = {name: statistics.ratio(ours[name].p99_s, theirs[name].p99_s) for name in ours}
    return {name: each for name, each in found.items() if np.isfinite(each.value)}


def answers_less(judged: Judged, policy: str, against: str) -> bool:
    """Whether it answered fewer of the requests, which flatters its latencies."""
    policies = judged.board.policies
    return float(np.mean(policies[policy].shares["ok"] - policies[against].shares["ok"])) < -_ANSWERED_ALIKE


def failed(metrics: Metrics) -> float:
    """Share of the requests that were neither answered nor shed, mean over seeds."""
    return float(1 - np.mean(metrics.shares["ok"]) - np.mean(metrics.shares["shed"]))


def bar(all_judged: Sequence[Judged], policy: str) -> list[Line]:
    """What issue 4 asks of the held-out scoreboard, with the guard on."""
    chosen = [each for each in all_judged if counts(each.board.scenario)]
    lines = []
    limits: list[tuple[Figure, str, float]] = [
        ("mean_s", BASELINE, 0.9),
        ("mean_s", WEIGHTED, 0.7),
        ("p99_s", BASELINE, 1.0),
        ("p99_s", WEIGHTED, 0.7),
    ]
    for figure, against, limit in limits if chosen else []:
        found, with_all = (median_ratio(of, policy, against, figure) for of in (chosen, all_judged))
        lines.append(Line("median", figure, against, limit, found, with_all=with_all))
    worst: list[tuple[Figure, float]] = [("mean_s", 1.03), ("p99_s", 1.05)]
    for figure, limit in worst:
        by_name = {each.board.scenario.name: ratio(each, policy, BASELINE, figure) for each in all_judged}
        # One that answered nothing has no ratio, and nothing is worse.
        name = max(by_name, key=lambda name: np.nan_to_num(by_name[name].value, nan=np.inf))
        lines.append(Line("worst scenario", figure, BASELINE, limit, by_name[name], where=name))
    return lines


def median_ratio(judged: Sequence[Judged], policy: str, against: str, figure: Figure) -> Estimate:
    """Over scenarios."""
    pairs = [(each.board.policies[policy], each.board.policies[against]) for each in judged]
    logs = np.stack([np.log(by_seed(ours, figure)) - np.log(by_seed(theirs, figure)) for ours, theirs in pairs])
    return _estimate(statistics.stratified(_median_of_means, logs))


def _median_of_means(logs: FloatArray) -> FloatArray:
    medians: FloatArray = np.median(np.exp(logs.mean(axis=-1)), axis=-1)
    return medians


def gap_closed(judged: Judged, policy: str, figure: Figure) -> Estimate | None:
    """Share of the way from the baseline's latency to the clairvoyant's; None where there is none to speak of."""
    runs = _gap(judged, policy, figure)
    baseline_s, clairvoyant_s = runs[1].mean(), runs[2].mean()
    if not baseline_s - clairvoyant_s >= LEAST_GAP * baseline_s:
        return None
    return _closed([runs])


def median_gap_closed(all_judged: Sequence[Judged], policy: str, figure: Figure) -> Estimate | None:
    """Over the scenarios where there is a gap to speak of."""
    runs = [_gap(each, policy, figure) for each in all_judged if gap_closed(each, policy, figure) is not None]
    return _closed(runs) if runs else None


def _gap(judged: Judged, policy: str, figure: Figure) -> FloatArray:
    """The policy's latency, the baseline's and the clairvoyant's, `(3, e)`."""
    board = judged.board
    metrics = (board.policies[policy], board.policies[BASELINE], board.references[CLAIRVOYANT])
    return np.stack([by_seed(each, figure) for each in metrics])


def _closed(runs: Sequence[FloatArray]) -> Estimate:
    def shares(seeds: FloatArray) -> FloatArray:
        # Seeds are drawn, and with them all three of their latencies: the comparison stays paired.
        drawn = seeds.astype(np.int64)
        means = [stack[:, drawn[..., i, :]].mean(axis=-1) for i, stack in enumerate(runs)]
        closed: FloatArray = np.median([(base - ours) / (base - best) for ours, base, best in means], axis=0)
        return closed

    seeds = np.tile(np.arange(runs[0].shape[1], dtype=np.float64), (len(runs), 1))
    return _estimate(statistics.stratified(shares, seeds))


@dataclass(frozen=True, slots=True)
class GuardCost:
    """What the guard did in one scenario, and what that cost."""

    falls: int
    """In all seeds together."""
    seeds_with_falls: int
    reasons: dict[str, int]
    fallen: float
    """Share of the time out of service."""
    by_baseline: float
    """Share of the requests that the baseline decided, windows of comparison included."""
    mean: Estimate
    """Ratio of the mean with the guard to that without."""
    p99: Estimate


def guard_cost(judged: Judged, policy: str) -> GuardCost:
    """Of a trained policy."""
    watch = judged.watches[policy]
    return GuardCost(
        falls=int(watch.falls.sum()),
        seeds_with_falls=int((watch.falls > 0).sum()),
        reasons=dict(watch.reasons.most_common()),
        fallen=float(watch.fallen.mean()),
        by_baseline=float(watch.by_baseline.mean()),
        mean=ratio(judged, policy, bare(policy), "mean_s"),
        p99=ratio(judged, policy, bare(policy), "p99_s"),
    )


def said(line: Line) -> str:
    """What the line asks, in words."""
    over = f"{line.what}, {NAMES[line.figure]} to {line.against}"
    return f"{over} ({line.where})" if line.where else over


def _estimate(found: tuple[FloatArray, FloatArray, FloatArray]) -> Estimate:
    return Estimate(*(float(each) for each in found))
