"""What is written for arrays and in loops gives the same bits: choices among costs, facts of a fleet, turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.views import make_view

from policies import choices, facts
from policies.base import Request
from policies.choices import Choice
from policies.facts import Fact
from policies.round_robin import RoundRobin, fill_turn

VALUES = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e12]), st.floats(0.0, 1000.0), st.sampled_from([np.inf, np.nan])
)
WORKERS = st.lists(st.tuples(VALUES, st.booleans()), max_size=40)


def arrays(workers: list[tuple[float, bool]]) -> tuple[np.ndarray, np.ndarray]:
    values, eligible = np.array([one for one, _ in workers], float), np.array([two for _, two in workers], bool)
    return values, eligible


@pytest.mark.parametrize(
    ("choice", "options"),
    [
        (choices.LEAST, (0.0,)),
        (choices.least_of("d"), (0, 1, 2, 3, 7, 50)),
        (choices.softmin_of("t"), (0.0, 0.02, 1.0)),
        (choices.IN_PROPORTION, (0.0,)),
    ],
)
@given(workers=WORKERS)
def test_choices(choice: Choice, options: tuple[float, ...], workers: list[tuple[float, bool]]) -> None:
    cost, eligible = arrays(workers)
    if choice is choices.IN_PROPORTION:
        cost = np.nan_to_num(cost, posinf=3.0)  # shares and not costs: finite
    for option in options:
        shares = choice.shares(cost, eligible, *([option] if choice.option else []))
        filled, scratch = np.full_like(cost, 7.0), np.full(2 * len(cost) + 1, 7.0)
        who = choice.fill(cost.copy(), eligible, float(option), scratch, filled)
        np.testing.assert_allclose(filled, shares, rtol=1e-14 if choice.option == "t" else 0)
        assert who == -1 or filled[who] == filled.sum() == 1.0


@pytest.mark.parametrize(
    ("fact", "options"),
    [(facts.total_of("x"), (0.0,)), (facts.most_of("x"), (0.0,)), (facts.quantile_of("x", "q"), (0.0, 0.3, 0.84, 1.0))],
)
@given(workers=WORKERS)
def test_facts(fact: Fact, options: tuple[float, ...], workers: list[tuple[float, bool]]) -> None:
    column, eligible = arrays(workers)
    for option in options:
        of_all = np.asarray(fact.of_all(column, eligible, *([option] if fact.option else []))).item()
        of_one = fact.of_one(column, eligible, option, np.zeros(len(column) + 1))
        # Beyond every number is beyond every number, known or not.
        assert (np.inf if np.isnan(of_all) else of_all) == of_one


@given(eligible=st.lists(st.booleans(), max_size=9), number=st.integers(0, 2**53))
def test_turns(eligible: list[bool], number: int) -> None:
    view = make_view(len(eligible), eligible=np.array(eligible, bool))
    filled = np.full(len(eligible), 7.0)
    who = fill_turn(number, view.eligible, filled)
    np.testing.assert_array_equal(filled, RoundRobin().probabilities(Request("m", number=number), view))
    assert (who == -1) == (not any(eligible))
