"""REINFORCE: returns by hand, steps downhill where one knows the way, and runs that resume exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.two_workers import SERVICE, misled, two_workers

pytest.importorskip("torch", reason="torch is not installed; make setup installs it")

from simulator.train.pool import LocalPool  # after the check for torch
from simulator.train.reinforce import Reinforce, ReinforceSettings, returns_to_go

SETTINGS = ReinforceSettings(iterations=12, episodes=16, requests=100, hidden=2, learning_rate=0.02)
SMALL = dataclasses.replace(SETTINGS, episodes=3, requests=30)


def test_returns_to_go_by_hand() -> None:
    cost = np.array([[1.0, 4.0], [2.0, 9.0], [3.0, 9.0]])
    passed = np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 0.0]])
    taken = np.array([[True, True], [True, False], [True, False]])
    coming = returns_to_go(cost, passed, taken, horizon=2.0)
    second = 2.0 + 3.0 * np.exp(-2)
    assert coming == pytest.approx(np.array([[1.0 + second * np.exp(-1), 4.0], [second, 0.0], [3.0, 0.0]]))


def test_it_unlearns_to_prefer_the_slow_worker() -> None:
    algorithm = Reinforce(SETTINGS, two_workers(), seed=0, start=misled())
    costs = [algorithm.iterate(LocalPool())["cost"] for _ in range(SETTINGS.iterations)]
    assert costs[0] > 1.2
    assert np.mean(costs[-2:]) < 0.5 * (costs[0] + 1)
    assert algorithm.network.bias[SERVICE] > misled().bias[SERVICE] + 0.2


def test_the_baseline_foresees_some_of_what_comes() -> None:
    algorithm = Reinforce(SETTINGS, two_workers(), seed=0)
    told = [algorithm.iterate(LocalPool()) for _ in range(6)]
    # At first it knows nothing; what it says then goes up and down.
    assert np.mean([each["surprise"] / each["spread"] for each in told[-3:]]) < 0.9


def test_it_goes_on_from_its_state_exactly() -> None:
    straight = Reinforce(SMALL, two_workers(), seed=3)
    straight.iterate(LocalPool())
    resumed = Reinforce(SMALL, two_workers(), seed=3)
    resumed.restore(straight.state())
    for algorithm in (straight, resumed):
        algorithm.iterate(LocalPool())
    for name, array in straight.state().items():
        assert np.array_equal(array, resumed.state()[name]), name
    assert straight.iteration == resumed.iteration == 2


def test_what_is_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"episodes\n.*greater than or equal to 1"):
        ReinforceSettings(episodes=0)
