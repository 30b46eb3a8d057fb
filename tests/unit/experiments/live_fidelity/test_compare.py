import numpy as np
import pytest
from support.results import make_result

from experiments.live_fidelity import page
from experiments.live_fidelity.compare import Comparison, Figure, compare, counted, median_error, pairs
from experiments.live_fidelity.session import Session
from tools.load.result import LoadResult

SESSION = Session(policies=("wlpr", "prequal"), rounds=1, window_s=10.0, settle_s=1.0, pause_s=1.0)


def live_result(scheduled_s, latency_s, codes=("OK",)):
    n = len(scheduled_s)
    zeros = np.zeros(n, np.int64)
    return LoadResult(
        models=("m",),
        codes=codes,
        workers=("w1", "w0"),
        duration_s=30.0,
        scheduled_s=scheduled_s,
        started_s=scheduled_s,
        latency_s=latency_s,
        deadline_s=np.full(n, np.inf),
        rows=np.ones(n, np.int64),
        model=zeros,
        code=zeros,
        worker=zeros,
    )


def test_requests_count_after_their_policys_swap_has_settled():
    (first, second) = SESSION.turns()
    times = np.array([1.5, 2.0, 11.9, 12.5, 13.5, 14.0, 23.9])
    assert (first.start_s, first.counted_s, first.end_s) == (1.0, 2.0, 12.0)
    np.testing.assert_array_equal(counted(SESSION, first.policy, times), [0, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(counted(SESSION, second.policy, times), [0, 0, 0, 0, 0, 1, 1])


def test_figures_are_of_the_same_requests_and_errors_relative_to_live():
    scheduled_s = np.linspace(0.0, 23.9, 2391)
    latency_s = np.where(scheduled_s < 12.5, 0.010, 0.020)
    simulated_s = np.stack([latency_s * factor for factor in (1.0, 1.1, 1.3)])
    found = compare(SESSION, live_result(scheduled_s, latency_s), make_result(simulated_s))
    assert [one.policy for one in found] == ["wlpr", "prequal"]
    by_turn = {one.policy: one for one in found}
    fast, slow = (by_turn[turn.policy] for turn in SESSION.turns())
    assert fast.figures["p50"].live_s == pytest.approx(0.010)
    assert fast.figures["p50"].simulated_s == pytest.approx(0.011)
    assert slow.figures["p99"].error == pytest.approx(0.1)
    assert slow.within["m"]["p99"] == pytest.approx(0.1)
    assert median_error(found, "p50") == pytest.approx(0.1)
    # Live all went to the worker that the simulator lists second; there, all to the first.
    np.testing.assert_array_equal(fast.live_share, [0, 1])
    np.testing.assert_array_equal(fast.simulated_share, [1, 0])


def test_a_session_with_failed_requests_is_refused():
    scheduled_s = np.linspace(0.0, 23.9, 10)
    live = live_result(scheduled_s, scheduled_s, codes=("UNAVAILABLE", "OK"))
    with pytest.raises(ValueError, match="0 of 10 requests were answered live"):
        compare(SESSION, live, make_result(scheduled_s))


def comparison(policy, live_s, low_s, high_s, simulated_s):
    figure = Figure(live_s, low_s, high_s, simulated_s, simulated_s, simulated_s)
    nothing = np.ones(1)
    return Comparison(policy, {"p50": figure, "p99": figure}, {}, 1.0, 1.0, nothing, nothing, nothing, nothing)


def test_only_pairs_with_intervals_apart_are_held_to_their_order():
    fast = comparison("a", 1.0, 0.9, 1.1, 1.0)
    near = comparison("b", 1.2, 1.05, 1.5, 0.9)
    slow = comparison("c", 2.0, 1.6, 2.4, 0.95)
    found = {(pair.faster, pair.slower): pair.agrees for pair in pairs([slow, near, fast], "p50")}
    assert found == {("a", "c"): False, ("b", "c"): True}
    assert not page.met([slow, near, fast])
    assert "live a before c" in page.summary([slow, near, fast])


def test_aims_are_met_where_errors_are_small_and_the_order_is_the_same():
    good = [comparison("a", 1.0, 0.9, 1.1, 1.05), comparison("b", 2.0, 1.9, 2.1, 1.9)]
    assert page.met(good)
    assert "2 of 2 pairs" in page.summary(good)
    assert not page.met([comparison("a", 1.0, 0.9, 1.1, 1.15)])
