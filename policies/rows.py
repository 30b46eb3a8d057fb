"""What is written in loops for one view, run over the rows of many: shape `(..., n)`, one row a view."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policies.base import BoolArray, FloatArray
from policies.choices import SCRATCH


class Rows:
    """In Python. Whoever has a compiler overrides both, for the same bits in less time."""

    def shares(
        self, fill: Callable[..., int], cost: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        """What a choice's `fill` writes, `(..., n)`."""
        shares = np.empty(eligible.shape)
        n = eligible.shape[-1]
        for row in np.ndindex(eligible.shape[:-1]):
            # Lists: Python reads a number of an array ten times as slowly.
            line = [0.0] * n
            fill(cost[row].tolist(), eligible[row].tolist(), option, [0.0] * (SCRATCH * n), line)
            shares[row] = line
        return shares

    def fact(
        self, of_one: Callable[..., float], column: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        """What a fact's `of_one` finds, `(..., 1)`."""
        found = np.empty((*eligible.shape[:-1], 1))
        n = eligible.shape[-1]
        for row in np.ndindex(eligible.shape[:-1]):
            found[row] = of_one(column[row].tolist(), eligible[row].tolist(), option, [0.0] * n)
        return found


IN_PYTHON = Rows()
