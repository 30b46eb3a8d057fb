import json
import math

import numpy as np
import pytest

from balancer.load.result import LoadResult, by_model, by_worker, joined, quantile_interval, quantiles, ranks, summarise


def synthetic(count: int = 100, codes: tuple[str, ...] = ("OK", "UNAVAILABLE"), start_s: float = 0.0) -> LoadResult:
    """One request each 10 ms, alternately to a and b, latency 1 to `count` ms, each tenth failed."""
    index = np.arange(count)
    scheduled_s = start_s + index / 100
    return LoadResult(
        models=("a", "b"),
        codes=codes,
        workers=("w1", "w0"),
        duration_s=count / 100,
        scheduled_s=scheduled_s,
        started_s=scheduled_s + 0.0005,
        latency_s=(index + 1) / 1e3,
        deadline_s=np.where(index % 2 == 0, 0.05, math.inf),
        rows=np.ones(count, np.int64),
        model=index % 2,
        code=np.where(index % 10 == 9, codes.index("UNAVAILABLE"), codes.index("OK")),
        worker=np.where(index % 10 == 9, -1, index % 4 // 2),
    )


def test_a_summary_counts_what_succeeded_and_names_what_failed() -> None:
    summary = summarise(synthetic())
    assert (summary.requests, summary.ok, summary.errors) == (100, 90, {"UNAVAILABLE": 10})
    assert summary.achieved_per_s == pytest.approx(90)
    assert summary.by_worker == {"w0": 45, "w1": 45}
    assert summary.late_p99_s == pytest.approx(0.0005)
    kept = synthetic().latency_s[synthetic().ok]
    assert (summary.mean_s, summary.p99_s) == pytest.approx((kept.mean(), np.quantile(kept, 0.99)))
    # Of the 50 with a deadline of 50 ms (latencies 1, 3, ... 99 ms), 25 took no longer.
    assert summary.within_deadline == pytest.approx(0.5)


def test_a_failed_request_is_not_within_its_deadline() -> None:
    result = synthetic()
    failed = result.where(~result.ok)
    assert summarise(by_model(failed)["b"]).ok == 0
    nothing = summarise(result.where(np.zeros(100, bool)))
    assert math.isnan(nothing.p50_s)
    assert nothing.as_json()["p50_s"] is None
    json.dumps(nothing.as_json(), allow_nan=False)


def test_records_are_cut_by_model_worker_and_time() -> None:
    result = synthetic()
    assert {name: len(part) for name, part in by_model(result).items()} == {"a": 50, "b": 50}
    assert list(by_worker(result)) == ["w0", "w1"]
    cut = result.between(0.2, 0.5)
    assert len(cut) == 30
    assert cut.duration_s == pytest.approx(0.3)


def test_joining_keeps_the_meaning_of_codes_and_workers() -> None:
    first, second = synthetic(), synthetic(codes=("UNAVAILABLE", "OK"))
    summary = summarise(joined([first, second]))
    assert (summary.requests, summary.ok, summary.errors) == (200, 180, {"UNAVAILABLE": 20})
    assert summary.by_worker == {"w0": 90, "w1": 90}
    with pytest.raises(ValueError, match="at least one"):
        joined([])


def test_quantiles_of_nothing_are_not_a_number() -> None:
    assert all(math.isnan(value) for value in quantiles(np.empty(0), (0.5, 0.9)))


def test_the_interval_of_correlated_values_is_wide_and_needs_two_blocks() -> None:
    generator = np.random.default_rng(0)
    block = np.repeat(np.arange(20), 50)
    # Each block shares a level, so 1,000 values tell little more than 20.
    alike = generator.normal(size=20)[block] + 0.01 * generator.normal(size=1000)
    low, high = quantile_interval(alike, block, 0.5)
    assert low < float(np.median(alike)) < high
    unlike = generator.normal(size=1000)
    narrow_low, narrow_high = quantile_interval(unlike, np.arange(1000), 0.5)
    assert high - low > 3 * (narrow_high - narrow_low)
    assert all(math.isnan(value) for value in quantile_interval(alike, np.zeros(1000, np.int64), 0.5))


def test_only_what_can_be_told_apart_gets_another_rank() -> None:
    """Three that differ by noise alone, though one of them is the lowest, and one that is half as slow again."""
    generator = np.random.default_rng(0)
    block = np.repeat(np.arange(24), 80)
    # What all meet: bursts, which make whole blocks slow.
    burst = np.repeat(generator.gamma(2.0, 0.02, 24), 80) + 0.005
    alike = [burst * generator.gamma(20.0, 0.05, len(burst)) for _ in range(3)]
    found = ranks([*((values, block) for values in alike), (alike[0] * 1.5, block)], 0.99)
    assert found == [1, 1, 1, 4]
    assert len({float(np.quantile(values, 0.99)) for values in alike}) == 3


def test_ranks_of_too_little_are_all_the_first() -> None:
    values, one_block = np.linspace(0.1, 0.2, 50), np.zeros(50, np.int64)
    assert ranks([], 0.99) == []
    assert ranks([(values, one_block), (values * 9, one_block)], 0.99) == [1, 1]
    assert ranks([(values, np.arange(50)), (values, np.arange(50))], 0.99) == [1, 1]
