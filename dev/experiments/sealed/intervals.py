"""Intervals over scenarios, trainings and request seeds together: what another draw of all three could give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policies.base import FloatArray
from simulator.compare import statistics
from simulator.compare.statistics import CONFIDENCE, Estimate

Middle = Callable[[FloatArray], np.floating]
"""Of one number for each scenario: the median, or the mean."""


def together(logs: FloatArray, middle: Middle = np.median, others: FloatArray | None = None) -> Estimate:
    """Over scenarios the middle of geometric means over trainings and request seeds, with a percentile interval.

    Args:
        logs: Logarithms of what is judged, `(scenarios, trainings, seeds)`.
        middle: Over scenarios.
        others: The same of what it is divided by, with as many trainings as may be, each drawn by itself, of the same
            scenarios and request seeds; None: `logs` are of ratios already.
    """
    dice = np.random.default_rng(0)
    scenarios, trainings, seeds = logs.shape
    found = []
    for _ in range(statistics.RESAMPLES):
        # A training is the same in all scenarios, so one draw of them is, too; request seeds are each scenario's own.
        some = dice.integers(scenarios, size=(scenarios, 1, 1))
        files = dice.integers(trainings, size=(1, trainings, 1))
        runs = dice.integers(seeds, size=(scenarios, 1, seeds))
        of_others = None
        if others is not None:
            of_others = others[some, dice.integers(others.shape[1], size=(1, others.shape[1], 1)), runs]
        found.append(_ratio(logs[some, files, runs], middle, of_others))
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(_ratio(logs, middle, others), float(low), float(high))


def _ratio(logs: FloatArray, middle: Middle, others: FloatArray | None) -> float:
    by_scenario: FloatArray = logs.mean(axis=(1, 2))
    if others is not None:
        by_scenario = by_scenario - others.mean(axis=(1, 2))
    return float(np.exp(middle(by_scenario)))
