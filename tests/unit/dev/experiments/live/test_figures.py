from dataclasses import replace

import numpy as np
import pytest
from support.results import make_result
from unit.dev.experiments.live.synthetic import SESSION, make_live

from dev.experiments.live.figures import (
    FIGURES,
    IN_TIME,
    Pair,
    Requests,
    against,
    estimates,
    figures,
    find,
    resampled,
)
from simulator.compare.statistics import Estimate


def requests(latency_s, policy, block, deadline_s=np.inf):
    """Of the policies `a` and `b`, to one model."""
    count = len(latency_s)
    columns = (np.asarray(policy), np.asarray(block), np.zeros(count, np.int64))
    return Requests(("a", "b"), ("m",), *columns, np.broadcast_to(deadline_s, count), np.asarray(latency_s))


def test_a_window_counts_after_it_has_settled_for_its_policy_and_block():
    live = make_live()
    found = Requests.live(SESSION, live)
    expected = np.concatenate(
        [
            live.latency_s[(turn.counted_s <= live.scheduled_s) & (live.scheduled_s < turn.end_s)]
            for turn in SESSION.turns()
        ]
    )
    np.testing.assert_array_equal(found.latency_s, expected)
    # Equal arrivals: within a block, each policy has the same requests.
    for block in range(SESSION.rounds):
        models = [found.model[(found.block == block) & (found.policy == i)] for i in range(3)]
        np.testing.assert_array_equal(models[0], models[1])
        np.testing.assert_array_equal(models[0], models[2])
    of_turn = {(turn.policy, turn.round): turn for turn in SESSION.turns()}
    turn = of_turn["power_of_two", 1]
    own = live.latency_s[(turn.counted_s <= live.scheduled_s) & (live.scheduled_s < turn.end_s)]
    np.testing.assert_array_equal(found.latency_s[(found.policy == 1) & (found.block == 1)], own)


def test_simulated_requests_are_cut_as_the_live_ones():
    live = make_live()
    result = make_result(
        np.stack([live.latency_s, live.latency_s * 2]),
        model=np.stack([live.model, live.model]),
        deadline_s=np.stack([live.deadline_s, live.deadline_s]),
        models=live.models,
    )
    measured, simulated = Requests.live(SESSION, live), Requests.simulated(SESSION, result, 1)
    np.testing.assert_array_equal(simulated.latency_s, 2 * measured.latency_s)
    for name in ("policy", "block", "model", "deadline_s"):
        np.testing.assert_array_equal(getattr(simulated, name), getattr(measured, name))


def test_a_failed_request_has_no_latency_and_is_not_in_time():
    (a, _) = figures(requests([0.01, 0.02, 0.03, np.nan, 0.5], [0, 0, 0, 0, 1], [0] * 5, deadline_s=0.025))
    assert dict(zip(FIGURES, a, strict=True)) == {
        "mean": pytest.approx(0.02),
        "p50": pytest.approx(0.02),
        "p95": pytest.approx(0.029),
        "p99": pytest.approx(0.0298),
        IN_TIME: pytest.approx(0.5),
    }


def test_latencies_are_compared_by_ratio_and_shares_by_difference():
    of = np.array([[0.1, 0.1, 0.2, 0.4, 0.90], [0.05, 0.1, 0.1, 0.3, 0.95]])
    np.testing.assert_allclose(against(1, 0, of), [0.5, 1.0, 0.5, 0.75, 0.05])


def test_what_a_block_has_in_common_is_no_uncertainty_of_a_ratio():
    generator = np.random.default_rng(1)
    blocks, each = 8, 50
    block = np.repeat(np.arange(blocks), each)
    base_s = generator.gamma(2.0, 0.01, blocks * each) * np.exp(generator.normal(0, 1.0, blocks))[block]
    both = requests(np.concatenate([base_s, 0.8 * base_s]), np.repeat([0, 1], blocks * each), np.tile(block, 2))
    drawn = resampled(both, resamples=200)
    mean_a = estimates(figures(both)[0], drawn[:, 0])[0]
    assert mean_a.high > 1.5 * mean_a.low
    for estimate in estimates(against(1, 0, figures(both)), against(1, 0, drawn))[:-1]:
        assert (estimate.low, estimate.value, estimate.high) == pytest.approx((0.8, 0.8, 0.8))


def test_intervals_reckon_with_blocks_whose_requests_resemble_each_other():
    blocks, each, true, covered = 12, 30, 0.9, 0
    generator = np.random.default_rng(2)
    for _ in range(60):
        # Each window is slow or fast as a whole: taken for 360 independent requests, intervals would be far too narrow.
        windows_s = np.exp(generator.normal(0, 0.3, (2, blocks))) * np.array([[1.0], [true]])
        latency_s = np.repeat(windows_s, each, axis=1) * generator.gamma(50.0, 1 / 50, (2, blocks * each))
        columns = (np.repeat([0, 1], blocks * each), np.tile(np.repeat(np.arange(blocks), each), 2))
        drawn = resampled(requests(latency_s.ravel(), *columns), resamples=100)
        low, high = np.quantile(against(1, 0, drawn)[:, 0], [0.025, 0.975])
        covered += low <= true <= high
    assert covered >= 0.8 * 60


def test_findings_hold_the_last_policy_against_each_other():
    measured = Requests.live(SESSION, make_live())
    found = find(measured, [measured, replace(measured, latency_s=measured.latency_s * 1.1)], 50)
    assert list(found.policies) == ["wlpr", "power_of_two", "expected_latency"]
    assert list(found.ratios) == ["wlpr", "power_of_two"]
    mean = found.ratios["power_of_two"][0]
    assert mean.figure == "mean"
    # Made-up means of 20 and 60 ms.
    assert mean.measured.value == pytest.approx(1 / 3, rel=0.15)
    assert mean.predicted.value == pytest.approx(mean.measured.value)
    assert mean.inside
    assert found.policies["wlpr"][0].predicted.value == pytest.approx(1.05 * found.policies["wlpr"][0].measured.value)
    assert not Pair("p50", Estimate(1.0, 0.9, 1.1), Estimate(1.2, 1.0, 1.3)).inside


def test_blocks_of_half_a_second_are_the_same_for_all_policies():
    live = make_live()
    found = Requests.live(SESSION, live, block_s=0.5)
    np.testing.assert_array_equal(found.latency_s, Requests.live(SESSION, live).latency_s)
    # Of each round two, of the one second that counts.
    assert set(found.block) == set(range(2 * SESSION.rounds))
    for block in range(2 * SESSION.rounds):
        models = [found.model[(found.block == block) & (found.policy == i)] for i in range(3)]
        np.testing.assert_array_equal(models[0], models[1])
        np.testing.assert_array_equal(models[0], models[2])
