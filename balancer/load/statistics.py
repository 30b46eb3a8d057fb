"""Numbers from latencies: quantiles, and intervals that respect that neighbours in time resemble each other."""

from collections.abc import Sequence

import numpy as np

from balancer.load.arrivals import FloatArray
from balancer.load.workload import IntArray


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
    if len(np.unique(block)) < 2:
        return float("nan"), float("nan")
    estimates = _resampled([(values, block)], level, resamples, seed)[:, 0]
    low, high = np.quantile(estimates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def ranks(
    samples: Sequence[tuple[FloatArray, IntArray]],
    level: float,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> list[int]:
    """A rank for each sample: 1, and one more for each other sample whose quantile is lower beyond chance. Samples of
    one rank cannot be told apart.

    A sample is values above 0 and their blocks, as `quantile_interval` has them; the blocks of all samples are the same
    stretches of time. Each resample draws the same blocks for all, so that a burst that all met parts nobody. The
    confidence is that of all pairs together: a pair is told apart where the difference of its logarithms exceeds the
    quantile of the largest studentized deviation of any pair (single-step max T). Source: Westfall and Young,
    "Resampling-based multiple testing", Wiley 1993.
    """
    if len(samples) < 2 or len(np.unique(np.concatenate([block for _, block in samples]))) < 2:
        return [1] * len(samples)
    point = np.log([np.quantile(values, level) for values, _ in samples])
    resampled = np.log(_resampled(samples, level, resamples, seed))
    apart = point[:, None] - point
    deviation = resampled[:, :, None] - resampled[:, None, :] - apart
    error = np.sqrt(np.mean(np.square(deviation), axis=0))
    largest = np.divide(np.abs(deviation), error, out=np.zeros_like(deviation), where=error > 0).max(axis=(1, 2))
    slower = apart > np.quantile(largest, confidence) * error
    # What is slower than a slower one is slower: it follows, also where its own difference is too uncertain to say so.
    for middle in range(len(samples)):
        slower |= slower[:, middle, None] & slower[middle]
    return [1 + int(count) for count in slower.sum(axis=1)]


def _resampled(samples: Sequence[tuple[FloatArray, IntArray]], level: float, resamples: int, seed: int) -> FloatArray:
    """The quantile of each sample in each resample of the blocks, `(resamples, len(samples))`."""
    names = np.unique(np.concatenate([block for _, block in samples]))
    groups = []
    for values, block in samples:
        place = np.searchsorted(names, block)
        counts = np.bincount(place, minlength=len(names))
        groups.append(np.split(values[np.argsort(place, kind="stable")], np.cumsum(counts)[:-1]))
    generator = np.random.default_rng(seed)
    estimates = np.empty((resamples, len(samples)))
    for resample in range(resamples):
        drawn = generator.integers(len(names), size=len(names))
        for sample, group in enumerate(groups):
            (estimates[resample, sample],) = quantiles(np.concatenate([group[i] for i in drawn]), [level])
    return estimates
