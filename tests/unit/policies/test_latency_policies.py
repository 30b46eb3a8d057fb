"""Hand-computed expectations for peak_ewma, prequal and expected_latency."""

import math

import numpy as np
import pytest
from support.views import make_view, probabilities

from policies.base import Request
from policies.expected_latency import ExpectedLatency
from policies.peak_ewma import PeakEwma
from policies.prequal import Prequal


def test_peak_ewma_multiplies_latency_by_requests() -> None:
    # Costs 0.03, 0.02, 0.05: the draws {0,1} and {1,2} go to 1, {0,2} to 0.
    view = make_view(latency_s=[0.01, 0.02, 0.05], in_flight=[2, 0, 0])
    assert probabilities(PeakEwma(), view) == pytest.approx([1 / 3, 2 / 3, 0])
    assert probabilities(PeakEwma(choices=0), view) == [0, 1, 0]


def test_peak_ewma_probes_a_cold_worker_once() -> None:
    policy = PeakEwma(choices=0)
    assert probabilities(policy, make_view(latency_s=[0.01, 0], in_flight=[0, 0])) == [0, 1]
    assert probabilities(policy, make_view(latency_s=[0.01, 0], in_flight=[50, 1])) == [1, 0]


def test_peak_ewma_spreads_over_a_wholly_cold_fleet_by_requests() -> None:
    assert probabilities(PeakEwma(choices=0), make_view(latency_s=[0, 0, 0], in_flight=[2, 1, 3])) == [0, 1, 0]


def test_peak_ewma_with_infinite_columns_still_picks() -> None:
    assert probabilities(PeakEwma(), make_view(latency_s=[np.inf, np.inf, 0.1])) == pytest.approx([1 / 6, 1 / 6, 2 / 3])


# Five workers: the 0.84 quantile of pending is the fourth smallest (lower order statistic), 8.
PENDING = [1, 2, 4, 8, 50]


def test_prequal_takes_the_least_latency_among_cold_workers() -> None:
    view = make_view(pending=PENDING, latency_s=[0.05, 0.04, 0.03, 0.02, 0.01])
    assert probabilities(Prequal(pool=0), view) == [0, 0, 0, 1, 0]
    assert probabilities(Prequal(hot_quantile=1.0, pool=0), view) == [0, 0, 0, 0, 1]
    assert probabilities(Prequal(hot_quantile=0.5, pool=0), view) == [0, 0, 1, 0, 0]
    assert probabilities(Prequal(hot_quantile=0.0, pool=0), view) == [1, 0, 0, 0, 0]


def test_prequal_falls_back_to_least_pending_where_the_whole_sample_is_hot() -> None:
    # Only worker 0 is cold. Draws of two: four of ten have it; the other six go to the shorter queue.
    view = make_view(pending=PENDING, latency_s=[0.05, 0.04, 0.03, 0.02, 0.01])
    expected = [4 / 10, 3 / 10, 2 / 10, 1 / 10, 0]
    assert probabilities(Prequal(hot_quantile=0.0, pool=2), view) == pytest.approx(expected)


def test_prequal_judges_hot_among_the_eligible_only() -> None:
    view = make_view(pending=[3, 4, 9, 9, 9], latency_s=[2, 1, 1, 1, 1], eligible=[True, True, False, False, False])
    assert probabilities(Prequal(hot_quantile=0.5, pool=0), view) == [1, 0, 0, 0, 0]


def test_prequal_takes_service_time_where_no_latency_was_observed() -> None:
    view = make_view(latency_s=[0.02, 0, 0], service_s=[0.01, 0.03, 0.015])
    assert probabilities(Prequal(pool=0), view) == [0, 0, 1]


def test_prequal_by_expected_latency() -> None:
    view = make_view(latency_s=[1, 2, 3], completion_s=[3, 1, 2])
    assert probabilities(Prequal(latency="expected", pool=0), view) == [0, 1, 0]


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 0.84, 1.0])
def test_prequal_threshold_is_the_lower_quantile(quantile: float) -> None:
    pending = np.random.default_rng(3).gamma(2.0, 2.0, 37)
    threshold = np.quantile(pending, quantile, method="lower")
    view = make_view(pending=pending, latency_s=1.0)
    result = np.array(probabilities(Prequal(hot_quantile=quantile, pool=0), view))
    assert (result > 0).tolist() == (pending <= threshold).tolist()


