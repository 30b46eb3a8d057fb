import itertools

import numpy as np
import pytest

from policies.choices import fill_sampled_least
from policies.columns import IN_PYTHON


def sampled_least(cost: np.ndarray, eligible: np.ndarray, choices: int) -> np.ndarray:
    return IN_PYTHON.shares(fill_sampled_least, cost, eligible, choices)


def drawn(cost: list[float], eligible: list[bool], choices: int) -> np.ndarray:
    """The same by going through every possible draw."""
    workers = [worker for worker, is_eligible in enumerate(eligible) if is_eligible]
    probabilities = np.zeros(len(cost))
    draws = list(itertools.combinations(workers, min(choices or len(workers), len(workers))))
    for draw in draws:
        lowest = min((cost[worker] for worker in draw), default=0.0)
        tied = [worker for worker in draw if cost[worker] == lowest]
        for worker in tied:
            probabilities[worker] += 1 / len(tied) / len(draws)
    return probabilities


@pytest.mark.parametrize("choices", [0, 1, 2, 3, 5, 9])
def test_equals_every_possible_draw(choices: int) -> None:
    rng = np.random.default_rng(choices)
    for _ in range(100):
        n = int(rng.integers(1, 8))
        cost, eligible = rng.integers(0, 4, n).astype(float), rng.random(n) < 0.8
        result = sampled_least(cost, eligible, choices)
        np.testing.assert_allclose(result, drawn(cost.tolist(), eligible.tolist(), choices), atol=1e-14)


def test_rows_of_a_batch_do_not_mix() -> None:
    # Rows that end and begin with the same cost, with 3, 2, 1 and 0 eligible workers.
    cost = np.array([[0.0, 1.0, 2.0], [2.0, 2.0, 0.0], [0.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    eligible = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 1], [0, 0, 0]], bool)
    expected = [[2 / 3, 1 / 3, 0], [0.5, 0.5, 0], [0, 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(sampled_least(cost, eligible, 2), expected, atol=1e-15)
    np.testing.assert_allclose(
        sampled_least(cost.reshape(2, 2, 3), eligible.reshape(2, 2, 3), 2).reshape(4, 3), expected
    )


def test_infinite_costs_are_taken_only_when_nothing_else_is_drawn() -> None:
    cost, eligible = np.array([np.inf, np.nan, 1.0, 0.0]), np.array([1, 1, 1, 0], bool)
    np.testing.assert_allclose(sampled_least(cost, eligible, 2), [1 / 6, 1 / 6, 2 / 3, 0])
