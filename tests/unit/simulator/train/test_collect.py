"""Decisions of whole episodes: costs add up to what happened, and the control variate takes noise and no signal."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.two_workers import SERVICE, misled, two_workers

from policies.expected_latency import ExpectedLatency
from policies.learned.network import untrained
from simulator.run import run
from simulator.train.arena import arena, counted_latency_s
from simulator.train.collect import CollectedDecisions, collect, in_system, joined, mean_latency_s, normalised
from simulator.train.scenarios import Randomised
from simulator.train.settings import PpoSettings

REQUESTS, EPISODES = 60, 4
SETTINGS = PpoSettings(requests=REQUESTS, tail_weight=0.0, deadline_weight=0.0)
DRAW, NETWORK, TASK = Randomised(random_share=1.0), untrained(2), (EPISODES, (7, 2))


@pytest.fixture(scope="module")
def found() -> CollectedDecisions:
    return collect(SETTINGS, DRAW, NETWORK, TASK)


def test_the_number_in_the_system_and_its_integral() -> None:
    # Two requests from 1 to 4 and from 2 to 3; charged 5 and 7 when they end.
    at_s = np.array([1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 9.0])
    number, integral_s, charged = in_system(np.array([1.0, 2.0]), np.array([4.0, 3.0]), np.array([5.0, 7.0]), at_s)
    assert number.tolist() == [1, 1, 2, 2, 1, 0, 0]
    assert integral_s.tolist() == [0, 0.5, 1, 2, 3, 4, 4]
    assert charged.tolist() == [0, 0, 0, 0, 7, 12, 12]


def test_costs_of_an_episode_are_its_latencies(found: CollectedDecisions) -> None:
    """Little's law: the integral of the number in the system is the sum of the times in it. The control variate is a
    run of expected_latency."""
    here, generator = arena(DRAW, EPISODES, REQUESTS), np.random.default_rng(TASK[1])
    episodes = [here.load(e, generator) for e in range(EPISODES)]
    result = here.play(NETWORK)
    expected = run(
        [one.scenario.fleet for one in episodes],
        [one.arrivals for one in episodes],
        ExpectedLatency(),
        seeds=[one.seed for one in episodes],
    )
    assert found.taken.all()
    mean_s = mean_latency_s(expected)
    assert found.cost.sum(axis=0) * mean_s == pytest.approx(counted_latency_s(result).sum(axis=1))
    assert found.expected_cost.sum(axis=0) == pytest.approx(np.full(EPISODES, REQUESTS))
    assert found.passed[-1].tolist() == [0] * EPISODES
    assert found.passed.sum(axis=0) * mean_s == pytest.approx(result.arrival_s[:, -1] - result.arrival_s[:, 0])
    for t in (0, 10, REQUESTS - 1):
        assert found.worker[t].tolist() == result.picked[:, t].tolist()


def test_late_requests_are_charged_at_the_end_of_all() -> None:
    """Weights add what was late, relative to expected_latency's own slowest twentieth, and nothing else."""
    plain, tail, missed = (
        collect(dataclasses.replace(SETTINGS, tail_weight=tail, deadline_weight=missed), DRAW, NETWORK, TASK)
        for tail, missed in ((0.0, 0.0), (2.0, 0.0), (0.0, 3.0))
    )
    # Of expected_latency itself: its slowest 3 of 60 beyond the least of them, over a twentieth of their mean times 60.
    charges = (tail.expected_cost - plain.expected_cost).sum(axis=0)
    assert (charges >= 0).all()
    assert (charges < 2.0 * REQUESTS).all()
    assert charges.max() > 0
    each = (missed.cost - plain.cost) / 3.0
    assert each == pytest.approx(np.round(each))
    assert (each >= -1e-9).all()
    assert (plain.features == tail.features).all()


def test_equal_tasks_give_equal_decisions(found: CollectedDecisions) -> None:
    for one, other in zip(found, collect(SETTINGS, DRAW, NETWORK, TASK), strict=True):
        assert np.array_equal(one, other)
    other = collect(SETTINGS, DRAW, NETWORK, (EPISODES, (7, 3)))
    assert not np.array_equal(found.cost, other.cost)


def test_probabilities_are_of_the_workers_that_were_picked(found: CollectedDecisions) -> None:
    assert (found.log_probability <= 0).all()
    assert np.take_along_axis(found.eligible, found.worker[..., None], axis=-1).all()
    assert -8 < found.log_probability.mean() < 0


def test_joined_episodes_lie_side_by_side(found: CollectedDecisions) -> None:
    twice = joined([found, found])
    assert twice.cost.shape == (REQUESTS, 2 * EPISODES)
    assert np.array_equal(twice.features[:, EPISODES:], found.features)


def slopes(found: CollectedDecisions, beta: float) -> np.ndarray:
    """Of each decision's log probability by the costs' coefficients where there are two workers, `(t, e, terms)`."""
    other = 1 - found.worker
    own, of_others = (
        np.take_along_axis(found.terms, worker[..., None, None], axis=2)[:, :, 0] for worker in (found.worker, other)
    )
    probability_of_other = 1 - np.exp(found.log_probability)
    return beta * probability_of_other[..., None] * (of_others - own)


def test_the_control_variate_leaves_the_gradient_as_it_is_and_takes_noise() -> None:
    network, settings = misled(service=-2.0), dataclasses.replace(SETTINGS, requests=30)
    parts = [collect(settings, two_workers(0.8), network, (100, (11, part))) for part in range(12)]
    found = joined(parts)
    to_go = np.cumsum(found.expected_cost[::-1], axis=0)[::-1]
    own = np.cumsum(found.cost[::-1], axis=0)[::-1]
    slope = slopes(found, float(network.beta))[..., SERVICE]  # by the coefficient that misleads
    taken_out = (to_go * slope).mean(axis=0)
    error = taken_out.std(ddof=1) / np.sqrt(len(taken_out))
    assert abs(taken_out.mean()) < 3.5 * error
    with_it, without = ((cost * slope).mean(axis=0) for cost in (own - to_go, own))
    assert with_it.std() < 0.8 * without.std()
    # The gradient itself is there to be seen: it says that the coefficient is too small.
    assert with_it.mean() < -3.5 * with_it.std(ddof=1) / np.sqrt(len(with_it))


def test_advantages_are_of_equal_spread_in_each_episode() -> None:
    generator = np.random.default_rng(0)
    noisy = generator.normal(size=(500, 3)) * np.array([1.0, 10.0, 1000.0])
    taken = np.ones((500, 3), np.bool_)
    taken[400:, 0] = False
    scaled = normalised(noisy, taken)
    assert (scaled[~taken] == 0).all()
    assert [scaled[taken[:, e], e].std() for e in range(3)] == pytest.approx([1, 1, 1], abs=0.05)
    assert scaled[taken].mean() == pytest.approx(0, abs=1e-12)
