"""Choices among costs, each written twice, side by side: over arrays for NumPy, and in plain loops for compiled code.

Over arrays: `(cost, eligible[, option])`, shape `(..., n)`, to shares `(..., n)`. In loops: one view's cost (which may
be written over), eligible, option, scratch of at least 2 n + 1 numbers, and `out`, the shares to be written; they
return the worker that has it all, or -1. Both give the same bits, but for the last of an exponential.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policies.base import WORST, BoolArray, FloatArray, IntArray, count_of, least, masked_cost
from policies.facts import sum_of

_LEAST_SCALE_S = 1e-9
"""Keeps the division defined where the best worker is expected to take no time at all."""


class Choice(NamedTuple):
    """In both forms, and the name of the policy's option that it takes; empty: none."""

    shares: Callable[..., FloatArray]
    fill: Callable[..., int]
    option: str = ""


def fill_least(cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, out: FloatArray) -> int:
    """`policies.base.least` in loops."""
    lowest, ties, first = np.inf, 0, -1
    for w in range(len(out)):
        out[w] = 0.0
        if eligible[w]:
            if not cost[w] < WORST:
                cost[w] = WORST
            if cost[w] < lowest:
                lowest, ties, first = cost[w], 1, w
            elif cost[w] == lowest:
                ties += 1
    if ties == 1:
        out[first] = 1.0
        return first
    if ties > 1:
        for w in range(first, len(out)):
            if eligible[w] and cost[w] == lowest:
                out[w] = 1.0 / ties
    return -1


LEAST = Choice(least, fill_least)
"""The least cost; ties share."""


def least_of(option: str) -> Choice:
    """The least cost of as many sampled workers as the option says, 0 for all; ties share."""
    return Choice(sampled_least, fill_sampled_least, option)


def softmin_of(option: str) -> Choice:
    """Shares that fall by e for each `option` times the least cost, so near ties share; at 0 only the least."""
    return Choice(softmin, fill_softmin, option)


