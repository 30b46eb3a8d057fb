import numpy as np
import pytest
from support.results import make_result

from simulator.compare.metrics import TAIL_SHARES, jain, measure
from simulator.result import Status


def test_latency_is_that_of_numpy_in_each_environment() -> None:
    latency_s = np.random.default_rng(1).gamma(1.0, 0.01, (3, 500))
    found = measure(make_result(latency_s), warm_up_share=0.0)
    np.testing.assert_allclose(found.latency.mean_s, latency_s.mean(axis=1))
    levels = (found.latency.p50_s, found.latency.p95_s, found.latency.p99_s, found.latency.p999_s)
    np.testing.assert_allclose(levels, np.quantile(latency_s, [0.5, 0.95, 0.99, 0.999], axis=1))
    np.testing.assert_allclose(found.tail_s, np.quantile(latency_s, 1 - TAIL_SHARES, axis=1).T)


def test_the_first_tenth_is_warm_up() -> None:
    latency_s = np.array([[99.0, *[1.0] * 9]])
    found = measure(make_result(latency_s))
    assert found.latency.mean_s == 1.0
    assert found.latency.requests == 9
    # From the first counted arrival, at 1 s, to the end: request 0, answered at 99 s.
    assert found.throughput_per_s == pytest.approx(9 / 98)


def test_only_requests_answered_well_have_a_latency_and_all_others_missed_their_deadline() -> None:
    status = np.array([[Status.OK, Status.OK, Status.SHED, Status.ERROR, Status.UNAVAILABLE, Status.UNFINISHED]])
    latency_s = np.array([[0.1, 0.3, 0.0, 0.0, 0.0, np.nan]])
    deadline_s = np.full((1, 6), 0.2)
    found = measure(make_result(latency_s, status=status, deadline_s=deadline_s, end_s=np.array([10.0])), 0.0)
    assert found.latency.mean_s == pytest.approx(0.2)
    assert found.latency.within_deadline == pytest.approx(1 / 6)
    assert found.goodput_per_s == pytest.approx(0.1)
    assert found.throughput_per_s == pytest.approx(0.2)
    assert {name: float(share[0]) * 6 for name, share in found.shares.items()} == pytest.approx(
        {"ok": 2, "shed": 1, "error": 1, "unavailable": 1, "unfinished": 1, "no_worker": 0, "cancelled": 0}
    )


def test_a_request_without_deadline_is_good_and_counts_in_no_share() -> None:
    found = measure(make_result([[0.1, 5.0]], end_s=np.array([2.0])), 0.0)
    assert found.goodput_per_s == 1.0
    assert np.isnan(found.latency.within_deadline[0])


def test_models_and_workers_are_told_apart() -> None:
    found = measure(
        make_result(
            [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]],
            models=("a", "b"),
            model=np.array([[0, 1, 0, 1], [0, 0, 0, 0]]),
            worker=np.array([[0, 1, 1, 1], [0, 0, 0, -1]]),
        ),
        0.0,
    )
    np.testing.assert_allclose(found.models["a"].mean_s, [2.0, 6.5])
    np.testing.assert_allclose(found.models["b"].mean_s, [3.0, np.nan])
    assert np.isnan(found.models["b"].p99_s[1])
    np.testing.assert_array_equal(found.worker_requests, [[1, 3], [3, 0]])


def test_an_environment_in_which_nothing_was_answered_has_no_latency() -> None:
    found = measure(make_result([[0.0, 0.0], [1.0, 1.0]], status=np.array([[Status.SHED] * 2, [Status.OK] * 2])), 0.0)
    assert np.isnan(found.latency.p99_s[0])
    assert np.isnan(found.tail_s[0]).all()
    assert found.latency.p99_s[1] == 1.0
    np.testing.assert_array_equal(found.throughput_per_s > 0, [False, True])


def test_fairness() -> None:
    np.testing.assert_allclose(jain(np.array([[1.0, 1.0], [1.0, 0.0], [0.2, 0.4]])), [1.0, 0.5, 0.9])
    assert np.isnan(jain(np.zeros(3)))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_warm_up_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"warm_up_share is {share}, must be"):
        measure(make_result([[1.0]]), share)


def test_of_prompts_that_were_begun_shares_of_tokens_are_told() -> None:
    tokens = {
        "prompt_tokens": np.array([[100.0, 300.0, 400.0, np.nan]]),
        "cached_tokens": np.array([[50.0, 100.0, np.nan, np.nan]]),
        "matched_tokens": np.array([[30.0, 110.0, 400.0, np.nan]]),
    }
    found = measure(make_result([[0.5] * 4], **tokens), 0.0).prompts
    assert [found.cached[0], found.missed[0], found.false[0]] == pytest.approx([150 / 400, 20 / 400, 10 / 400])
    assert np.isnan(measure(make_result([[0.5]]), 0.0).prompts.cached[0])


def test_first_responses_are_those_of_streams_that_were_answered_well() -> None:
    status = np.array([[Status.OK, Status.OK, Status.CANCELLED, Status.OK]])
    first_s = np.array([[0.1, np.nan, np.nan, 0.3]])
    found = measure(make_result([[0.5, 0.5, 0.5, 0.5]], status=status, first_s=first_s), 0.0)
    assert found.first_mean_s == pytest.approx(0.2)
    assert found.shares["cancelled"] == 0.25
    assert np.isnan(measure(make_result([[0.5]]), 0.0).first_mean_s[0])
