"""The ranges that the guard holds against what it meets."""

import dataclasses

import numpy as np
import pytest

from balancer.kernel.settings import GuardSettings
from policies.base import FloatArray
from policies.learned import Learned
from policies.learned.artifact import Artifact, make_artifact
from policies.learned.features import FEATURES
from policies.learned.network import untrained
from simulator.batch import Batch
from simulator.pool import LocalPool
from simulator.scenario import Scenario, load_scenario
from simulator.train.arena import Arena
from simulator.train.scenarios import Randomised
from simulator.train.trainer import _seen, ranges
from simulator.view import BatchView

STALE = load_scenario("stale-reports")
LIMIT = GuardSettings().range_limit


@pytest.fixture(scope="module")
def trained() -> Artifact:
    network = untrained()
    return make_artifact(network, *ranges(network, Randomised((STALE,), 0.5), 0, 24, 400, LocalPool()), {})


def strange(trained: Artifact, scenario: Scenario, requests: int) -> list[FloatArray]:
    """By decision, whether each of some episodes' inputs are what the guard calls strange."""
    arena = Arena(Randomised((scenario,), 0.0), 8, requests)
    for e in range(8):
        arena.load(e, np.random.default_rng((99, e)))
    policy, found = Learned(artifact=trained), []

    def see(batch: Batch, view: BatchView, *_: object) -> None:
        outside = np.asarray(policy.out_of_range(batch.request(), view))
        found.append(outside[batch.waiting] > LIMIT)

    arena.play(trained.network, see)
    return found


def test_ordinary_fleets_are_not_strange_from_their_first_request_on(trained: Artifact) -> None:
    found = strange(trained, STALE, 300)
    assert np.mean(found[0]) == 0.0
    assert np.mean(np.concatenate(found)) < 0.01


def test_overload_far_beyond_training_is_strange(trained: Artifact) -> None:
    rate_per_s = STALE.workload.rate_per_s * 40
    crowded = dataclasses.replace(STALE, workload=STALE.workload.at_rate(rate_per_s))
    # Training has overload too: a queue must grow for longer than an episode there to be unlike it.
    found = strange(trained, crowded, 800)
    # More than enough for a breach.
    assert np.mean(np.concatenate(found[-30:])) > 1.5 * GuardSettings().range_share


def test_the_start_is_looked_at_decision_by_decision_and_the_rest_now_and_then() -> None:
    """When the fleet is empty and no report has come, inputs are unlike all that comes after."""
    found = _seen(untrained(), Randomised((STALE,), 0.0), 60, (4, (0, 0, 0)))
    decisions = 20 + 1  # of 60: 0 to 19, and 32
    assert found.shape == (decisions * 4 * len(STALE.fleet.workers), len(FEATURES))


def test_ranges_are_in_order_and_as_wide_as_the_fleets(trained: Artifact) -> None:
    assert np.all(trained.lowest <= trained.highest)
    workers = [feature.name for feature in FEATURES].index("workers")
    assert np.expm1(trained.highest[workers]) == pytest.approx(16)


def test_equal_arguments_give_equal_ranges_and_other_seeds_others() -> None:
    draw = Randomised((STALE,), 0.0)
    once, again, other = (ranges(untrained(), draw, seed, 6, 60, LocalPool()) for seed in (1, 1, 2))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, other)


def test_no_error_rate_is_strange(trained: Artifact) -> None:
    (at,) = (i for i, feature in enumerate(FEATURES) if feature.name == "error_rate")
    assert (trained.lowest[at], trained.highest[at]) == (0.0, pytest.approx(np.log(2)))
