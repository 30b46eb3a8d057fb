"""Uncertainty over seeds, and aggregates over scenarios that a few extreme runs cannot bend.

A seed is the replicate: requests of one run share its queues, so they are no independent observations. Policies are
compared on equal arrivals, so differences are taken seed by seed. Every statistic here is for numbers of which less is
better (latencies, or their ratio to a reference).

Aggregates after Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice, NeurIPS
(the library rliable): interquartile mean, probability of improvement, performance profile, each with an interval from a
bootstrap stratified by scenario.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from policies.base import FloatArray

CONFIDENCE = 0.95
RESAMPLES = 2000
METHOD = (
    f"{CONFIDENCE:.0%} intervals: BCa bootstrap over seeds, {RESAMPLES:,} resamples; aggregates: percentile bootstrap, "
    "stratified by scenario"
)
"""For captions. Below about ten seeds any bootstrap is too sure of itself."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the interval around it; both ends NaN where there are too few seeds to tell."""

    value: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Whether the interval is there and has `value` outside: a significant difference from it."""
        return self.low > value or self.high < value


def mean(by_seed: FloatArray) -> Estimate:
    """Mean over seeds of a metric, `(e,)`."""
    low, high = interval(by_seed)
    return Estimate(float(np.mean(by_seed)), float(low), float(high))


def difference(by_seed: FloatArray, baseline: FloatArray) -> Estimate:
    """Mean over seeds of the paired difference, `(e,)` each: below 0 is better than the baseline."""
    return mean(by_seed - baseline)


def ratio(by_seed: FloatArray, baseline: FloatArray) -> Estimate:
    """Geometric mean over seeds of the paired ratio, `(e,)` each, both above 0: below 1 is better than the baseline."""
    logarithm = mean(np.log(by_seed) - np.log(baseline))
    return Estimate(*(float(np.exp(end)) for end in (logarithm.value, logarithm.low, logarithm.high)))


def interval(by_seed: FloatArray) -> tuple[FloatArray, FloatArray]:
    """BCa bootstrap interval of the mean over the last axis, `(..., e)` to `(...)` twice.

    The same as `scipy.stats.bootstrap(..., method="BCa")`, but for all leading axes in one multiplication. NaN with
    fewer than two seeds or where a seed is NaN; the value itself where all seeds agree.
    Source: Efron 1987, Better bootstrap confidence intervals, JASA 82.
    """
    if by_seed.shape[-1] < 2:
        missing = np.full(by_seed.shape[:-1], np.nan)
        return missing, missing
    estimate = by_seed.mean(axis=-1, keepdims=True)
    deviation = by_seed - estimate
    resampled = np.sort(estimate + deviation @ _resampling(by_seed.shape[-1]), axis=-1)
    below = (np.mean(resampled < estimate, axis=-1) + np.mean(resampled <= estimate, axis=-1)) / 2
    spread = np.square(deviation).sum(axis=-1)
    skew = np.power(deviation, 3).sum(axis=-1)
    acceleration = np.divide(skew, 6 * np.power(spread, 1.5), out=np.zeros_like(skew), where=spread > 0)
    bias = special.ndtri(np.clip(below, 1 / RESAMPLES, 1 - 1 / RESAMPLES))
    ends = []
    for level in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2):
        shifted = bias + special.ndtri(level)
        place = special.ndtr(bias + shifted / (1 - acceleration * shifted)) * (RESAMPLES - 1)
        ends.append(_interpolated(resampled, place))
    return ends[0], ends[1]


def interquartile_mean(scores: FloatArray) -> FloatArray:
    """Mean of the middle half of all runs, `(..., scenarios, e)` to `(...)`."""
    runs = scores.reshape(*scores.shape[:-2], -1)
    trimmed: FloatArray = stats.trim_mean(runs, 0.25, axis=-1)
    return trimmed


def probability_of_improvement(scores: FloatArray, baseline: FloatArray) -> FloatArray:
    """Probability that a run has the lower score, averaged over scenarios; `(..., scenarios, e)` each to `(...)`.

    Within each scenario over all pairs of runs, ties count half (the Mann-Whitney statistic).
    """
    left, right = scores[..., :, None], baseline[..., None, :]
    won: FloatArray = np.mean((left < right) + 0.5 * (left == right), axis=(-3, -2, -1))
    return won


def performance_profile(scores: FloatArray, levels: FloatArray) -> FloatArray:
    """Share of all runs whose score is at most each level, `(..., scenarios, e)` to `(..., len(levels))`."""
    runs = scores.reshape(*scores.shape[:-2], -1, 1)
    share: FloatArray = np.mean(runs <= levels, axis=-2)
    return share


def stratified(
    statistic: Callable[..., FloatArray], *scores: FloatArray, seed: int = 0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The statistic of scores `(scenarios, e)` each, and the ends of its percentile interval.

    Every resample draws, within each scenario and for each of the scores by itself, as many runs as there are.
    """
    generator = np.random.default_rng(seed)
    drawn = []
    for each in scores:
        chosen = generator.integers(each.shape[-1], size=(RESAMPLES, *each.shape))
        drawn.append(np.take_along_axis(each[None], chosen, axis=-1))
    resampled = statistic(*drawn)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return statistic(*scores), low, high


@functools.cache
def _resampling(seeds: int) -> FloatArray:
    """Of each resample the share of each seed, `(seeds, RESAMPLES)`."""
    counts = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    return counts.T / seeds


def _interpolated(ascending: FloatArray, place: FloatArray) -> FloatArray:
    """Values at fractional places of the last axis; NaN where the place is."""
    low = np.clip(np.nan_to_num(np.floor(place)), 0, ascending.shape[-1] - 2).astype(np.int64)
    pair = np.take_along_axis(ascending, np.stack([low, low + 1], axis=-1), axis=-1)
    found: FloatArray = pair[..., 0] + (place - low) * (pair[..., 1] - pair[..., 0])
    return found
