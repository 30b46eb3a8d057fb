"""Choices among costs, in plain loops over one view, which Python runs and numba compiles.

A `fill` takes the costs (which may be written over), who is eligible, an option, scratch of at least 2 n numbers,
and `out`, the shares to be written; it returns the worker that has it all, or -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policies.base import WORST, BoolArray, FloatArray

_RUN = 16
_SAMPLE = 9
_MOVES = 8
"""By insertion, for each worker: a merge is less work than more."""
_LEAST_SCALE_S = 1e-9
"""Keeps the division defined where the best worker is expected to take no time at all."""


class Choice(NamedTuple):
    """How shares are filled, and the name of the policy's option that it takes; empty: none."""

    fill: Callable[..., int]
    option: str = ""


def fill_least(cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, out: FloatArray) -> int:
    """The least cost; ties share, infinite and unknown (NaN) costs come last."""
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


LEAST = Choice(fill_least)
"""The least cost; ties share."""


def least_of(option: str) -> Choice:
    """The least cost of as many sampled workers as the option says, 0 for all; ties share."""
    return Choice(fill_sampled_least, option)


def softmin_of(option: str) -> Choice:
    """Shares that fall by e for each `option` times the least cost, so near ties share; at 0 only the least."""
    return Choice(fill_softmin, option)


def fill_sampled_least(
    cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, out: FloatArray
) -> int:
    """The probability that a worker has the least cost of `option` eligible ones drawn without replacement; 0: of all.

    Ties within the draw are broken evenly, so equal costs get equal shares. Infinite and NaN costs come last. The best
    of the draw has rank r or worse with probability `C(m - r, d) / C(m, d)`; the workers of one cost share what this
    loses from the first to after the last of them. A worker's rank is how many cost less.
    """
    n, count = len(out), 0
    order, sorted_cost = scratch[:n], scratch[n : 2 * n]
    for w in range(n):
        out[w] = 0.0
        if eligible[w]:
            cost[w] = cost[w] if cost[w] < WORST else WORST
            order[count] = w
            count += 1
        else:
            cost[w] = np.inf
    if option == 0 or option >= count:
        return fill_least(cost, eligible, option, scratch, out)
    if not sort_by_spread(cost, eligible, order, sorted_cost, out, count):
        sort_by(cost, order, sorted_cost, count)
        for rank in range(count):
            sorted_cost[rank] = cost[int(order[rank])]
    for w in range(n):
        out[w] = 0.0
    first, survival = 0, 1.0
    while first < count:
        # From the first of those with one cost to after the last.
        after, left, lowest = first, survival, sorted_cost[first]
        while after < count and sorted_cost[after] == lowest:
            left *= max(count - after - option, 0.0) / (count - after)
            after += 1
        share = (survival - left) / (after - first)
        for rank in range(first, after):
            out[int(order[rank])] = share
        first, survival = after, left
    return -1


def sort_by_spread(
    cost: FloatArray, eligible: BoolArray, order: FloatArray, sorted_cost: FloatArray, room: FloatArray, count: int
) -> bool:
    """Put the eligible workers in `order` by ascending cost, equal ones in any order, and their costs beside.

    Each goes to about its place at once, by its cost between the least and what a sample takes for the median; the rest
    is done by insertion. False where that is too much, as costs lie in heaps far apart, or where one is infinitely low:
    `order` is any order then.

    Args:
        cost: Of all workers.
        eligible: Of all workers.
        order: The first `count` are the eligible workers, and stay so.
        sorted_cost: Written.
        room: As long as there are workers, zero.
        count: How many are eligible, at least one.
    """
    least = np.inf
    for w in range(len(room)):
        least = min(least, cost[w])
    if least == -np.inf:
        return False
    scale = _typical(cost, order, count, least, sorted_cost)
    for w in range(len(room)):
        sorted_cost[w] = (count - 1) * ((cost[w] - least) / (cost[w] - least + scale)) if eligible[w] else 0.0
    for w in range(len(room)):
        if eligible[w]:
            room[int(sorted_cost[w])] += 1.0
    place = 0.0
    for i in range(count):
        here = room[i]
        room[i] = place
        place += here
    for w in range(len(room)):
        if eligible[w]:
            i = int(sorted_cost[w])
            order[int(room[i])] = w
            room[i] += 1.0
    for i in range(count):
        sorted_cost[i] = cost[int(order[i])]
    return _insert(sorted_cost, order, count, _MOVES * count)


def _typical(cost: FloatArray, order: FloatArray, count: int, least: float, room: FloatArray) -> float:
    """What costs exceed the least by, in the middle of a sample; above 0."""
    sampled = min(count, _SAMPLE)
    for i in range(sampled):
        room[i] = cost[int(order[i * count // sampled])] - least
    _insert(room, room, sampled, sampled * sampled)
    if room[sampled // 2] > 0:
        return float(room[sampled // 2])
    return float(room[sampled - 1]) if room[sampled - 1] > 0 else 1.0


def _insert(keys: FloatArray, beside: FloatArray, count: int, most: int) -> bool:
    """Sort the first `count` keys by insertion, and move what is beside likewise; False: it takes over `most` moves."""
    moves = 0
    for place in range(1, count):
        key, moved, i = keys[place], beside[place], place
        while i > 0 and keys[i - 1] > key:
            keys[i], beside[i] = keys[i - 1], beside[i - 1]
            i -= 1
        keys[i], beside[i] = key, moved
        moves += place - i
        if moves > most:
            return False
    return True


def sort_by(cost: FloatArray, order: FloatArray, spare: FloatArray, count: int) -> None:
    """Put the first `count` places in `order` by ascending cost, equal ones as they were.

    By insertion within short runs, then by merging these, from below.
    """
    for left in range(0, count, _RUN):
        for place in range(left + 1, min(left + _RUN, count)):
            moved, k = order[place], place
            while k > left and cost[int(order[k - 1])] > cost[int(moved)]:
                order[k] = order[k - 1]
                k -= 1
            order[k] = moved
    width = _RUN
    while width < count:
        for left in range(0, count, 2 * width):
            middle, right = min(left + width, count), min(left + 2 * width, count)
            i, j = left, middle
            for k in range(left, right):
                if i < middle and (j >= right or cost[int(order[i])] <= cost[int(order[j])]):
                    spare[k] = order[i]
                    i += 1
                else:
                    spare[k] = order[j]
                    j += 1
        for k in range(count):
            order[k] = spare[k]
        width *= 2


def fill_softmin(cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, out: FloatArray) -> int:
    """Softmin shares of a scale of `option` times the least cost; equal costs get equal shares."""
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


def fill_in_proportion(
    cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, out: FloatArray
) -> int:
    """Shares in proportion."""
    sums = 0.0
    for w in range(len(out)):
        sums += cost[w] if eligible[w] else 0.0
    for w in range(len(out)):
        out[w] = (cost[w] if eligible[w] else 0.0) / (sums if sums > 0.0 else 1.0)
    return -1


IN_PROPORTION = Choice(fill_in_proportion)
"""Drawn blindly, in proportion to what stands for the cost."""