def sampled_least(cost: FloatArray, eligible: BoolArray, choices: int) -> FloatArray:
    """The probability that a worker has the least cost of `choices` eligible ones drawn without replacement.

    Ties within the draw are broken evenly, so equal costs get equal shares. 0 choices means all; so do more than there
    are. Infinite and NaN costs come last. Shape `(..., n)`; all zero where none is eligible.

    With the costs sorted, the best of the draw has rank r or worse with probability `C(m - r, d) / C(m, d)`; the
    workers of one cost, at ranks a to b, share what this loses between a and b + 1.
    """
    count = count_of(eligible)
    if choices == 0 or (isinstance(count, int) and choices >= count) or eligible.size == 0:
        return least(cost, eligible)
    masked = masked_cost(cost, eligible)
    n = masked.shape[-1]
    order = masked.argsort(axis=-1)
    if isinstance(count, int):
        survival = _survival_of(count, n, choices)
    else:
        survival = _survival(count, n, choices).ravel()
        order += (np.arange(order.size, step=n)).reshape(*order.shape[:-1], 1)
        order = order.ravel()
    ordered = masked.ravel()[order]
    # One group per run of equal costs; every row starts a group of its own.
    is_first = np.empty(order.size, dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    is_first[::n] = True
    first = is_first.nonzero()[0]
    end = np.empty_like(first)
    end[:-1] = first[1:]
    end[-1:] = order.size
    size = end - first
    row = first // n  # survival has n + 1 columns, one more than the costs
    share = (survival[first + row] - survival[end + row]) / size
    probabilities = np.empty(order.size)
    probabilities[order] = share.repeat(size)
    return probabilities.reshape(masked.shape)


def fill_sampled_least(
    cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, out: FloatArray
) -> int:
    """`sampled_least` in loops: a worker's rank is how many cost less."""
    n, count = len(out), 0
    for w in range(n):
        if eligible[w]:
            count += 1
            cost[w] = cost[w] if cost[w] < WORST else WORST
        else:
            cost[w] = np.inf
    if option == 0 or option >= count:
        return fill_least(cost, eligible, option, scratch, out)
    survival, ordered = scratch[: n + 1], scratch[n + 1 : 2 * n + 1]
    survival[0] = 1.0
    for rank in range(count):
        survival[rank + 1] = survival[rank] * (max(count - rank - option, 0.0) / (count - rank))
    for w in range(n):
        ordered[w] = cost[w]
    sort_in_place(ordered)
    for w in range(n):
        out[w] = 0.0
        if eligible[w]:
            below, above = _rank_of(cost[w], ordered, False), _rank_of(cost[w], ordered, True)
            out[w] = (survival[below] - survival[above]) / (above - below)
    return -1


def sort_in_place(numbers: FloatArray) -> None:
    """Ascending, by Williams' heapsort (1964): in loops, without further memory."""
    n = len(numbers)
    for i in range(n // 2):
        _sift_down(numbers, n // 2 - 1 - i, n)
    for i in range(1, n):
        numbers[0], numbers[n - i] = numbers[n - i], numbers[0]
        _sift_down(numbers, 0, n - i)


def _sift_down(heap: FloatArray, root: int, end: int) -> None:
    """Put the root of a heap that ends before `end` in its place."""
    value, child = heap[root], 2 * root + 1
    while child < end:
        if child + 1 < end and heap[child + 1] > heap[child]:
            child += 1
        if not heap[child] > value:
            break
        heap[root] = heap[child]
        root, child = child, 2 * child + 1
    heap[root] = value


def _rank_of(cost: float, ordered: FloatArray, after: bool) -> int:
    """How many are less, or with `after` less or equal."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < cost or (after and ordered[middle] == cost):
            low = middle + 1
        else:
            high = middle
    return low


def _survival(count: IntArray, n: int, choices: int) -> FloatArray:
    """The probability that the best of the draw has rank r or worse, for r from 0 to n; shape `(..., n + 1)`.

    `count` has shape `(..., 1)`. Each step is `C(m - r - 1, d) / C(m - r, d) = (m - r - d) / (m - r)`.
    """
    left = count - np.arange(n)
    steps = np.maximum(left - np.minimum(choices, count), 0) / np.maximum(left, 1)
    survival = np.empty((*steps.shape[:-1], n + 1))
    survival[..., :1] = np.minimum(count, 1)
    np.cumprod(steps, axis=-1, out=survival[..., 1:])
    survival[..., 1:] *= survival[..., :1]
    return survival


@functools.lru_cache(maxsize=64)
def _survival_of(count: int, n: int, choices: int) -> FloatArray:
    """`_survival` for one view, kept because a fleet's size rarely changes; shape `(n + 1,)`."""
    survival = _survival(np.array([count]), n, choices)
    survival.flags.writeable = False
    return survival


def softmin(cost: FloatArray, eligible: BoolArray, temperature: float) -> FloatArray:
    """Softmin shares, `(..., n)`, of a scale of `temperature` times the least cost; equal costs get equal shares."""
    if temperature == 0.0:
        return least(cost, eligible)
    masked = masked_cost(cost, eligible)
    best = np.minimum.reduce(masked, axis=-1, keepdims=True, initial=WORST)
    shares = np.exp((best - masked) / np.maximum(temperature * best, _LEAST_SCALE_S))
    # The best has 1 before the division, so a smaller total means that none is eligible.
    shares /= np.maximum(np.add.reduce(shares, axis=-1, keepdims=True), 1.0)
    return shares


def fill_softmin(cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, out: FloatArray) -> int:
    """`softmin` in loops."""
    if option == 0:
        return fill_least(cost, eligible, option, scratch, out)
    best = WORST
    for w in range(len(out)):
        if eligible[w]:
            cost[w] = cost[w] if cost[w] < WORST else WORST
            best = min(best, cost[w])
    scale, total = max(option * best, _LEAST_SCALE_S), 0.0
    for w in range(len(out)):
        out[w] = math.exp((best - cost[w]) / scale) if eligible[w] else 0.0
        total += out[w]
    for w in range(len(out)):
        out[w] /= max(total, 1.0)
    return -1


def in_proportion(share: FloatArray, eligible: BoolArray) -> FloatArray:
    """Shares in proportion, `(..., n)`."""
    kept = share * eligible
    sums = sum_of(kept)
    shares: FloatArray = kept / np.where(sums > 0.0, sums, 1.0)
    return shares


def fill_in_proportion(
    cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, out: FloatArray
) -> int:
    """`in_proportion` in loops."""
    sums = 0.0
    for w in range(len(out)):
        sums += cost[w] if eligible[w] else 0.0
    for w in range(len(out)):
        out[w] = (cost[w] if eligible[w] else 0.0) / (sums if sums > 0.0 else 1.0)
    return -1


IN_PROPORTION = Choice(in_proportion, fill_in_proportion)
"""Drawn blindly, in proportion to what stands for the cost."""