def test_expected_latency_at_temperature_zero_takes_the_best() -> None:
    view = make_view(completion_s=[0.03, 0.01, 0.02], eligible=[True, False, True])
    assert probabilities(ExpectedLatency(temperature=0.0), view) == [0, 0, 1]
    assert probabilities(ExpectedLatency(temperature=0.0), make_view(completion_s=[0.02, 0.01, 0.01])) == [0, 0.5, 0.5]


def test_expected_latency_falls_by_e_for_each_temperature_above_the_best() -> None:
    view = make_view(completion_s=[0.100, 0.110, 0.120])
    weights = [1, math.exp(-1), math.exp(-2)]
    expected = [weight / sum(weights) for weight in weights]
    assert probabilities(ExpectedLatency(temperature=0.1), view) == pytest.approx(expected)


def test_expected_latency_is_the_same_in_any_unit_of_time() -> None:
    fast, slow = make_view(completion_s=[0.001, 0.0011]), make_view(completion_s=[1, 1.1])
    policy = ExpectedLatency()
    assert probabilities(policy, fast) == pytest.approx(probabilities(policy, slow))


def test_expected_latency_charges_errors() -> None:
    # A broken worker answers fast and looks idle: 0.01 s, but half of it fails.
    view = make_view(completion_s=[0.3, 0.01], error_rate=[0, 0.5])
    assert probabilities(ExpectedLatency(temperature=0.0), view) == [1, 0]
    assert probabilities(ExpectedLatency(temperature=0.0, error_penalty_s=0.0), view) == [0, 1]


def test_expected_latency_minds_those_whom_it_delays() -> None:
    # It would be done first at 0, where it makes ten others wait for 0.03 s; at 1 it adds as much and nobody waits.
    view = make_view(completion_s=[0.05, 0.06], backlog_s=[0.02, 0.03], pending=[10, 0])
    assert probabilities(ExpectedLatency(temperature=0.0, delayed_share=0.0), view) == [1, 0]
    # 0.05 + 0.1 * 10 * 0.03 = 0.08.
    assert probabilities(ExpectedLatency(temperature=0.0, delayed_share=0.1), view) == [0, 1]


def test_expected_latency_minds_those_of_other_models_more() -> None:
    # Ten wait at either; at 0 they are of another model, and a long request comes between them.
    view = make_view(completion_s=[0.05, 0.06], backlog_s=[0.02, 0.03], pending=[10, 10], pending_other_models=[10, 0])
    alike = ExpectedLatency(temperature=0.0, delayed_share=0.2, delayed_share_other_models=0.2)
    assert probabilities(alike, view) == [1, 0]
    # 0.05 + 0.5 * 10 * 0.03 = 0.2, and 0.06 + 0.2 * 10 * 0.03 = 0.12.
    assert probabilities(ExpectedLatency(temperature=0.0), view) == [0, 1]


def test_expected_latency_counts_a_share_of_what_models_that_take_turns_put_behind() -> None:
    # At 0 there is more work, but most of it is other models' and waits.
    view = make_view(completion_s=[0.09, 0.07], backlog_s=[0.08, 0.06], work_behind_s=[0.06, 0])
    assert probabilities(ExpectedLatency(temperature=0.0, work_behind_share=0.0), view) == [0, 1]
    # 0.09 - 0.5 * 0.06 = 0.06.
    assert probabilities(ExpectedLatency(temperature=0.0), view) == [1, 0]


def test_expected_latency_is_at_least_what_the_request_adds() -> None:
    # 0.375 - 0.375 is less than the 0.125 that it takes itself, and so much is left at either.
    view = make_view(completion_s=[0.375, 0.125], backlog_s=[0.25, 0], work_behind_s=[0.375, 0])
    assert probabilities(ExpectedLatency(temperature=0.0, work_behind_share=1.0), view) == [0.5, 0.5]


def test_expected_latency_waits_for_a_warm_cache_as_long_as_it_is_worth_it() -> None:
    # At 1 the key is warm by half, which saves 0.01 s: 0.5 * 0.01 * 4 = 0.02 s are less than the 0.03 s more there.
    view = make_view(completion_s=[0.05, 0.08], cached=[0, 0.5], saving_s=[0.01, 0.01])
    assert probabilities(ExpectedLatency(temperature=0.0, saving_factor=0.0), view) == [1, 0]
    assert probabilities(ExpectedLatency(temperature=0.0, saving_factor=4.0), view) == [1, 0]
    assert probabilities(ExpectedLatency(temperature=0.0, saving_factor=8.0), view) == [0, 1]
    # Where nothing is saved, it is worth nothing.
    view = make_view(completion_s=[0.05, 0.08], cached=[0, 1])
    assert probabilities(ExpectedLatency(temperature=0.0, saving_factor=1e6), view) == [1, 0]


