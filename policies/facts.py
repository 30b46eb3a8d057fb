"""Facts of the whole fleet that a cost may rest on, in plain loops over one view, as choices are.

Each takes one view's column, who is eligible, an option, and scratch of at least n numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policies.base import WORST, BoolArray, FloatArray


class Fact(NamedTuple):
    """How it is found, of which column, and the name of the policy's option that it takes; empty: none."""

    of_one: Callable[..., float]
    column: str
    option: str = ""


def total_of(column: str) -> Fact:
    """The sum over the eligible workers, of values up to `WORST`."""
    return Fact(total, column)


def most_of(column: str) -> Fact:
    """The greatest of the eligible workers' values, at least 0; unknown (NaN) ones do not count."""
    return Fact(most, column)


def quantile_of(column: str, option: str) -> Fact:
    """The lower quantile (an order statistic) over the eligible workers, by the share that the option says."""
    return Fact(lower_quantile, column, option)


def total(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    """See `total_of`."""
    found = 0.0
    for w in range(len(column)):
        if eligible[w]:
            found += column[w] if column[w] < WORST else WORST
    return found


def most(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    """See `most_of`."""
    found = 0.0
    for w in range(len(column)):
        if eligible[w] and column[w] > found:
            found = column[w]
    return found


def lower_quantile(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    """See `quantile_of`; by selection, whose loops have no branches: which way one would go, no processor can guess."""
    count = 0
    for w in range(len(column)):
        if eligible[w]:
            # What is not a number sorts last.
            scratch[count] = column[w] if column[w] == column[w] else np.inf
            count += 1
    if count == 0:
        return np.inf
    place, left = int(option * (count - 1)), scratch[:count]
    while True:
        pivot, less, upto, kept = left[place], 0, 0, 0
        for i in range(len(left)):
            less += left[i] < pivot
            upto += left[i] <= pivot
        if less <= place < upto:
            return float(pivot)
        if place < less:
            for i in range(len(left)):
                value = left[i]
                left[kept] = value
                kept += value < pivot
        else:
            place -= upto
            for i in range(len(left)):
                value = left[i]
                left[kept] = value
                kept += value > pivot
        left = left[:kept]
