"""Choices and facts are the same bits compiled as in Python, over any rows; turns are what round robin answers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.views import make_view

from policies import choices, costs
from policies.base import Request
from policies.choices import Choice
from policies.columns import IN_PYTHON
from policies.costs import Fact
from policies.round_robin import RoundRobin, fill_turn
from simulator.engine.rows import COMPILED

VALUES = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e12]), st.floats(0.0, 1000.0), st.sampled_from([np.inf, np.nan])
)
WORKERS = st.lists(st.tuples(VALUES, st.booleans()), max_size=40)


def arrays(workers: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    """Three rows: as drawn, turned round, and of one half."""
    values, eligible = np.array([one for one, _ in workers], float), np.array([two for _, two in workers], bool)
    return np.array([values, values[::-1], values]), np.array([eligible, eligible[::-1], eligible & (values < 1.0)])


@pytest.mark.parametrize(
    ("choice", "options"),
    [
        (choices.LEAST, (0.0,)),
        (choices.least_of("d"), (0, 1, 2, 3, 7, 50)),
        (choices.softmin_of("t"), (0.0, 0.02, 1.0)),
        (choices.IN_PROPORTION, (0.0,)),
    ],
)
@settings(deadline=None)  # the first example of each compiles
@given(workers=WORKERS)
def test_choices(choice: Choice, options: tuple[float, ...], workers: list[tuple[float, bool]]) -> None:
    cost, eligible = arrays(workers)
    if choice is choices.IN_PROPORTION:
        cost = np.nan_to_num(cost, posinf=3.0)  # shares and not costs: finite
    for option in options:
        shares = IN_PYTHON.shares(choice.fill, cost, eligible, option)
        np.testing.assert_array_equal(COMPILED.shares(choice.fill, cost, eligible, option), shares)
        for row, mask in enumerate(eligible):
            some = mask.any() if choice is not choices.IN_PROPORTION else cost[row][mask].any()
            assert shares[row].sum() == pytest.approx(1.0 if some else 0.0)
            assert not shares[row][~mask].any()


@pytest.mark.parametrize(
    ("fact", "options"),
    [(costs.total_of("x"), (0.0,)), (costs.most_of("x"), (0.0,)), (costs.quantile_of("x", "q"), (0.0, 0.3, 0.84, 1.0))],
)
@settings(deadline=None)  # the first example of each compiles
@given(workers=WORKERS)
def test_facts(fact: Fact, options: tuple[float, ...], workers: list[tuple[float, bool]]) -> None:
    column, eligible = arrays(workers)
    for option in options:
        found = IN_PYTHON.fact(fact.of_one, column, eligible, option)
        np.testing.assert_array_equal(COMPILED.fact(fact.of_one, column, eligible, option), found)


@given(workers=st.lists(st.floats(0.0, 9.0), min_size=1, max_size=30), share=st.floats(0.0, 1.0))
def test_quantiles(workers: list[float], share: float) -> None:
    eligible = np.ones(len(workers), bool)
    found = IN_PYTHON.fact(costs.quantile_of("x", "q").of_one, np.array(workers), eligible, share)
    assert found.item() == sorted(workers)[int(share * (len(workers) - 1))]


@pytest.mark.parametrize("heap", [0.0, 1e-9, 1e15])
@given(workers=st.lists(st.tuples(st.floats(-5.0, 100.0) | st.just(-np.inf), st.booleans()), min_size=3, max_size=60))
def test_the_best_of_two_is_the_better_of_each_pair(heap: float, workers: list[tuple[float, bool]]) -> None:
    cost = np.array([value + heap * (place % 2) for place, (value, _) in enumerate(workers)])
    eligible = np.array([True, True, True, *(one for _, one in workers[3:])])
    shares = IN_PYTHON.shares(choices.least_of("d").fill, cost, eligible, 2)
    by_pair = np.zeros(len(cost))
    pairs = list(itertools.combinations(np.flatnonzero(eligible), 2))
    for a, b in pairs:
        by_pair[a] += 0.5 + 0.5 * np.sign(cost[b] - cost[a]) if cost[a] != cost[b] else 0.5
        by_pair[b] += 0.5 - 0.5 * np.sign(cost[b] - cost[a]) if cost[a] != cost[b] else 0.5
    np.testing.assert_allclose(shares, by_pair / len(pairs), atol=1e-12)


@settings(deadline=None)  # the first example compiles
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(90, 400),
    levels=st.sampled_from([1, 3, 40, 10**6]),
    heaps=st.sampled_from([1, 2, 7]),
    drawn=st.integers(1, 5),
    missing=st.sampled_from([0.0, 0.3, 0.7]),
)
def test_many_are_sampled_by_their_ranks(
    seed: int, workers: int, levels: int, heaps: int, drawn: int, missing: float
) -> None:
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, levels, workers) / levels + 1e15 * (np.arange(workers) % heaps)
    cost[rng.random(workers) < 0.02] = -np.inf
    cost[rng.random(workers) < 0.02] = np.nan
    eligible = rng.random(workers) >= missing
    fill = choices.least_of("d").fill
    shares = IN_PYTHON.shares(fill, cost, eligible, drawn)
    np.testing.assert_array_equal(COMPILED.shares(fill, cost, eligible, drawn), shares)
    known = np.fmin(cost[eligible], choices.WORST)
    count = len(known)
    survival = [math.comb(count - rank, drawn) / math.comb(count, drawn) for rank in range(count + 1)]
    less, upto = (known < known[:, None]).sum(axis=1), (known <= known[:, None]).sum(axis=1)
    expected = np.take(survival, less) - np.take(survival, upto)
    np.testing.assert_allclose(shares[eligible], expected / (upto - less), atol=1e-13)
    assert not shares[~eligible].any()


@given(eligible=st.lists(st.booleans(), max_size=9), number=st.integers(0, 2**53))
def test_turns(eligible: list[bool], number: int) -> None:
    view = make_view(len(eligible), eligible=np.array(eligible, bool))
    filled = np.full(len(eligible), 7.0)
    who = fill_turn(number, view.eligible, filled)
    np.testing.assert_array_equal(filled, RoundRobin().probabilities(Request("m", number=number), view))
    assert (who == -1) == (not any(eligible))
