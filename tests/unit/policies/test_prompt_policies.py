"""Hand-computed expectations for the policies of language models."""

import numpy as np
from support.views import make_view, probabilities

from policies.base import Request
from policies.cache_aware import CacheAware
from policies.least_tokens import LeastTokens
from policies.prefix_load_cost import PrefixLoadCost
from policies.prefix_score import PrefixScore

PROMPT = Request("m", prompt_tokens=1000.0)
NONE = Request("m")


def test_least_tokens_adds_what_waits_and_what_of_the_prompt_is_not_cached() -> None:
    view = make_view(waiting_tokens=[600, 0, 0], matched_tokens=[800, 100, 0])
    assert probabilities(LeastTokens(), view, PROMPT) == [1, 0, 0]
    view = make_view(waiting_tokens=[800, 0, 0], matched_tokens=[800, 100, 100])
    assert probabilities(LeastTokens(), view, PROMPT) == [0, 0.5, 0.5]


def test_least_tokens_without_prompts_is_least_requests() -> None:
    view = make_view(in_flight=[3, 1, 2], matched_tokens=[9, 0, 0])
    assert probabilities(LeastTokens(), view, NONE) == [0, 1, 0]


def test_prefix_load_cost_weighs_what_is_computed_against_what_is_held() -> None:
    view = make_view(waiting_tokens=[0, 500], matched_tokens=[0, 1000], held_tokens=[100, 500])
    # 1000 + 100 against 500 + 500; with half the weight 600 against 750.
    assert probabilities(PrefixLoadCost(), view, PROMPT) == [0, 1]
    assert probabilities(PrefixLoadCost(prefill_weight=0.5), view, PROMPT) == [1, 0]
    shares = probabilities(PrefixLoadCost(temperature=0.5), view, PROMPT)
    assert np.allclose(shares, np.array([np.exp(-100 / 500), 1]) / (1 + np.exp(-100 / 500)))


def test_prefix_score_adds_three_shares() -> None:
    view = make_view(
        matched_tokens=[0, 500, 0], reported_pending=[0, 4, 2], held_tokens=[900, 0, 0], memory_tokens=[1000, 1000, 0]
    )
    # 0 + 2 + 0.2; 1.5 + 0 + 2; 0 + 1 + 2.
    assert probabilities(PrefixScore(), view, PROMPT) == [0, 1, 0]
    assert probabilities(PrefixScore(prefix_weight=0.0), view, PROMPT) == [0, 0, 1]
    assert probabilities(PrefixScore(memory_weight=0.0, prefix_weight=0.0), view, PROMPT) == [1, 0, 0]


def test_prefix_score_of_equal_queues_leaves_them_aside() -> None:
    view = make_view(matched_tokens=[0, 1000], reported_pending=[5, 5], held_tokens=[0, 700], memory_tokens=1000.0)
    assert probabilities(PrefixScore(), view, PROMPT) == [0, 1]


def test_cache_aware_takes_the_longest_match_that_is_long_enough() -> None:
    view = make_view(matched_tokens=[400, 700, 0], cached_tokens=[5, 9, 1], in_flight=[1, 20, 3])
    assert probabilities(CacheAware(), view, PROMPT) == [0, 1, 0]
    assert probabilities(CacheAware(cache_threshold=0.7), view, PROMPT) == [0, 0, 1], "else who has least cached"


def test_cache_aware_takes_the_shortest_queue_where_they_are_unequal() -> None:
    view = make_view(matched_tokens=[0, 1000], in_flight=[0, 33])
    assert probabilities(CacheAware(), view, PROMPT) == [1, 0]
    view = make_view(matched_tokens=[0, 1000], in_flight=[0, 32])
    assert probabilities(CacheAware(), view, PROMPT) == [0, 1]
    view = make_view(matched_tokens=[0, 1000], in_flight=[400, 440])
    assert probabilities(CacheAware(), view, PROMPT) == [0, 1], "40 more are not a tenth more"


def test_only_eligible_workers_count() -> None:
    view = make_view(
        eligible=[False, True, True], matched_tokens=[1000, 0, 0], in_flight=[0, 40, 41], cached_tokens=[0, 2, 1]
    )
    for policy in (LeastTokens(), CacheAware(), PrefixScore(), PrefixLoadCost()):
        assert probabilities(policy, view, PROMPT)[0] == 0
    assert probabilities(CacheAware(), view, PROMPT) == [0, 0, 1]
