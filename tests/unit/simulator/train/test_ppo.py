"""PPO: advantages by hand, steps downhill where one knows the way, and runs that resume exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.two_workers import SERVICE, misled, two_workers

pytest.importorskip("torch", reason="torch is not installed; make setup installs it")

from simulator.train.pool import LocalPool, Processes  # after the check for torch
from simulator.train.ppo import Ppo, advantages
from simulator.train.settings import PpoSettings

SETTINGS = PpoSettings(iterations=12, episodes=16, requests=100, hidden=2, critic_hidden=2, minibatch=200)
SMALL = dataclasses.replace(SETTINGS, episodes=3, requests=30)


def test_advantages_by_hand() -> None:
    """In a unit of time, e^(-1/2) with horizon 2, and with trace 1 e^(-3/2) of what the critic did not foresee."""
    settings = PpoSettings(horizon=2.0, trace=1.0)
    cost = np.array([[1.0, 4.0], [2.0, 9.0], [3.0, 9.0]])
    estimate = np.array([[0.5, 1.0], [1.0, 9.0], [2.0, 9.0]])
    passed = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    taken = np.array([[True, True], [True, False], [True, False]])
    advantage, target = advantages(cost, estimate, passed, taken, settings)
    g, k = np.exp(-0.5), np.exp(-1.5)
    third = 3.0 - 2.0
    second = 2.0 + g * 2.0 - 1.0 + k * third
    first = 1.0 + g * 1.0 - 0.5 + k * second
    assert advantage == pytest.approx(np.array([[first, 3.0], [second, 0.0], [third, 0.0]]))
    assert target == pytest.approx(np.array([[first + 0.5, 4.0], [second + 1.0, 0.0], [3.0, 0.0]]))


def test_with_a_long_trace_advantages_are_returns_less_the_estimate() -> None:
    generator = np.random.default_rng(0)
    cost, estimate, passed = (generator.random((5, 2)) for _ in range(3))
    taken = np.ones((5, 2), np.bool_)
    settings = PpoSettings(horizon=3.0, trace=1e12)
    advantage, target = advantages(cost, estimate, passed, taken, settings)
    coming = np.zeros(2)
    for t in reversed(range(5)):
        coming = cost[t] + np.exp(-passed[t] / 3.0) * coming
        assert target[t] == pytest.approx(coming)
        assert advantage[t] == pytest.approx(coming - estimate[t])


def test_it_unlearns_to_prefer_the_slow_worker() -> None:
    settings = dataclasses.replace(SETTINGS, learning_rate=5e-3)
    algorithm = Ppo(settings, two_workers(), seed=0, start=misled())
    costs = [algorithm.iterate(LocalPool())["cost"] for _ in range(settings.iterations)]
    assert costs[0] > 1.2
    assert np.mean(costs[-2:]) < 0.5 * (costs[0] + 1)
    assert algorithm.network.bias[SERVICE] > misled().bias[SERVICE] + 0.2


def test_equal_seeds_give_equal_weights_whatever_the_pool() -> None:
    with Processes(2) as processes:
        vectors = []
        for pool, seed in ((LocalPool(), 1), (processes, 1), (LocalPool(), 2)):
            algorithm = Ppo(SMALL, two_workers(), seed, misled())
            algorithm.iterate(pool)
            vectors.append(np.concatenate([np.ravel(part) for part in algorithm.network]))
    assert np.array_equal(vectors[0], vectors[1])
    assert not np.array_equal(vectors[0], vectors[2])


def test_it_goes_on_from_its_state_exactly() -> None:
    straight = Ppo(SMALL, two_workers(), 3, misled())
    straight.iterate(LocalPool())
    resumed = Ppo(SMALL, two_workers(), 3, misled())
    resumed.restore(straight.state())
    assert resumed.iteration == 1
    for algorithm in (straight, resumed):
        algorithm.iterate(LocalPool())
    left, right = straight.state(), resumed.state()
    assert left.keys() == right.keys()
    assert any(name.endswith("exp_avg_sq") for name in left)
    for name in left:
        assert np.array_equal(left[name], right[name]), name
