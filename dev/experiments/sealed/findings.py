"""What sealed runs amount to: ratios, the verdict, and the gap to the social reference.

A ratio of a scenario is the geometric mean, over request seeds, of the ratio on equal arrivals. Over scenarios: the
median. Its interval resamples scenarios and request seeds together: what another draw of both could have given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dev.experiments.sealed.opening import SUBJECT, Found, Opening, unanswered
from policies.base import FloatArray
from simulator.compare import statistics
from simulator.compare.compare import SOCIAL
from simulator.compare.statistics import CONFIDENCE, Estimate
from simulator.compare.summary import FIGURES, NAMES, Figure, by_seed

AIMS: dict[Figure, float] = {"mean_s": 0.85, "p99_s": 0.90}
MORE_FAILURES = 0.001
"""Share of the requests by which the subject may fail more than the rival, in the mean over scenarios."""


@dataclass(frozen=True)
class Line:
    criterion: str
    found: str
    met: bool


def together(logs: FloatArray) -> Estimate:
    """The median over scenarios of geometric means over request seeds, with a percentile interval; of logarithms of
    ratios, `(scenarios, seeds)`."""
    dice = np.random.default_rng(0)
    scenarios, seeds = logs.shape
    found = []
    for _ in range(statistics.RESAMPLES):
        some = dice.integers(scenarios, size=(scenarios, 1))
        runs = dice.integers(seeds, size=(scenarios, seeds))  # each scenario's own
        found.append(_median(logs[some, runs]))
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(_median(logs), float(low), float(high))


def _median(logs: FloatArray) -> float:
    return float(np.exp(np.median(logs.mean(axis=1))))


def median_ratio(found: Sequence[Found], against: str, figure: Figure) -> Estimate:
    return together(np.stack([each.logs(against, figure) for each in found]))


def verdict(opening: Opening, found: Sequence[Found]) -> list[Line]:
    """What is asked of the subject, line by line; it is met where all of them are."""
    lines = []
    for figure, aim in AIMS.items():
        estimate = median_ratio(found, opening.best, figure)
        lines.append(
            Line(
                f"{NAMES[figure]}: median ratio at most {aim:.2f}, its interval below 1",
                f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})",
                estimate.value <= aim and estimate.high < 1,
            )
        )
    more = float(
        np.mean([unanswered(each.metrics[SUBJECT]) - unanswered(each.metrics[opening.best]) for each in found])
    )
    criterion = (
        f"requests without an answer: at most {MORE_FAILURES:.1%} more than the rival, in the mean over scenarios"
    )
    lines.append(Line(criterion, f"{more:+.2%}", more <= MORE_FAILURES))
    return lines


def best_in_hindsight(opening: Opening, found: Found, figure: Figure) -> str:
    """The rival of the lowest latency in that scenario, chosen on the runs that it is judged by."""
    means = {name: float(np.mean(by_seed(found.metrics[name], figure))) for name in opening.rivals}
    return min(means, key=lambda name: np.nan_to_num(means[name], nan=np.inf))


def hindsight(opening: Opening, found: Sequence[Found], figure: Figure) -> Estimate:
    """The median ratio to each scenario's own best rival, which flatters the rivals."""
    logs = np.stack([each.logs(best_in_hindsight(opening, each, figure), figure) for each in found])
    return together(logs)


def to_social(found: Sequence[Found], name: str, figure: Figure) -> float:
    """A policy's latency over the social reference's: geometric mean over seeds, median over scenarios."""

    def of(each: Found) -> float:
        ours, best = (by_seed(each.metrics[label], figure) for label in (name, SOCIAL))
        return float(np.exp(np.mean(np.log(ours) - np.log(best))))

    return float(np.median(list(map(of, found))))


def pairs(found: Sequence[Found], against: str) -> list[Estimate]:
    """Median ratios of mean and p99."""
    return [median_ratio(found, against, figure) for figure in FIGURES]
