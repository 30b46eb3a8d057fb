"""Numbers from latencies: quantiles, and intervals that respect that neighbours in time resemble each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.load.arrivals import FloatArray
from tools.load.workload import IntArray


def quantiles(values: FloatArray, levels: Sequence[float]) -> list[float]:
    """Quantiles by linear interpolation (type 7 of Hyndman and Fan, 1996); NaN each where there is no value."""
    if not len(values):
        return [float("nan")] * len(levels)
    return [float(value) for value in np.quantile(values, levels)]


def quantile_interval(
    values: FloatArray, block: IntArray, level: float, *, confidence: float = 0.95, resamples: int = 200, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of a quantile, from a bootstrap of whole blocks; NaN twice with fewer than two blocks.

    `block` names each value's block (a second of one window, say), shape `(n,)` as `values`: a queue makes latencies
    close in time alike, so resampling single requests would claim far too much. Source: Kunsch, "The jackknife and
    the bootstrap for general stationary observations", Annals of Statistics 17, 1989.
    """
    names, inverse = np.unique(block, return_inverse=True)
    if len(names) < 2:
        return float("nan"), float("nan")
    order = np.argsort(inverse, kind="stable")
    groups = np.split(values[order], np.cumsum(np.bincount(inverse))[:-1])
    generator = np.random.default_rng(seed)
    estimates = [
        np.quantile(np.concatenate([groups[i] for i in generator.integers(len(groups), size=len(groups))]), level)
        for _ in range(resamples)
    ]
    low, high = np.quantile(estimates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
