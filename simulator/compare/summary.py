"""What boards amount to: who is best where, by how much, how far from what is possible, and over all scenarios."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from policies.base import FloatArray
from simulator.compare import statistics
from simulator.compare.compare import Board
from simulator.compare.metrics import RunMetrics
from simulator.compare.statistics import Estimate

Figure = Literal["mean_s", "p99_s"]

FIGURES: tuple[Figure, ...] = ("mean_s", "p99_s")
NAMES = {"mean_s": "mean", "p99_s": "p99"}
LEVELS: FloatArray = np.logspace(0.0, 1.5, 61)

_WORST_SCORE = 1e6
_ANSWERED_ALIKE = 0.001


@dataclass(frozen=True, slots=True)
class Cell:
    ratio: Estimate
    """To the best policy's, over seeds; the best itself has 1."""
    best: bool
    tied: bool
    """Whether the interval leaves room for being as good as the best; true of the best."""
    answers_less: bool
    """Whether it answered less of the requests than the best, which flatters its latencies."""


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """A policy over all scenarios; scores are its latencies over the clairvoyant's on equal arrivals."""

    interquartile_mean: dict[Figure, Estimate]
    improvement: dict[Figure, Estimate]
    """Probability that a run has a lower score than one of the baseline."""
    profile: dict[Figure, tuple[FloatArray, FloatArray, FloatArray]]
    """Share of runs with a score of at most `LEVELS`, and the ends of its interval."""


def by_seed(metrics: RunMetrics, figure: Figure) -> FloatArray:
    """The figure in each seed, `(e,)`."""
    values: FloatArray = getattr(metrics.latency, figure)
    return values


def ranked(board: Board, figure: Figure = "mean_s") -> list[str]:
    """Policies, the best first; those that answered nothing last."""
    means = {policy: float(np.mean(by_seed(metrics, figure))) for policy, metrics in board.policies.items()}
    return sorted(means, key=lambda policy: (np.isnan(means[policy]), means[policy]))


def cell(board: Board, policy: str, figure: Figure) -> Cell:
    """The policy beside the best of the board, which is chosen on the same seeds and so is a little flattered."""
    best = ranked(board, figure)[0]
    metrics, other = board.policies[policy], board.policies[best]
    ratio = statistics.ratio(by_seed(metrics, figure), by_seed(other, figure))
    answered = float(np.mean(metrics.shares["ok"] - other.shares["ok"]))
    return Cell(ratio, policy == best, not ratio.low > 1.0, answered < -_ANSWERED_ALIKE)


def losses(boards: Sequence[Board], policy: str, figure: Figure) -> dict[str, Cell]:
    """By scenario, the worst first: where the policy is told apart from the best."""
    found = {board.scenario.name: cell(board, policy, figure) for board in boards}
    lost = {name: each for name, each in found.items() if not each.tied}
    return dict(sorted(lost.items(), key=lambda item: -item[1].ratio.value))


def regrets(board: Board, policy: str, figure: Figure) -> dict[str, Estimate]:
    """By reference, from the least to the most attainable: the policy's latency minus the reference's, in seconds."""
    ours = by_seed(board.policies[policy], figure)
    return {name: statistics.difference(ours, theirs) for name, theirs in references(board, policy, figure).items()}


def references(board: Board, policy: str, figure: Figure) -> dict[str, FloatArray]:
    """What the policy is held against, by name, `(e,)` each; empty without the ladder."""
    if board.bound is None:
        return {}
    return {
        "pooled": getattr(board.bound, figure),
        **{name: by_seed(metrics, figure) for name, metrics in board.references.items()},
        "same policy, exact queues": by_seed(board.exact[policy], figure),
    }


def have_references(boards: Sequence[Board]) -> bool:
    """Whether all do, so that latencies may be told relative to them."""
    return all(board.references for board in boards)


def aggregate(boards: Sequence[Board], baseline: str) -> dict[str, Aggregate]:
    """By policy. Scores are relative to the clairvoyant, or where one has none to the best policy of the seed."""
    scores = {figure: _scores(boards, figure) for figure in FIGURES}
    profile = functools.partial(statistics.performance_profile, levels=LEVELS)
    found = {}
    for policy in boards[0].policies:
        ours = {figure: scores[figure][policy] for figure in FIGURES}
        found[policy] = Aggregate(
            {f: _estimate(statistics.stratified(statistics.interquartile_mean, ours[f])) for f in FIGURES},
            {
                f: _estimate(statistics.stratified(statistics.probability_of_improvement, ours[f], scores[f][baseline]))
                for f in FIGURES
            },
            {f: statistics.stratified(profile, ours[f]) for f in FIGURES},
        )
    return found


def _scores(boards: Sequence[Board], figure: Figure) -> dict[str, FloatArray]:
    """By policy, `(scenarios, e)`; one that answered nothing has the worst score."""
    scores: dict[str, list[FloatArray]] = {policy: [] for policy in boards[0].policies}
    known = have_references(boards)
    for board in boards:
        found = {policy: by_seed(metrics, figure) for policy, metrics in board.policies.items()}
        reference = by_seed(board.references["clairvoyant"], figure) if known else np.fmin.reduce(list(found.values()))
        for policy, ours in found.items():
            scores[policy].append(np.nan_to_num(ours / reference, nan=_WORST_SCORE))
    return {policy: np.stack(each) for policy, each in scores.items()}


def _estimate(found: tuple[FloatArray, FloatArray, FloatArray]) -> Estimate:
    return Estimate(*(float(each) for each in found))
