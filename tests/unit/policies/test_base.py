import numpy as np
import pytest

from policies import BUILTIN
from policies.base import count_of, least, masked_cost, uniform_over
from policies.consistent_hash import ConsistentHash
from policies.power_of_two import PowerOfTwo
from policies.prequal import Prequal
from policies.token_bucket import TokenBucket

TRUE, FALSE = True, False


def test_registry_has_all_under_their_own_names() -> None:
    assert list(BUILTIN) == [
        "random",
        "round_robin",
        "least_requests",
        "wlpr",
        "token_bucket",
        "consistent_hash",
        "power_of_two",
        "peak_ewma",
        "prequal",
        "expected_latency",
        *("least_tokens", "cache_aware", "prefix_score", "prefix_load_cost"),
        "learned",
    ]
    assert all(policy.name == name and policy.summary and policy.source for name, policy in BUILTIN.items())


def test_least_shares_ties_and_skips_ineligible() -> None:
    assert least(np.array([1.0, 0.0, 1.0, 1.0]), np.array([1, 0, 1, 0], bool)).tolist() == [0.5, 0, 0.5, 0]


def test_least_puts_infinite_and_nan_last_and_ties_them() -> None:
    cost = np.array([np.nan, 5.0, np.inf])
    assert least(cost, np.array([1, 1, 1], bool)).tolist() == [0, 1, 0]
    assert least(cost, np.array([1, 0, 1], bool)).tolist() == [0.5, 0, 0.5]


def test_least_of_nothing() -> None:
    assert least(np.array([1.0]), np.array([FALSE])).tolist() == [0]
    assert least(np.empty(0), np.empty(0, bool)).shape == (0,)
    assert least(np.empty((3, 0)), np.empty((3, 0), bool)).shape == (3, 0)


def test_uniform_over_each_row_of_a_batch() -> None:
    chosen = np.array([[TRUE, TRUE], [FALSE, TRUE], [FALSE, FALSE]])
    assert uniform_over(chosen).tolist() == [[0.5, 0.5], [0, 1], [0, 0]]
    assert count_of(chosen).tolist() == [[2], [1], [0]]
    assert count_of(chosen[0]) == 2


def test_masked_cost_is_finite_only_where_eligible() -> None:
    masked = masked_cost(np.array([np.inf, np.nan, 2.0, 1.0]), np.array([1, 1, 1, 0], bool))
    assert np.isfinite(masked).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PowerOfTwo(choices=0), "policy power_of_two: option choices is 0, must be at least 1"),
        (lambda: ConsistentHash(balance_factor=1.0), "option balance_factor is 1.0, must be above 1.0"),
        (lambda: Prequal(hot_quantile=1.5), "option hot_quantile is 1.5, must be at most 1.0"),
        (lambda: Prequal(hot_quantile=float("nan")), "option hot_quantile is nan"),
        (lambda: TokenBucket(when_empty="wait"), "option when_empty is 'wait', must be one of 'least_loaded', 'shed'"),
    ],
)
def test_a_bad_option_is_refused_by_name_value_and_remedy(make, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()
