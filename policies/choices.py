"""The least of d sampled workers, in closed form: what power-of-d-choices would do, without drawing the sample."""

from __future__ import annotations

import functools

import numpy as np

from policies.base import BoolArray, FloatArray, IntArray, count_of, least, masked_cost


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
