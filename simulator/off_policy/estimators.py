"""Off-policy estimates from weighted outcomes, with intervals from a bootstrap over blocks of time.

Notation: decision i saw the context x_i, picked a_i with the probability mu(a_i | x_i), the propensity, and ended with
the outcome y_i. A target policy would have picked with pi(a | x_i). Its weight is w_i = pi(a_i | x_i) / mu(a_i | x_i).

- Inverse propensity: mean of w y. Unbiased where mu > 0 wherever pi > 0; the variance grows with the weights.
- Self-normalised: sum of w y over sum of w. Slightly biased, far less variable, always within the range of y.
- Doubly robust: mean of q(x, pi) + w (y - q(x, a)), with a model q of the outcome. Unbiased where the propensities are
  right, whatever the model, and where the model is right, whatever the propensities.

Sources: Horvitz, Thompson 1952; Swaminathan, Joachims 2015, The self-normalized estimator; Dudík, Langford, Li 2011,
Doubly robust policy evaluation and learning; Kish 1965, Survey sampling (effective sample size); Künsch 1989 (blocks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policies.base import BoolArray, FloatArray, IntArray
from simulator.compare.statistics import CONFIDENCE, Estimate
from simulator.service import ascending_means

RESAMPLES = 1000
FEW_BLOCKS = 10
"""Below which a bootstrap over blocks is too sure of itself."""
_MOST_BLOCKS = 100
_LEAST_BLOCKS = 20
_CORRELATIONS_PER_BLOCK = 10


def effective_sample_size(weight: FloatArray) -> float:
    """Kish: as many equally weighted outcomes would say as much; from 1 (one has all the weight) to their number."""
    square = float(np.sum(weight * weight))
    return float(np.sum(weight)) ** 2 / square if square > 0 else 0.0


def clipped(weight: FloatArray, most: float | None) -> FloatArray:
    """Weights of at most `most`; None: as they are. Biased downwards by what is cut off, and less variable."""
    return weight if most is None else np.minimum(weight, most)


def correlation_s(at_s: FloatArray, outcome: FloatArray) -> float:
    """How long outcomes stay alike: the integrated autocorrelation, in requests, at their mean rate.

    Summed up to the first lag at which it is no longer positive (Geyer 1992).
    """
    count = len(outcome)
    deviation = outcome - outcome.mean() if count else outcome
    if count < 2 or not np.any(deviation):
        return 0.0
    spectrum = np.fft.rfft(deviation, 2 * count)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum))[:count]
    correlation = covariance / covariance[0]
    negative = np.flatnonzero(correlation <= 0)
    until = int(negative[0]) if len(negative) else count
    lags = 2 * float(correlation[:until].sum()) - 1
    return lags * float(at_s[-1] - at_s[0]) / count


def block_length_s(at_s: FloatArray, outcome: FloatArray) -> float:
    """Ten times as long as outcomes stay alike, but a twentieth of the log at most and a hundredth at least."""
    span_s = float(at_s[-1] - at_s[0]) if len(at_s) else 0.0
    wanted_s = _CORRELATIONS_PER_BLOCK * correlation_s(at_s, outcome)
    return max(min(wanted_s, span_s / _LEAST_BLOCKS), span_s / _MOST_BLOCKS, 1e-9)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """A statistic, and what it is in each resample, `(RESAMPLES,)`: so differences are of the same resamples."""

    value: float
    resampled: FloatArray

    def __sub__(self, other: Draws) -> Draws:
        return Draws(self.value - other.value, self.resampled - other.resampled)

    def estimate(self) -> Estimate:
        """With the percentile interval; without ends where resamples are undefined."""
        if not np.isfinite(self.resampled).all():
            return Estimate(self.value, float("nan"), float("nan"))
        low, high = np.quantile(self.resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return Estimate(self.value, float(low), float(high))


class Blocks:
    """Consecutive decisions, which share queues, stay together; whole blocks are drawn, with replacement."""

    def __init__(self, at_s: FloatArray, length_s: float, seed: int = 0) -> None:
        """`at_s`: ascending, `(k,)`."""
        index = np.floor((at_s - at_s[0]) / length_s).astype(np.int64) if len(at_s) else np.zeros(0, np.int64)
        self.of_decision: IntArray = np.unique(index, return_inverse=True)[1].astype(np.int64)
        self.count = int(self.of_decision.max()) + 1 if len(at_s) else 0
        shares = np.full(max(self.count, 1), 1 / max(self.count, 1))
        self._drawn = np.random.default_rng(seed).multinomial(self.count, shares, RESAMPLES).astype(np.float64)

    def ratio(self, above: FloatArray, below: FloatArray) -> Draws:
        """Sum of `above` over sum of `below`, `(k,)` each."""
        tops, bottoms = (np.bincount(self.of_decision, each, minlength=max(self.count, 1)) for each in (above, below))
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(tops.sum() / bottoms.sum()) if bottoms.sum() else float("nan")
            return Draws(value, (self._drawn @ tops) / (self._drawn @ bottoms))

    def mean(self, values: FloatArray) -> Draws:
        """Mean of the values, `(k,)`."""
        return self.ratio(values, np.ones_like(values))

    def quantile(self, values: FloatArray, weight: FloatArray, level: float) -> Draws:
        order = np.argsort(values, kind="stable")
        ascending, weights, block = values[order], weight[order], self.of_decision[order]
        resampled = np.array([weighted_quantile(ascending, weights * drawn[block], level) for drawn in self._drawn])
        return Draws(weighted_quantile(ascending, weights, level), resampled)


def weighted_quantile(ascending: FloatArray, weight: FloatArray, level: float) -> float:
    """The least value that, with all lesser ones, has a share `level` of the weight: the self-normalised quantile."""
    cumulative = np.cumsum(weight)
    if not len(cumulative) or cumulative[-1] <= 0:
        return float("nan")
    place = int(np.searchsorted(cumulative, level * cumulative[-1] * (1 - 1e-12)))
    return float(ascending[min(place, len(ascending) - 1)])


@dataclass(frozen=True, slots=True)
class Value:
    logged: Estimate
    ips: Estimate
    snips: Estimate
    dr: Estimate
    model: Estimate
    """By the model of the outcome alone: as good as that, and blind to where it is wrong."""
    change: Estimate
    """Doubly robust less logged."""


def value(blocks: Blocks, weight: FloatArray, outcome: FloatArray, given: FloatArray, expected: FloatArray) -> Value:
    """All estimates of one outcome; `(k,)` each.

    Args:
        blocks: Of the same decisions.
        weight: Of the picks that were made.
        outcome: Of them.
        given: What the model expects of them.
        expected: What the model expects on average over the picks of the target.
    """
    logged = blocks.mean(outcome)
    robust = blocks.mean(expected + weight * (outcome - given))
    return Value(
        logged=logged.estimate(),
        ips=blocks.mean(weight * outcome).estimate(),
        snips=blocks.ratio(weight * outcome, weight).estimate(),
        dr=robust.estimate(),
        model=blocks.mean(expected).estimate(),
        change=(robust - logged).estimate(),
    )


FOLDS = 5


class Isotonic:
    """A non-decreasing function through samples: steps with straight lines between, flat beyond both ends."""

    def __init__(self, feature: FloatArray, outcome: FloatArray) -> None:
        """`(k,)` each; without samples it is 0."""
        self._line = ascending_means(feature, outcome, np.ones(len(feature))) if len(feature) else None

    def __call__(self, feature: FloatArray) -> FloatArray:
        return np.zeros_like(feature) if self._line is None else np.interp(feature, *self._line)


def folds(block: IntArray) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Which decisions to fit on, and which to use it on, `(k,)` each; whole blocks, in order of time."""
    count = int(block.max()) + 1 if len(block) else 0
    fold = block * min(FOLDS, count) // max(count, 1)
    for each in range(min(FOLDS, count)):
        used = fold == each
        yield (~used if count > 1 else used), used
