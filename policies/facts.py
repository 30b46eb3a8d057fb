"""Facts of the whole fleet that a cost may rest on, each written twice, side by side, as choices are.

Over arrays: a column `(..., n)`, eligible, option, to `(..., 1)`. In loops: one view's column, eligible, option and
scratch of at least n numbers, to a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policies.base import WORST, BoolArray, FloatArray, count_of

# Arrays of no axis: NumPy takes twice as long to combine a column with a float of Python's.
_WORST, _ZERO = np.array(WORST), np.array(0.0)


class Fact(NamedTuple):
    """In both forms, of which column, and the name of the policy's option that it takes; empty: none."""

    of_all: Callable[..., float | FloatArray]
    of_one: Callable[..., float]
    column: str
    option: str = ""


def total_of(column: str) -> Fact:
    """The sum over the eligible workers, of values up to `WORST`."""
    return Fact(total, one_total, column)


def most_of(column: str) -> Fact:
    """The greatest of the eligible workers' values, at least 0; unknown (NaN) ones do not count."""
    return Fact(most, one_most, column)


def quantile_of(column: str, option: str) -> Fact:
    """The lower quantile (an order statistic) over the eligible workers, by the share that the option says."""
    return Fact(lower_quantile, one_lower_quantile, column, option)


def total(column: FloatArray, eligible: BoolArray) -> FloatArray:
    """See `total_of`."""
    return sum_of(np.where(eligible, np.fmin(column, _WORST), _ZERO))


def sum_of(values: FloatArray) -> FloatArray:
    """The sum over the last axis, `(..., 1)`, from left to right as loops sum, where `np.add.reduce` sums in pairs."""
    if not values.shape[-1]:
        return np.zeros((*values.shape[:-1], 1))
    sums: FloatArray = values.cumsum(axis=-1)[..., -1:]
    return sums


def one_total(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    """`total` in loops."""
    found = 0.0
    for w in range(len(column)):
        if eligible[w]:
            found += column[w] if column[w] < WORST else WORST
    return found


def most(column: FloatArray, eligible: BoolArray) -> FloatArray:
    """See `most_of`."""
    greatest: FloatArray = np.fmax.reduce(np.where(eligible, column, _ZERO), axis=-1, keepdims=True, initial=0.0)
    return greatest


def one_most(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    """`most` in loops."""
    found = 0.0
    for w in range(len(column)):
        if eligible[w] and column[w] > found:
            found = column[w]
    return found


def lower_quantile(column: FloatArray, eligible: BoolArray, share: float) -> float | FloatArray:
    """See `quantile_of`; a float for `(n,)`."""
    count = count_of(eligible)
    masked = np.where(eligible, column, np.inf)
    if isinstance(count, int):
        if count == 0:
            return np.inf
        place = int(share * (count - 1))
        masked.partition(place)
        return float(masked[place])
    if masked.size == 0:
        return np.inf
    masked.sort(axis=-1)
    places = (share * np.maximum(count - 1, 0)).astype(np.int64)
    return np.take_along_axis(masked, places, axis=-1)


def one_lower_quantile(column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray) -> float:
    """`lower_quantile` in loops: Hoare's selection."""
    count = 0
    for w in range(len(column)):
        if eligible[w]:
            # What is not a number sorts last.
            scratch[count] = column[w] if column[w] == column[w] else np.inf
            count += 1
    if count == 0:
        return np.inf
    place, low, high = int(option * (count - 1)), 0, count - 1
    while low < high:
        pivot = scratch[place]
        i, j = low, high
        while i <= j:
            while scratch[i] < pivot:
                i += 1
            while pivot < scratch[j]:
                j -= 1
            if i <= j:
                scratch[i], scratch[j] = scratch[j], scratch[i]
                i += 1
                j -= 1
        if j < place:
            low = i
        if place < i:
            high = j
    return float(scratch[place])
