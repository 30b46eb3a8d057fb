import numpy as np
import pytest

from simulator.workload.draws import (
    Distribution,
    Exponential,
    Lognormal,
    Pareto,
    Sessions,
    Shares,
    UniformInt,
    UniformKeys,
    ZipfKeys,
    mean_rows,
    whole_rows,
)

U = np.random.default_rng(1).random(200_000)


@pytest.mark.parametrize(
    "distribution",
    [
        Shares({3: 1.0}),
        UniformInt(2, 7),
        Shares({1: 3, 8: 1}),
        Pareto(1.5, 100),
        Pareto(0.8, 20, 2),
        Lognormal(1, 5),
        Exponential(),
    ],
)
def test_draws_have_the_mean_that_is_told(distribution: Distribution) -> None:
    drawn = distribution.quantile(U)
    assert drawn.mean() == pytest.approx(distribution.mean, rel=0.02)
    assert drawn.min() > 0


@pytest.mark.parametrize("distribution", [Lognormal(2), Exponential(), Pareto(1.5, 100)])
def test_no_uniform_number_gives_nothing_or_infinity(distribution: Distribution) -> None:
    ends = distribution.quantile(np.array([0.0, np.nextafter(1, 0)]))
    assert np.all(np.isfinite(ends))
    assert np.all(ends > 0)


def test_shares_and_ranges_are_as_given() -> None:
    drawn = Shares({1: 3, 8: 1, 5: 0}).quantile(U)
    assert set(drawn) == {1, 8}
    assert np.mean(drawn == 1) == pytest.approx(0.75, abs=0.01)
    assert set(UniformInt(2, 4).quantile(U)) == {2, 3, 4}


def test_the_tail_is_as_heavy_as_its_exponent_and_bounded() -> None:
    drawn = Pareto(1.2, 1000).quantile(U)
    assert drawn.max() <= 1000
    beyond = [np.mean(drawn > x) for x in (5, 50)]
    assert np.log10(beyond[0] / beyond[1]) == pytest.approx(1.2, abs=0.1)


def test_rows_are_whole_and_capped_and_their_mean_is_known() -> None:
    sizes = Pareto(1.2, 64)
    rows = whole_rows(sizes.quantile(U), 16)
    assert rows.min() == 2  # rounded up from just above 1
    assert rows.max() == 16
    assert mean_rows(sizes, 16) == pytest.approx(rows.mean(), rel=0.01)
    assert mean_rows(Shares({1: 1, 3: 1}), 16) == 2


def test_uniform_keys_are_all_used_alike_and_none_is_zero() -> None:
    keys = UniformKeys(10).draw(10_000, np.random.default_rng(1))
    counts = np.unique(keys, return_counts=True)[1]
    assert len(counts) == 10
    assert counts.min() > 900
    assert keys.min() > 0


def test_zipf_keys_come_by_their_rank() -> None:
    keys = ZipfKeys(1000, 1.0).draw(100_000, np.random.default_rng(1))
    counts = np.sort(np.unique(keys, return_counts=True)[1])[::-1]
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.15)


def test_sessions_last_as_long_as_said_and_do_not_come_back() -> None:
    keys = Sessions(active=20, mean_requests=5).draw(50_000, np.random.default_rng(1))
    counts = np.unique(keys, return_counts=True)[1]
    assert counts.mean() == pytest.approx(5, rel=0.05)
    # At any moment no more than the active ones: between a key's first and last request others of its place are out.
    first, last = {}, {}
    for i, key in enumerate(keys.tolist()):
        first.setdefault(key, i)
        last[key] = i
    middle = len(keys) // 2
    assert sum(first[key] <= middle <= last[key] for key in first) <= 20


@pytest.mark.parametrize("keys", [UniformKeys(50), ZipfKeys(50, 1.1), Sessions(5, 4)])
def test_more_keys_begin_as_fewer(keys) -> None:
    long, short = keys.draw(1000, np.random.default_rng(2)), keys.draw(100, np.random.default_rng(2))
    assert np.array_equal(long[:100], short)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: UniformInt(3, 2), "low is 3 and high 2: give 1 <= low <= high"),
        (lambda: Shares({1: -1}), "greater than or equal to 0 .*input_value=-1"),
        (lambda: Shares({}), "one of them above"),
        (lambda: Pareto(1.0), "shape is 1: give 0.999"),
        (lambda: Pareto(2, 1), "high is 1.0: give a number above 1"),
        (lambda: Lognormal(cv=-1), r"cv\n.*greater than 0"),
        (lambda: UniformKeys(count=0), r"count\n.*greater than or equal to 1"),
        (lambda: ZipfKeys(3, exponent=-1), r"exponent\n.*greater"),
        (lambda: Sessions(active=0), r"active\n.*greater"),
        (lambda: Sessions(1, mean_requests=0.5), r"mean_requests\n.*greater"),
    ],
)
def test_what_is_out_of_range_is_named(make, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()