def test_expected_latency_of_a_request_that_adds_little_minds_its_own_completion() -> None:
    # As above, but it joins batches that wait anyway: 0.021 + 0.2 * 10 * 0.001 = 0.023.
    view = make_view(completion_s=[0.021, 0.031], backlog_s=[0.02, 0.03], pending=[10, 0])
    assert probabilities(ExpectedLatency(temperature=0.0), view) == [1, 0]


@pytest.mark.parametrize("completion_s", [0.0, math.inf, math.nan])
def test_expected_latency_of_degenerate_estimates_is_uniform(completion_s: float) -> None:
    assert probabilities(ExpectedLatency(), make_view(completion_s=[completion_s] * 4)) == [0.25] * 4


def test_expected_latency_of_rows_without_eligible_workers_is_zero() -> None:
    view = make_view(completion_s=[1, 1], eligible=[[False, False], [True, True]])
    assert ExpectedLatency().probabilities(Request("m"), view).tolist() == [[0, 0], [0.5, 0.5]]


def test_expected_latency_weighs_first_token_and_whole_answer() -> None:
    view = make_view(first_token_s=[0.1, 0.3], completion_s=[3.0, 2.0], backlog_s=0.0)
    prompt = Request("m", prompt_tokens=1000.0)
    for weight, picked in ((0.0, [0, 1]), (0.5, [0, 1]), (0.95, [1, 0]), (1.0, [1, 0])):
        policy = ExpectedLatency(temperature=0.0, ttft_weight=weight)
        assert probabilities(policy, view, prompt) == picked, weight
    assert probabilities(ExpectedLatency(temperature=0.0, ttft_weight=1.0), view) == [0, 1], "without a prompt"


def test_expected_latency_minds_those_whom_a_prompt_delays() -> None:
    prompt = Request("m", prompt_tokens=1000.0)
    columns = {"first_token_s": [0.5, 0.6], "completion_s": [5.0, 5.1], "prompt_s": 0.05, "slowdown_s": 0.1}
    view = make_view(**columns, pending=[9, 0], reported_pending=[9, 0])
    for weight in (0.0, 0.5, 1.0):
        policy = ExpectedLatency(temperature=0.0, ttft_weight=weight)
        assert probabilities(policy, view, prompt) == [0, 1], weight
        assert probabilities(policy, make_view(**columns, pending=0.0), prompt) == [1, 0], weight


def test_expected_latency_counts_what_is_cached_of_a_prompt_for_those_that_follow() -> None:
    # 800 tokens of 1,000 are cached at the first, which takes 0.1 s for the rest, so 0.4 s for those; at one of two.
    columns = {"matched_tokens": [800.0, 0.0], "prompt_s": [0.1, 0.5], "first_token_s": [6.0, 0.5]}
    view, prompt = make_view(**columns, completion_s=[7.5, 2.0], backlog_s=0.0), Request("m", prompt_tokens=1000.0)
    for factor, picked in ((0.0, [0, 1]), (27.0, [0, 1]), (28.0, [1, 0])):
        policy = ExpectedLatency(temperature=0.0, ttft_weight=0.0, saving_factor=factor)
        assert probabilities(policy, view, prompt) == picked, factor


def test_expected_latency_keeps_nobody_for_a_prompt_that_all_have() -> None:
    columns = {"matched_tokens": [800.0, 800.0], "prompt_s": [0.1, 0.2], "first_token_s": [0.6, 0.5]}
    view, prompt = make_view(**columns, completion_s=[2.1, 2.0], backlog_s=0.0), Request("m", prompt_tokens=1000.0)
    assert probabilities(ExpectedLatency(temperature=0.0, saving_factor=1e6), view, prompt) == [0, 1]


def test_expected_latency_charges_errors_of_models_that_generate() -> None:
    view = make_view(first_token_s=0.1, completion_s=[1.0, 1.2], error_rate=[0.5, 0.0])
    assert probabilities(ExpectedLatency(temperature=0.0), view, Request("m", prompt_tokens=9.0)) == [0, 1]
