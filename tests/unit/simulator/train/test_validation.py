"""What an evaluation says, and on which episodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from policies.base import Policy
from policies.expected_latency import ExpectedLatency
from policies.learned import Learned
from policies.learned.network import untrained
from simulator.pool import LocalPool, TaskPool
from simulator.run import run
from simulator.scenario import load_scenario
from simulator.train import validation
from simulator.train.arena import Arena
from simulator.train.scenarios import Randomised
from simulator.train.validation import (
    RANDOM,
    REPORT_SEED,
    MeanAndTail,
    Validation,
    ValidationEpisode,
    cases,
    validation_cases,
)

STALE, BURSTY = load_scenario("stale-reports"), load_scenario("heterogeneous-bursty")


def test_training_cannot_draw_the_seeds_of_validation_nor_validation_those_of_the_report() -> None:
    chosen = validation_cases([STALE, BURSTY], 0.7, 128)
    seeds = {case.seed for case in chosen}
    arena = Arena(Randomised((STALE,), 0.0), 50, 20)
    drawn = {arena.load(0, np.random.default_rng(k)).seed for k in range(50)}
    assert max(drawn) < min(seeds)
    assert max(seeds) < min(case.seed for case in cases([STALE], 10, 50, REPORT_SEED))


def test_validation_is_mixed_as_training_is() -> None:
    groups = [case.group for case in validation_cases([STALE, BURSTY], 0.75, 16)]
    assert {name: groups.count(name) for name in set(groups)} == {STALE.name: 2, BURSTY.name: 2, RANDOM: 12}
    assert {case.group for case in validation_cases([STALE], 1.0, 16)} == {RANDOM}
    assert {case.group for case in validation_cases([STALE], 0.0, 16)} == {STALE.name}


def test_random_scenarios_are_the_same_each_time_and_different_from_each_other() -> None:
    once, again = (validation_cases([], 1.0, 4) for _ in range(2))
    assert [repr(case.scenario) for case in once] == [repr(case.scenario) for case in again]
    assert len({repr(case.scenario) for case in once}) == 4


def test_latencies_are_those_of_a_run_after_warm_up_in_the_order_of_the_cases() -> None:
    chosen = cases([STALE, BURSTY], 3, 0, REPORT_SEED)
    found = validation.latencies(chosen, 200, ExpectedLatency(), LocalPool())
    for k, case in enumerate(chosen):
        arrivals = case.scenario.arrivals(case.seed, 200)
        alone = run(case.scenario.fleet, [arrivals], ExpectedLatency(), seeds=[case.seed]).latency_s[0, 20:]
        assert found.mean_s[k] == pytest.approx(alone.mean(), rel=1e-12)
        assert found.p99_s[k] == pytest.approx(np.quantile(alone, 0.99), rel=1e-12)


def _scripted(ratios: dict[str, list[tuple[float, float]]], monkeypatch: pytest.MonkeyPatch) -> list[ValidationEpisode]:
    """Latencies by a script: `expected_latency` takes 1 s always, the network these ratios of mean and p99."""
    nothing: Any = None
    chosen = [ValidationEpisode(group, nothing, k) for group, each in ratios.items() for k in range(len(each))]
    script = np.array([pair for each in ratios.values() for pair in each])

    def latencies(chosen: Sequence[ValidationEpisode], requests: int, policy: Policy, pool: TaskPool) -> MeanAndTail:
        times = script if isinstance(policy, Learned) else np.ones_like(script)
        return MeanAndTail(times[:, 0], times[:, 1])

    monkeypatch.setattr(validation, "latencies", latencies)
    return chosen


def test_ratios_are_geometric_means_and_the_worst_is_of_a_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _scripted(
        {"one": [(0.5, 1.0), (2.0, 1.0)], "other": [(0.25, 0.5), (0.25, 0.5)], RANDOM: [(0.5, 4.0)] * 3}, monkeypatch
    )
    judged = Validation(chosen, 10, 0.5, LocalPool()).judge(untrained(), LocalPool())
    # Scenarios: 1 and 0.25 with weight 0.25 each, 0.5 with 0.5.
    assert judged.mean == pytest.approx(1.0**0.25 * 0.25**0.25 * 0.5**0.5)
    assert judged.p99 == pytest.approx(1.0**0.25 * 0.5**0.25 * 4.0**0.5)
    assert (judged.worst_mean, judged.worst_p99) == pytest.approx((1.0, 4.0))


def test_what_is_worse_costs_twice_what_is_better_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _scripted({"one": [(np.e, 1.0)], "other": [(1 / np.e, 1.0)]}, monkeypatch)
    assert Validation(chosen, 10, 0.0, LocalPool()).judge(untrained(), LocalPool()).cost == pytest.approx((2 - 1) / 2)
    chosen = _scripted({"one": [(1.0, np.e)], "other": [(1.0, 1 / np.e)]}, monkeypatch)
    assert Validation(chosen, 10, 0.0, LocalPool()).judge(untrained(), LocalPool()).cost == pytest.approx(
        0.5 * (2 - 1) / 2
    )


def test_without_named_scenarios_random_ones_are_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _scripted({RANDOM: [(0.5, 0.5), (0.125, 0.5)]}, monkeypatch)
    judged = Validation(chosen, 10, 1.0, LocalPool()).judge(untrained(), LocalPool())
    assert (judged.mean, judged.p99, judged.worst_mean) == pytest.approx((0.25, 0.5, 0.25))


def test_the_scoreboard_of_the_untrained_network_is_around_one_and_has_intervals() -> None:
    board = validation.scoreboard(untrained(beta=1000.0), cases([STALE], 4, 0, REPORT_SEED), 300, LocalPool())
    assert board.keys() == {STALE.name}
    assert board[STALE.name].keys() == {"expected_latency", "wlpr"}
    for name in ("mean", "p99"):
        value, low, high = board[STALE.name]["expected_latency"][name]
        assert low <= value <= high
        assert value == pytest.approx(1.0, abs=0.2)
