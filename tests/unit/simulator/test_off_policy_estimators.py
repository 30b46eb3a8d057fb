"""Estimators against bandits whose true values are known exactly."""

import numpy as np
import pytest

from policies.base import FloatArray, IntArray
from simulator.off_policy.estimators import (
    Blocks,
    Isotonic,
    Value,
    block_length_s,
    clipped,
    correlation_s,
    effective_sample_size,
    folds,
    value,
    weighted_quantile,
)

MEAN = np.array([[1.0, 4.0, 2.0], [3.0, 1.0, 6.0]])
"""Of the outcome, by context and action."""
LOGGED = np.array([[0.5, 0.2, 0.3], [0.2, 0.5, 0.3]])
TARGET = np.array([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1]])
TRUTH = float((TARGET * MEAN).sum(axis=1).mean())
"""Contexts are equally likely."""


class Bandit:
    """`k` independent decisions; the propensities and the model may be told wrongly."""

    def __init__(self, k: int, seed: int, propensity: FloatArray = LOGGED, model: FloatArray = MEAN) -> None:
        rng = np.random.default_rng(seed)
        context = rng.integers(2, size=k)
        action: IntArray = (rng.random(k)[:, None] > LOGGED[context].cumsum(axis=1)).sum(axis=1)
        self.outcome = MEAN[context, action] + rng.normal(0, 1, k)
        self.weight = TARGET[context, action] / propensity[context, action]
        self.given = model[context, action]
        self.expected = (TARGET[context] * model[context]).sum(axis=1)
        self.blocks = Blocks(np.arange(k, dtype=float), max(k / 400, 1.0), seed)

    def value(self) -> Value:
        return value(self.blocks, self.weight, self.outcome, self.given, self.expected)


WRONG_MODEL = np.full((2, 3), 10.0)
WRONG_PROPENSITY = np.full((2, 3), 1 / 3)


def test_every_estimator_finds_the_value() -> None:
    found = Bandit(200_000, 0).value()
    for each in (found.ips, found.snips, found.dr, found.model):
        assert each.value == pytest.approx(TRUTH, abs=0.04)
    assert found.logged.value == pytest.approx((LOGGED * MEAN).sum(axis=1).mean(), abs=0.02)
    assert found.change.value == pytest.approx(found.dr.value - found.logged.value)


def test_each_is_what_its_definition_says() -> None:
    weight, outcome = np.array([0.5, 2.0, 0.0, 3.0]), np.array([4.0, 1.0, 9.0, 2.0])
    given, expected = np.array([3.0, 1.0, 8.0, 2.5]), np.array([2.0, 3.0, 1.0, 2.0])
    found = value(Blocks(np.arange(4.0), 1.0), weight, outcome, given, expected)
    assert found.logged.value == 4
    assert found.ips.value == pytest.approx((2 + 2 + 6) / 4)
    assert found.snips.value == pytest.approx((2 + 2 + 6) / 5.5)
    assert found.model.value == pytest.approx(2)
    assert found.dr.value == pytest.approx(2 + (0.5 * 1 + 0 + 0 - 3 * 0.5) / 4)


@pytest.mark.long
def test_inverse_propensity_is_unbiased_in_small_samples() -> None:
    means = np.array([Bandit(30, seed).value().ips.value for seed in range(1500)])
    assert means.mean() == pytest.approx(TRUTH, abs=4 * means.std() / np.sqrt(len(means)))
    assert means.std() / np.sqrt(len(means)) < 0.03


def test_doubly_robust_needs_one_of_model_and_propensities() -> None:
    wrong_model = Bandit(200_000, 1, model=WRONG_MODEL).value()
    assert wrong_model.dr.value == pytest.approx(TRUTH, abs=0.06)
    assert wrong_model.model.value == pytest.approx(10)
    wrong_weights = Bandit(200_000, 2, propensity=WRONG_PROPENSITY).value()
    assert wrong_weights.dr.value == pytest.approx(TRUTH, abs=0.04)
    assert abs(wrong_weights.ips.value - TRUTH) > 0.3
    both = Bandit(200_000, 3, propensity=WRONG_PROPENSITY, model=WRONG_MODEL).value()
    assert abs(both.dr.value - TRUTH) > 0.3


def test_a_good_model_makes_it_less_variable() -> None:
    found = Bandit(20_000, 4).value()
    assert found.dr.high - found.dr.low < 0.8 * (found.ips.high - found.ips.low)


