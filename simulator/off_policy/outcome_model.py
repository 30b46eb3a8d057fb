"""What an outcome is expected to be of a worker, from one number that production had of it at the time.

Isotonic regression: no more is said than that the outcome grows with the number. It takes no scale, cannot run away
where the target picks what was hardly ever tried, and is right enough for the doubly robust estimate, which does not
need it to be right. Fitted on other folds than it is used on, so that no outcome explains itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import isotonic_regression

from policies.base import BoolArray, FloatArray, IntArray

FOLDS = 5


class Isotonic:
    """A non-decreasing function through samples: steps with straight lines between, flat beyond both ends."""

    def __init__(self, feature: FloatArray, outcome: FloatArray) -> None:
        """`(k,)` each; without samples it is 0."""
        self._at, place = np.unique(feature, return_inverse=True)
        count = np.bincount(place, minlength=len(self._at)).astype(np.float64)
        means = np.bincount(place, outcome, minlength=len(self._at)) / np.maximum(count, 1.0)
        self._value = isotonic_regression(means, weights=count).x if len(self._at) else means

    def __call__(self, feature: FloatArray) -> FloatArray:
        """Of any shape."""
        if not len(self._at):
            return np.zeros_like(feature)
        expected: FloatArray = np.interp(feature, self._at, self._value)
        return expected


def folds(block: IntArray) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Which decisions to fit on, and which to use it on, `(k,)` each; whole blocks, in order of time."""
    count = int(block.max()) + 1 if len(block) else 0
    fold = block * min(FOLDS, count) // max(count, 1)
    for each in range(min(FOLDS, count)):
        used = fold == each
        yield (~used if count > 1 else used), used
