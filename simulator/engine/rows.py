"""Choices and facts over the rows of many views, compiled."""

from __future__ import annotations

import functools
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
        n = eligible.shape[-1]
        shares, scratch = np.empty(eligible.shape), np.empty(2 * n + 1)
        # A copy, which may be written over.
        costs = np.array(cost, np.float64)
        _fill_all(fill)(costs.reshape(-1, n), _flat(eligible), float(option), scratch, shares.reshape(-1, n))
        return shares

    def fact(
        self, of_one: Callable[..., float], column: FloatArray, eligible: BoolArray, option: float = 0.0
    ) -> FloatArray:
        """See `Rows`."""
        n = eligible.shape[-1]
        found = np.empty((*eligible.shape[:-1], 1))
        line = np.broadcast_to(column, eligible.shape)
        _find_all(of_one)(_flat(line), _flat(eligible), float(option), np.empty(n), found.reshape(-1))
        return found


COMPILED: Rows = _Compiled()


def _flat(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1, array.shape[-1])


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
