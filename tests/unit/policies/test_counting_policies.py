"""Hand-computed expectations for random, round_robin, least_requests, wlpr, token_bucket and power_of_two."""

import numpy as np
import pytest
from support.views import make_view, probabilities

from policies.base import Request
from policies.least_requests import LeastRequests
from policies.power_of_two import PowerOfTwo
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin
from policies.token_bucket import TokenBucket
from policies.wlpr import WeightedLeastPending

SOME = [True, False, True, True]


def test_random_is_uniform_over_the_eligible_or_follows_weights() -> None:
    view = make_view(eligible=SOME, weight=[1, 5, 1, 2])
    assert probabilities(RandomChoice(), view) == [1 / 3, 0, 1 / 3, 1 / 3]
    assert probabilities(RandomChoice(weighted=True), view) == [0.25, 0, 0.25, 0.5]


def test_round_robin_visits_each_eligible_worker_once_per_cycle() -> None:
    view = make_view(eligible=SOME)
    picks = [int(np.argmax(probabilities(RoundRobin(), view, Request("m", number=number)))) for number in range(7)]
    assert picks == [0, 2, 3, 0, 2, 3, 0]


def test_round_robin_of_a_batch_gives_each_row_its_turn() -> None:
    view = make_view(eligible=[SOME, SOME, [False] * 4])
    number = np.array([[2**64 - 1], [4], [4]], np.uint64)  # 2**64 - 1 = 0 mod 3: exact beyond what a float holds
    assert RoundRobin().probabilities(Request("m", number=number), view).tolist() == [
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]


def test_least_requests_counts_its_own_and_ignores_reports() -> None:
    view = make_view(eligible=SOME, in_flight=[1, 0, 2, 1], pending=[9, 9, 0, 9])
    assert probabilities(LeastRequests(), view) == [0.5, 0, 0, 0.5]


def test_least_requests_of_a_sample() -> None:
    view = make_view(in_flight=[0, 1, 2])
    assert probabilities(LeastRequests(choices=2), view) == pytest.approx([2 / 3, 1 / 3, 0])


def test_wlpr_is_pending_per_weight_with_the_request_itself() -> None:
    policy = WeightedLeastPending()
    assert probabilities(policy, make_view(pending=[4, 4, 2], weight=[1, 4, 1])) == [0, 1, 0]
    assert probabilities(policy, make_view(pending=[0, 0], weight=[1, 4])) == [0, 1]
    assert probabilities(policy, make_view(pending=[0, 3], weight=[1, 4])) == [0.5, 0.5]


def test_wlpr_may_leave_the_request_itself_out() -> None:
    policy = WeightedLeastPending(count_self=False)
    assert probabilities(policy, make_view(pending=[4, 4, 2], weight=[1, 4, 1])) == [0, 1, 0]
    assert probabilities(policy, make_view(pending=[0, 0], weight=[1, 4])) == [0.5, 0.5]


def test_wlpr_fills_workers_by_weight_from_the_first_request_on() -> None:
    pending, weight = np.zeros(3), np.array([4.0, 2.0, 1.0])
    held = []
    for _ in range(7):
        pending[np.argmax(probabilities(WeightedLeastPending(), make_view(pending=pending, weight=weight)))] += 1
        held.append(pending.tolist())
    assert held[2] == [2, 1, 0]  # 1, 1, 1 without the request itself
    assert held[6] == [4, 2, 1]


def test_power_of_two_by_hand() -> None:
    # Draws: {0,1} and {0,2} go to the idle worker, {1,2} to the next.
    view = make_view(pending=[0, 1, 2])
    assert probabilities(PowerOfTwo(), view) == pytest.approx([2 / 3, 1 / 3, 0])
    # Draws of two from four with a tie: {1,2} is shared.
    view = make_view(pending=[0, 1, 1, 5])
    assert probabilities(PowerOfTwo(), view) == pytest.approx([3 / 6, 1.5 / 6, 1.5 / 6, 0])


def test_power_of_two_with_other_numbers_of_choices() -> None:
    view = make_view(pending=[0, 1, 2], eligible=[True, True, True])
    assert probabilities(PowerOfTwo(choices=1), view) == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert probabilities(PowerOfTwo(choices=3), view) == [1, 0, 0]
    assert probabilities(PowerOfTwo(), make_view(pending=[3, 1], eligible=[True, False])) == [1, 0]


def test_power_of_two_weighted_compares_queues_per_weight() -> None:
    view = make_view(pending=[2, 4], weight=[1, 4])
    assert probabilities(PowerOfTwo(), view) == [1, 0]
    assert probabilities(PowerOfTwo(weighted=True), view) == [0, 1]


def test_token_bucket_takes_most_tokens_then_the_shortest_queue() -> None:
    policy = TokenBucket()
    assert probabilities(policy, make_view(tokens=[3, 9, 5], pending=[0, 7, 0])) == [0, 1, 0]
    assert probabilities(policy, make_view(tokens=[9, 9, 5], pending=[3, 7, 0])) == [1, 0, 0]
    assert probabilities(policy, make_view(tokens=[9, 9, 5], pending=[3, 3, 0])) == [0.5, 0.5, 0]
    assert probabilities(policy, make_view(tokens=[3, 9, 5], eligible=[True, False, True])) == [0, 0, 1]


def test_token_bucket_counts_whole_tokens() -> None:
    assert probabilities(TokenBucket(), make_view(tokens=[3.9, 3.1], pending=[2, 1])) == [0, 1]


@pytest.mark.parametrize("empty", [0.0, 0.99, -2.0, float("nan")])
def test_token_bucket_without_tokens_falls_back_or_sheds(empty: float) -> None:
    view = make_view(tokens=[empty, empty, 9], pending=[2, 1, 0], eligible=[True, True, False])
    assert probabilities(TokenBucket(), view) == [0, 1, 0]
    assert probabilities(TokenBucket(when_empty="shed"), view) == [0, 0, 0]


def test_token_bucket_sheds_only_the_rows_without_tokens() -> None:
    view = make_view(tokens=[[0, 0.5], [0, 1]])
    assert TokenBucket(when_empty="shed").probabilities(Request("m"), view).tolist() == [[0, 0], [0, 1]]
