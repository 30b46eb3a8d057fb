import numpy as np
import pytest
import scipy.stats

from simulator.compare import statistics
from simulator.compare.statistics import Estimate


@pytest.mark.parametrize("skew", [False, True])
def test_the_interval_is_that_of_scipy(skew: bool) -> None:
    generator = np.random.default_rng(3)
    values = generator.lognormal(0, 1, 30) if skew else generator.normal(10, 1, 30)
    low, high = statistics.interval(values)
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=1).confidence_interval
    width = theirs.high - theirs.low
    # Monte Carlo error of 2,000 resamples.
    assert low == pytest.approx(theirs.low, abs=0.05 * width)
    assert high == pytest.approx(theirs.high, abs=0.08 * width)


def test_intervals_of_many_metrics_at_once_are_those_one_by_one() -> None:
    values = np.random.default_rng(4).gamma(2, 1, (2, 3, 8))
    low, high = statistics.interval(values)
    assert low.shape == (2, 3)
    for place in np.ndindex(2, 3):
        np.testing.assert_allclose((low[place], high[place]), statistics.interval(values[place]))
    assert (low < values.mean(axis=-1)).all()
    assert (high > values.mean(axis=-1)).all()


def test_intervals_that_nobody_can_know() -> None:
    assert np.isnan(statistics.interval(np.array([1.0]))).all()
    assert np.isnan(statistics.interval(np.array([1.0, np.nan, 2.0]))).all()
    assert statistics.mean(np.full(5, 0.3)) == Estimate(*(pytest.approx(0.3),) * 3)
    assert not statistics.mean(np.array([1.0])).excludes(5.0)


def test_paired_comparison_sees_through_seeds_that_differ() -> None:
    baseline = np.array([1.0, 10.0, 100.0, 1000.0, 3.0, 30.0])
    policy = baseline * np.array([0.9, 0.92, 0.9, 0.88, 0.91, 0.89])
    found = statistics.ratio(policy, baseline)
    assert found.value == pytest.approx(0.9, abs=0.005)
    assert 0.85 < found.low < found.value < found.high < 0.95
    assert found.excludes(1.0)
    assert statistics.difference(policy, baseline).value == pytest.approx(np.mean(policy - baseline))


def test_interquartile_mean_drops_a_quarter_at_either_end() -> None:
    scores = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 1e9]])
    assert statistics.interquartile_mean(scores) == pytest.approx((3 + 4 + 5 + 6) / 4)
    np.testing.assert_allclose(statistics.interquartile_mean(np.stack([scores, scores + 1])), [4.5, 5.5])


def test_probability_of_improvement_is_the_mann_whitney_statistic_of_each_scenario() -> None:
    generator = np.random.default_rng(5)
    ours, theirs = generator.integers(0, 9, (3, 7)).astype(float), generator.integers(1, 9, (3, 5)).astype(float)
    by_hand = [scipy.stats.mannwhitneyu(b, a).statistic / 35 for a, b in zip(ours, theirs, strict=True)]
    assert statistics.probability_of_improvement(ours, theirs) == pytest.approx(np.mean(by_hand))
    assert statistics.probability_of_improvement(ours, ours) == pytest.approx(0.5)


def test_performance_profile_counts_runs() -> None:
    scores = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(
        statistics.performance_profile(scores, np.array([0.5, 1.0, 3.5, 4.0])), [0, 0.25, 0.75, 1]
    )


def test_stratified_bootstrap_draws_within_scenarios() -> None:
    scores = np.array([[1.0] * 6, [100.0] * 6])
    value, low, high = statistics.stratified(statistics.interquartile_mean, scores)
    assert value == low == high == pytest.approx(50.5)
    noisy = np.random.default_rng(6).normal(10, 1, (4, 20))
    value, low, high = statistics.stratified(statistics.interquartile_mean, noisy)
    assert low < value < high
    assert high - low < 1
