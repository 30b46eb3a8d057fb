"""Choices among costs, in plain loops over one view, which Python runs and numba compiles.

A `fill` takes the costs (which may be written over), who is eligible, an option, scratch of `SCRATCH` n numbers of any
value, and `out`, the shares to be written; it returns the worker that has it all, or -1. A slice of a list is a copy:
what is written to one is read from that alone.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policies.base import WORST, BoolArray, FloatArray

SCRATCH = 4
"""Numbers for each worker that a `fill` may write beside its answer."""
_RUN = 16
_FEW = 96
"""Up to so many, each is compared with each."""
_IN_GROUP = 8
"""So many or more are in a group, on average, but not twice as many."""
_GOLDEN = 0.6180339887498949
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
    for w in range(n):
        count += eligible[w]
    if option == 0 or option >= count:
        return fill_least(cost, eligible, option, scratch, out)
    order, costs, place = scratch[:count], cost[:count], 0
    for w in range(n):
        if eligible[w]:
            # At their place or before it.
            costs[place], order[place] = cost[w] if cost[w] < WORST else WORST, w
            place += 1
    if count > _FEW:
        _share_by_groups(costs, order, option, scratch, out)
        return -1
    survival = scratch[count : 2 * count + 1]
    _fill_survival(option, survival)
    for w in range(n):
        out[w] = 0.0
    _share_by_rank(costs, order, survival, out)
    return -1


def _fill_survival(option: float, survival: FloatArray) -> None:
    """Write the probability that the best of the draw has a rank or a worse one, by rank; 0 is the best of all."""
    left, count = 1.0, len(survival) - 1
    for rank in range(count):
        survival[rank] = left
        left *= max(count - rank - option, 0.0) / (count - rank)
    survival[count] = left


def _share_by_rank(costs: FloatArray, order: FloatArray, survival: FloatArray, out: FloatArray) -> None:
    """Write the shares of some workers, by comparing each with each, without branches.

    Args:
        costs: Theirs; written over.
        order: Who they are, in any order.
        survival: By rank among them, and after the last.
        out: By worker.
    """
    lower = 0
    for i in range(len(costs)):
        rank = _count_less(costs, costs[i])
        out[int(order[i])] = rank
        lower += rank
    if 2 * lower == len(costs) * (len(costs) - 1):
        # No two are equal.
        for i in range(len(costs)):
            w = int(order[i])
            out[w] = survival[int(out[w])] - survival[int(out[w]) + 1]
        return
    # How many have a rank, in place of the costs.
    for i in range(len(costs)):
        costs[i] = 0.0
    for i in range(len(costs)):
        costs[int(out[int(order[i])])] += 1.0
    for i in range(len(costs)):
        w = int(order[i])
        rank = int(out[w])
        out[w] = (survival[rank] - survival[rank + int(costs[rank])]) / costs[rank]


def _count_less(costs: FloatArray, cost: float) -> int:
    found = 0
    for i in range(len(costs)):
        found += costs[i] < cost
    return found


def _share_by_groups(costs: FloatArray, order: FloatArray, option: float, scratch: FloatArray, out: FloatArray) -> None:
    """Write the shares of many workers: each is compared with those alone whose costs lie between the same two of a
    sample.

    Args:
        costs: Theirs.
        order: Who they are, in any order, at the beginning of scratch.
        option: How many are drawn.
        scratch: Room.
        out: By worker.
    """
    n, count, bounds = len(out), len(costs), 1
    while 2 * bounds * _IN_GROUP <= count:
        bounds *= 2
    # What outlasts the order is written behind the place of the survival, which is written over it.
    ends, grouped, whose = scratch[2 * n - 2 * bounds : 2 * n], scratch[2 * n : 3 * n], scratch[3 * n : 4 * n]
    _group(costs, order, scratch[n : n + bounds], ends, out[:count], grouped, whose)
    survival = scratch[: count + 1]
    _fill_survival(option, survival)
    for w in range(n):
        out[w] = 0.0
    first = 0
    for g in range(len(ends)):
        after = int(ends[g])
        if g % 2 == 0:
            _share_by_rank(grouped[first:after], whose[first:after], survival[first : after + 1], out)
        elif after > first:
            share = (survival[first] - survival[after]) / (after - first)
            for i in range(first, after):
                out[int(whose[i])] = share
        first = after


def _group(
    costs: FloatArray,
    order: FloatArray,
    bound: FloatArray,
    ends: FloatArray,
    group_of: FloatArray,
    grouped: FloatArray,
    whose: FloatArray,
) -> None:
    """Put costs, and whose they are, into groups, the lower ones first.

    The even groups lie between costs of a sample, and each odd one after them has the next such cost: so those that are
    equal, however many, need no comparing.

    Args:
        costs: Any.
        order: Whose they are.
        bound: Written: the sample, a power of two of numbers.
        ends: Written: where each group ends, two for each bound.
        group_of: Written over.
        grouped: Written: the costs.
        whose: Written: whose they are.
    """
    _sample(costs, bound, ends)
    for i in range(len(costs)):
        group_of[i] = 0.0
    step = len(bound) // 2
    while step > 0:
        for i in range(len(costs)):
            group_of[i] += float(step) if bound[int(group_of[i]) + step - 1] < costs[i] else 0.0
        step //= 2
    for g in range(len(ends)):
        ends[g] = 0.0
    for i in range(len(costs)):
        place = int(group_of[i])
        g = 2 * place + (bound[place] == costs[i])
        group_of[i] = g
        ends[g] += 1.0
    begin = 0.0
    for g in range(len(ends)):
        begin, ends[g] = begin + ends[g], begin
    for i in range(len(costs)):
        g = int(group_of[i])
        place = int(ends[g])
        grouped[place], whose[place] = costs[i], order[i]
        ends[g] += 1.0


def _sample(costs: FloatArray, bound: FloatArray, spare: FloatArray) -> None:
    """Write some of the costs to `bound`, in ascending order; the last is infinite."""
    last, at = len(bound) - 1, 0.0
    some = spare[:last]
    for i in range(last):
        # From here and there, so that no pattern in the order of the workers has the sample miss some kind.
        at += _GOLDEN if at < 1.0 - _GOLDEN else _GOLDEN - 1.0
        some[i] = costs[int(at * len(costs))]
        bound[i] = -np.inf
    bound[last] = np.inf
    for i in range(last):
        bound[_count_less(some, some[i])] = some[i]
    for i in range(1, last):
        # Equal ones were all written to the first place of theirs.
        bound[i] = max(bound[i], bound[i - 1])


def _is_after(one: float, other: float) -> bool:
    return one > other or (math.isnan(one) and not math.isnan(other))


def sort_by(cost: FloatArray, order: FloatArray, spare: FloatArray, count: int) -> None:
    """Put the first `count` places in `order` by ascending cost, equal ones as they were; what is not a number (NaN) is
    last, as for NumPy.

    By insertion within short runs, then by merging these, from below.
    """
    for left in range(0, count, _RUN):
        for place in range(left + 1, min(left + _RUN, count)):
            moved, k = order[place], place
            while k > left and _is_after(cost[int(order[k - 1])], cost[int(moved)]):
                order[k] = order[k - 1]
                k -= 1
            order[k] = moved
    width = _RUN
    while width < count:
        for left in range(0, count, 2 * width):
            middle, right = min(left + width, count), min(left + 2 * width, count)
            i, j = left, middle
            for k in range(left, right):
                if i < middle and (j >= right or not _is_after(cost[int(order[i])], cost[int(order[j])])):
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
    sums = 0.0
    for w in range(len(out)):
        sums += cost[w] if eligible[w] else 0.0
    for w in range(len(out)):
        out[w] = (cost[w] if eligible[w] else 0.0) / (sums if sums > 0.0 else 1.0)
    return -1


IN_PROPORTION = Choice(fill_in_proportion)
"""Drawn blindly, in proportion to what stands for the cost."""