@pytest.mark.long
def test_intervals_cover_the_value_as_often_as_they_say() -> None:
    runs = [Bandit(400, seed).value() for seed in range(250)]
    for name in ("ips", "snips", "dr"):
        estimates = [getattr(run, name) for run in runs]
        covered = np.mean([each.low <= TRUTH <= each.high for each in estimates])
        assert 0.91 <= covered <= 0.98, (name, covered)


@pytest.mark.long
def test_blocks_keep_what_belongs_together_together() -> None:
    """Each of 40 levels holds for 25 decisions: single decisions would make the interval 5 times too narrow."""
    rng = np.random.default_rng(5)
    levels = rng.normal(0, 1, (100, 40))
    covered = {}
    for length in (25.0, 1.0):
        found = []
        for run in levels:
            estimate = Blocks(np.arange(1000.0), length).mean(np.repeat(run, 25)).estimate()
            found.append(estimate.low <= 0 <= estimate.high)
        covered[length] = np.mean(found)
    assert 0.86 <= covered[25.0] <= 0.99
    assert covered[1.0] < 0.5


def test_effective_sample_size_is_kishs() -> None:
    assert effective_sample_size(np.ones(7)) == pytest.approx(7)
    assert effective_sample_size(np.array([3.0, 0, 0])) == pytest.approx(1)
    assert effective_sample_size(np.array([1.0, 2.0, 3.0])) == pytest.approx(36 / 14)
    assert effective_sample_size(np.zeros(3)) == 0


def test_clipping_cuts_off() -> None:
    weight = np.array([0.5, 2.0, 30.0])
    assert clipped(weight, 4.0).tolist() == [0.5, 2.0, 4.0]
    assert clipped(weight, None) is weight


def test_weighted_quantiles() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert weighted_quantile(values, np.ones(4), 0.5) == 2
    assert weighted_quantile(values, np.ones(4), 0.51) == 3
    assert weighted_quantile(values, np.array([1.0, 0.0, 0.0, 3.0]), 0.25) == 1
    assert weighted_quantile(values, np.array([1.0, 0.0, 0.0, 3.0]), 0.26) == 4
    assert np.isnan(weighted_quantile(values, np.zeros(4), 0.5))
    draws = Blocks(np.arange(1000.0), 1.0).quantile(np.arange(1000.0), np.ones(1000), 0.9)
    assert draws.value == 899
    estimate = draws.estimate()
    assert estimate.low == pytest.approx(899 - 1.96 * np.sqrt(90), abs=4)
    assert estimate.high == pytest.approx(899 + 1.96 * np.sqrt(90), abs=4)


def test_how_long_outcomes_stay_alike() -> None:
    rng = np.random.default_rng(6)
    noise = rng.normal(0, 1, 40_000)
    series = np.zeros(40_000)
    for i in range(1, len(series)):
        series[i] = 0.9 * series[i - 1] + noise[i]
    at_s = np.arange(40_000) / 100
    # An autoregression with 0.9 has the integrated autocorrelation (1 + 0.9) / (1 - 0.9) = 19 steps.
    assert correlation_s(at_s, series) == pytest.approx(0.19, rel=0.3)
    assert correlation_s(at_s, noise) < 0.03
    assert block_length_s(at_s, series) == pytest.approx(4.0, rel=0.01)  # a hundredth of the log
    assert block_length_s(at_s[:1000], series[:1000]) == pytest.approx(0.5, rel=0.01)  # a twentieth


def test_isotonic_regression_goes_through_what_ascends_and_levels_what_does_not() -> None:
    model = Isotonic(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 5.0]))
    np.testing.assert_allclose(model(np.array([[0.0, 1.0], [2.5, 3.5], [4.0, 99.0]])), [[1, 1], [2.5, 3.75], [5, 5]])
    assert Isotonic(np.zeros(0), np.zeros(0))(np.ones(2)).tolist() == [0, 0]


def test_nothing_is_used_on_what_it_was_fitted_on() -> None:
    block = np.repeat(np.arange(10), 3)
    seen = np.zeros(30, int)
    for fitted, used in folds(block):
        assert not (fitted & used).any()
        assert not set(block[fitted]) & set(block[used])
        seen += used
    assert seen.tolist() == [1] * 30
