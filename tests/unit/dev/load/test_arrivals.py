import numpy as np
import pytest
from support.dispersion import dispersion

from balancer.load.arrivals import Bursts, bursty, poisson, rescaled, uniform


def generator(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_uniform_is_equally_spaced_and_exact() -> None:
    time_s = uniform(0.1, 30)
    assert time_s.tolist() == [0.0, 10.0, 20.0]
    assert len(uniform(200, 10)) == 2000


def test_poisson_has_its_rate_and_a_dispersion_of_one() -> None:
    time_s = poisson(200, 500, generator())
    assert len(time_s) == pytest.approx(100_000, rel=0.02)
    assert np.all(np.diff(time_s) >= 0)
    assert time_s[0] >= 0
    assert time_s[-1] < 500
    assert dispersion(time_s, 500, 0.5) == pytest.approx(1, abs=0.15)


def test_bursty_has_its_rate_and_the_dispersion_of_the_theory() -> None:
    bursts = Bursts(factor=5, mean_burst_s=1, mean_calm_s=3)
    time_s = bursty(200, 4000, bursts, generator())
    assert len(time_s) == pytest.approx(800_000, rel=0.05)
    # The index of dispersion for long windows (Fischer and Meier-Hellstern, 1993):
    # 1 + 2 (l1-l2)^2 r1 r2 / ((r1+r2)^2 (l1 r2+l2 r1))
    calm, burst, leave_burst, leave_calm = 100.0, 500.0, 1.0, 1 / 3
    total = leave_burst + leave_calm
    excess = 2 * (burst - calm) ** 2 * leave_burst * leave_calm / (total**2 * (burst * leave_calm + calm * leave_burst))
    assert dispersion(time_s, 4000, 20) == pytest.approx(1 + excess, rel=0.3)


def test_a_levelled_short_window_has_the_rate_whatever_its_bursts() -> None:
    counts = [len(bursty(200, 5, Bursts(factor=8), generator(seed), level=True)) for seed in range(200)]
    unlevelled = [len(bursty(200, 5, Bursts(factor=8), generator(seed))) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(1000, rel=0.02)
    assert np.std(counts) == pytest.approx(np.sqrt(1000), rel=0.3)
    assert np.std(unlevelled) > 4 * np.std(counts)


def test_rescaling_a_trace_changes_the_rate_and_keeps_the_shape() -> None:
    time_s = bursty(50, 100, Bursts(factor=6), generator()) + 12
    fast = rescaled(time_s, 500)
    assert (len(fast) - 1) / fast[-1] == pytest.approx(500)
    assert fast[0] == 0
    gaps, fast_gaps = np.diff(time_s), np.diff(fast)
    assert fast_gaps / fast_gaps.mean() == pytest.approx(gaps / gaps.mean())
    own_s = time_s[-1] - time_s[0]
    scale = fast[-1] / own_s
    assert dispersion(fast, fast[-1], scale) == pytest.approx(dispersion(time_s - time_s[0], own_s, 1))


@pytest.mark.parametrize(("rate", "duration", "named"), [(0, 1, "rate is 0"), (1, -2, "duration is -2")])
def test_bad_numbers_are_refused_by_name_and_value(rate: float, duration: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        uniform(rate, duration)


def test_bad_bursts_and_traces_without_extent_are_refused() -> None:
    with pytest.raises(ValueError, match=r"burst factor is 0\.5"):
        Bursts(factor=0.5)
    with pytest.raises(ValueError, match="mean_calm_s is 0"):
        Bursts(mean_calm_s=0)
    with pytest.raises(ValueError, match="has no rate"):
        rescaled(np.array([3.0, 3.0]), 10)
