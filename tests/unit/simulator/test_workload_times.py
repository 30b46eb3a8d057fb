import numpy as np
import pytest
from support.dispersion import dispersion

from balancer.load.arrivals import Bursts
from simulator.workload.times import Diurnal, FlashCrowd, Poisson, Process, Uniform, draw_times

PROCESSES = [
    Poisson(),
    Uniform(),
    Bursts(4, 0.2, 0.6),
    Diurnal(5, 0.8),
    FlashCrowd(5, 0.5, period_s=8, first_s=3),
]


def drawn(process: Process, rate_per_s: float = 100, count: int = 20_000, seed: int = 1) -> np.ndarray:
    return draw_times(process, rate_per_s, count, np.random.default_rng(seed))


@pytest.mark.parametrize("process", PROCESSES)
def test_the_mean_rate_is_the_one_asked_for(process: Process) -> None:
    time_s = drawn(process)
    assert len(time_s) == 20_000
    assert time_s[0] >= 0
    assert np.all(np.diff(time_s) >= 0)
    assert len(time_s) / time_s[-1] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("process", PROCESSES)
def test_a_longer_run_begins_as_a_shorter_one(process: Process) -> None:
    assert np.array_equal(drawn(process, count=20_000)[:500], drawn(process, count=500))


@pytest.mark.parametrize("process", PROCESSES)
def test_seeds_repeat(process: Process) -> None:
    assert np.array_equal(drawn(process, count=100, seed=3), drawn(process, count=100, seed=3))
    if not isinstance(process, Uniform):
        assert not np.array_equal(drawn(process, count=100, seed=3), drawn(process, count=100, seed=4))


def test_counts_are_as_dispersed_as_the_process_says() -> None:
    assert dispersion(drawn(Poisson()), 190, 1.0) == pytest.approx(1, abs=0.3)
    assert dispersion(drawn(Uniform()), 190, 1.0) == pytest.approx(0, abs=0.01)
    assert dispersion(drawn(Bursts(4, 0.2, 0.6)), 190, 1.0) > 5


def test_bursts_change_the_rate_by_their_factor() -> None:
    time_s = drawn(Bursts(10, 5, 5), rate_per_s=1000, count=100_000)
    rates = np.histogram(time_s, bins=np.arange(0, int(time_s[-1]), 0.1))[0] * 10
    # Rates of the two states, of which the mean is 1000: 10 x and x with x = 1000 / 5.5.
    assert np.percentile(rates, 95) == pytest.approx(10_000 / 5.5, rel=0.15)
    assert np.percentile(rates, 10) == pytest.approx(1000 / 5.5, rel=0.25)


def test_a_day_peaks_after_a_quarter_and_has_its_trough_after_three() -> None:
    phase = drawn(Diurnal(5, 0.8), count=200_000) % 5
    counts = np.histogram(phase, bins=[1.0, 1.5, 3.5, 4.0])[0]
    assert counts[0] / counts[2] == pytest.approx((1 + 0.8 * 0.984) / (1 - 0.8 * 0.984), rel=0.1)


def test_a_crowd_comes_at_its_moment_and_decays() -> None:
    phase = drawn(FlashCrowd(5, 0.5, period_s=8, first_s=3), count=200_000) % 8
    before, jump, after = (np.histogram(phase, bins=[at, at + 0.1])[0][0] for at in (2.9, 3.0, 4.0))
    assert jump / before == pytest.approx(1 + 4 * np.exp(-0.1), rel=0.1)
    assert after / before == pytest.approx(1 + 4 * np.exp(-2.1), rel=0.15)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Diurnal(period_s=0), r"period_s\n.*greater than 0"),
        (lambda: Diurnal(1, amplitude=1.5), r"amplitude\n.*less than or equal to 1"),
        (lambda: FlashCrowd(factor=0.5), r"factor\n.*greater than or equal to 1"),
        (lambda: FlashCrowd(period_s=5, first_s=5), "first_s is 5.0: give seconds from 0"),
        (lambda: drawn(Poisson(), rate_per_s=0), "rate_per_s is 0: give requests per second"),
    ],
)
def test_what_is_out_of_range_is_named(make, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()
