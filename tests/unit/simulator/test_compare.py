import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from support.results import fake_run, fake_social

from policies import BUILTIN
from simulator import pool
from simulator.compare import compare as comparing
from simulator.compare import statistics, summary
from simulator.compare.compare import ComparisonPlan, burst, compare
from simulator.pool import Processes
from simulator.scenario import Scenario, load_scenario

POLICIES = {name: BUILTIN[name]() for name in ("wlpr", "power_of_two", "random")}


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "run", fake_run)
    monkeypatch.setattr(comparing, "run_social", fake_social)


def scenario(name: str = "homogeneous-steady") -> Scenario:
    return load_scenario(name)


def test_every_policy_and_reference_runs_once_and_progress_adds_up() -> None:
    plan = ComparisonPlan((scenario(),), POLICIES, (0, 1, 2), requests=100, sweep=(0.5, 0.8), timelines=True)
    advanced: list[int] = []
    (board,) = compare(plan, advance=advanced.append)
    # 3 policies as production sees the fleet, 3 exact, 3 references, 6 of the sweep; and 3 timelines of one seed.
    assert sum(advanced) == plan.total() == 15 * 300 + 3 * 100
    assert set(board.policies) == set(board.exact) == set(board.timelines) == set(POLICIES)
    assert set(board.references) == {"exact queues", "clairvoyant", "social"}
    assert {policy: list(found) for policy, found in board.sweep.items()} == {each: [0.5, 0.8] for each in POLICIES}
    assert board.load == pytest.approx(0.7, abs=0.2)


def test_a_reference_that_is_also_compared_runs_once() -> None:
    plan = ComparisonPlan((scenario(),), {"expected_latency": BUILTIN["expected_latency"]()}, (0,), requests=100)
    assert len(plan.jobs()) == 4


def test_without_the_ladder_nothing_is_regretted() -> None:
    (board,) = compare(ComparisonPlan((scenario(),), POLICIES, (0, 1), requests=100, load=0.5, ladder=False))
    assert board.load == pytest.approx(0.5)
    assert summary.regrets(board, "wlpr", "mean_s") == {}
    assert set(summary.aggregate([board], "wlpr")) == set(POLICIES)


def test_regret_is_the_paired_difference_to_each_reference() -> None:
    (board,) = compare(ComparisonPlan((scenario(),), POLICIES, (0, 1, 2, 3), requests=200))
    found = summary.regrets(board, "wlpr", "p99_s")
    assert list(found) == ["pooled", "social", "clairvoyant", "exact queues", "same policy, exact queues"]
    ours, exact = board.policies["wlpr"].latency.p99_s, board.exact["wlpr"].latency.p99_s
    assert found["same policy, exact queues"].value == pytest.approx(np.mean(ours - exact))


def test_the_best_is_the_one_of_least_mean_and_others_are_multiples_of_it() -> None:
    (board,) = compare(ComparisonPlan((scenario(),), POLICIES, (0, 1, 2, 3), requests=200))
    means = {policy: metrics.latency.mean_s.mean() for policy, metrics in board.policies.items()}
    best = min(means, key=means.__getitem__)
    assert summary.ranked(board)[0] == best
    found = {policy: summary.cell(board, policy, "mean_s") for policy in POLICIES}
    assert (found[best].best, found[best].tied, found[best].ratio.value) == (True, True, pytest.approx(1))
    assert all(each.ratio.value >= 1 for each in found.values())
    worst = max(means, key=means.__getitem__)
    assert list(summary.losses([board], worst, "mean_s")) == ["homogeneous-steady"]
    assert summary.losses([board], best, "mean_s") == {}


def test_aggregates_are_relative_to_the_clairvoyant() -> None:
    boards = compare(ComparisonPlan((scenario(), scenario("stale-reports")), POLICIES, (0, 1, 2), requests=200))
    found = summary.aggregate(boards, "wlpr")
    scores = np.stack(
        [b.policies["random"].latency.mean_s / b.references["clairvoyant"].latency.mean_s for b in boards]
    )
    assert found["random"].interquartile_mean["mean_s"].value == pytest.approx(statistics.interquartile_mean(scores))
    assert found["wlpr"].improvement["mean_s"].value == pytest.approx(0.5)


def test_processes_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads in place of processes, which would import the real engine; what goes to a process must be picklable."""
    monkeypatch.setattr(pool, "ProcessPoolExecutor", lambda size, **_: ThreadPoolExecutor(size))
    plan = ComparisonPlan((scenario(),), POLICIES, (0, 1), requests=100, sweep=(0.5,))
    advanced: list[int] = []
    with Processes(2) as processes:
        (board,) = compare(pickle.loads(pickle.dumps(plan)), pool=processes, advance=advanced.append)
    assert sum(advanced) == plan.total()
    (alone,) = compare(plan)
    for policy in POLICIES:
        np.testing.assert_array_equal(board.policies[policy].latency.mean_s, alone.policies[policy].latency.mean_s)


def test_a_closed_loop_has_neither_load_nor_sweep_nor_timeline() -> None:
    opened = scenario()
    closed = replace(opened, workload=replace(opened.workload, clients=4))
    (board,) = compare(
        ComparisonPlan((closed,), POLICIES, (0, 1), requests=100, load=0.5, sweep=(0.5,), timelines=True)
    )
    assert np.isnan(board.load)
    assert board.sweep == board.timelines == {}
    assert np.isnan(summary.regrets(board, "wlpr", "mean_s")["pooled"].value)


def test_a_burst_is_where_most_work_arrives() -> None:
    arrivals = scenario().arrivals(0, 2000)
    work = np.where(np.abs(arrivals.time_s / arrivals.time_s[-1] - 0.6) < 0.01, 50.0, 1.0)
    start_s, end_s = burst(replace(arrivals, work=work))
    assert start_s < 0.59 * arrivals.time_s[-1] < 0.61 * arrivals.time_s[-1] < end_s
    assert end_s - start_s == pytest.approx(arrivals.time_s[-1] / 10)


@pytest.mark.parametrize("field", ["scenarios", "policies", "seeds"])
def test_an_empty_plan_is_refused(field: str) -> None:
    plan = replace(ComparisonPlan((scenario(),), POLICIES, (0,)), **{field: ()})
    with pytest.raises(ValueError, match=f"{field} is empty: name at least one"):
        compare(plan)
