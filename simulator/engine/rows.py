"""Choices and facts over the rows of many views, compiled."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from policies.base import BoolArray, FloatArray
from policies.rows import Rows
from simulator.engine.compiled import from_source, outlined


class _Compiled(Rows):
    """As `Rows`, each function compiled at its first use."""

    def shares(
        self, fill: Callable[..., int], cost: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        """See `Rows`."""
        masks = _flat(eligible)
        # A copy, which may be written over.
        costs, shares = np.array(_flat(cost), np.float64), np.empty(masks.shape)
        _fill_all(fill)(costs, masks, float(option), np.empty(3 * masks.shape[1] + 1), shares)
        return shares.reshape(eligible.shape)

    def fact(
        self, of_one: Callable[..., float], column: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        """See `Rows`."""
        masks, columns = _flat(eligible), _flat(np.broadcast_to(column, eligible.shape))
        found = np.empty(len(masks))
        _find_all(of_one)(columns, masks, float(option), np.empty(masks.shape[1]), found)
        return found.reshape(*eligible.shape[:-1], 1)


COMPILED: Rows = _Compiled()


def _flat(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(math.prod(array.shape[:-1]), array.shape[-1])


@functools.cache
def _fill_all(fill: Callable[..., int]) -> Any:
    one = from_source(fill)

    def fill_all(cost: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, shares: FloatArray) -> None:
        for row in range(len(cost)):
            one(cost[row], eligible[row], option, scratch, shares[row])

    return outlined(fill_all)


@functools.cache
def _find_all(of_one: Callable[..., float]) -> Any:
    one = from_source(of_one)

    def find_all(
        column: FloatArray, eligible: BoolArray, option: float, scratch: FloatArray, found: FloatArray
    ) -> None:
        for row in range(len(column)):
            found[row] = one(column[row], eligible[row], option, scratch)

    return outlined(find_all)
