"""What an outcome is expected to be of a worker, from one number that production had of it at the time.

Isotonic regression: no more is said than that the outcome grows with the number. It takes no scale, cannot run away
where the target picks what was hardly ever tried, and is right enough for the doubly robust estimate, which does not
need it to be right. Fitted on other folds than it is used on, so that no outcome explains itself.
"""

from collections.abc import Iterator

import numpy as np

from policies.base import BoolArray, FloatArray, IntArray
from simulator.service import ascending_means

FOLDS = 5


class Isotonic:
    """A non-decreasing function through samples: steps with straight lines between, flat beyond both ends."""

    def __init__(self, feature: FloatArray, outcome: FloatArray) -> None:
        """`(k,)` each; without samples it is 0."""
        self._line = ascending_means(feature, outcome, np.ones(len(feature))) if len(feature) else None

    def __call__(self, feature: FloatArray) -> FloatArray:
        return np.zeros_like(feature) if self._line is None else np.interp(feature, *self._line)


def folds(block: IntArray) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Which decisions to fit on, and which to use it on, `(k,)` each; whole blocks, in order of time."""
    count = int(block.max()) + 1 if len(block) else 0
    fold = block * min(FOLDS, count) // max(count, 1)
    for each in range(min(FOLDS, count)):
        used = fold == each
        yield (~used if count > 1 else used), used
