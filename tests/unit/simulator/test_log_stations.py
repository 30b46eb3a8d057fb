"""A worker's executions by when its answers came."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.log.stations import EXACT, Answered, Errors, Room, executions_of, sharings

ROOMS = {"a": Room(4, 2), "b": Room(1, 1)}
GAPS_S = st.floats(0, 2)


@st.composite
def answers(draw: st.DrawFn) -> list[Answered]:
    came_s, found = 0.0, []
    for number in range(draw(st.integers(1, 25))):
        came_s += draw(GAPS_S)
        model = draw(st.sampled_from(sorted(ROOMS)))
        rows = draw(st.integers(1, ROOMS[model].max_batch_rows))
        found.append(Answered(model, rows, draw(st.integers(1, 2)), came_s, came_s + draw(GAPS_S), number + 1))
    return found


@given(answers(), st.integers(1, 4), st.floats(0, 1))
def test_all_are_executed_once_and_nobody_has_more_than_there_is(
    answered: list[Answered], at_once: int, way_s: float
) -> None:
    found = executions_of(answered, ROOMS, at_once, way_s)
    assert Counter(request.key for one in found for request in one.requests) == Counter(one.key for one in answered)
    assert [one.end_s for one in found] == sorted(one.end_s for one in found)
    for one in found:
        assert one.rows <= ROOMS[one.model].max_batch_rows
        assert {request.model for request in one.requests} == {one.model}
        assert max(request.came_s for request in one.requests) <= one.begin_s <= one.end_s
        assert one.shared_s.sum() <= one.end_s - one.begin_s + 1e-9
        assert one.at_end <= at_once
        assert not one.shared_s[at_once:].any()
        under_way = [
            other for other in found if other.model == one.model and other.begin_s <= one.begin_s < other.end_s
        ]
        assert len(under_way) <= ROOMS[one.model].instances


def test_a_queue_goes_into_one_batch_and_waits_for_the_device() -> None:
    answered = [
        Answered("a", 1, 1, 0.0, 1.0),
        Answered("b", 1, 1, 0.1, 3.0),
        Answered("a", 2, 1, 0.2, 6.0),  # the second instance
        Answered("a", 2, 2, 0.3, 7.0),
        Answered("a", 1, 1, 0.4, 7.0),
        Answered("a", 3, 2, 0.5, 9.0),
    ]
    found = executions_of(answered, ROOMS, 1, 0.0)
    assert [(one.model, one.rows, one.begin_s) for one in found] == [
        ("a", 1, 0.0),
        ("b", 1, 0.1),
        ("a", 2, 0.2),
        ("a", 3, 1.0),
        ("a", 3, 6.0),
    ]
    assert [one.shared_s[0] for one in found] == pytest.approx([1.0, 2.0, 3.0, 1.0, 2.0])


@given(st.floats(0, 1), st.floats(1e-4, 0.1), st.floats(-1, 10), st.floats(1e-3, 1))
def test_generalised_logarithms_are_logarithms_of_what_is_long_and_grow(
    share: float, jitter_s: float, seconds: float, more_s: float
) -> None:
    logs, slopes = Errors(share, jitter_s).logarithm(np.array([seconds, seconds + more_s, 1e4]))
    assert logs[0] < logs[1]
    assert logs[2] == pytest.approx(np.log(1e4))
    assert slopes[2] == pytest.approx(-np.log(1e4))
    exact, _ = EXACT.logarithm(np.array([2.0]))
    assert exact.tolist() == [np.log(2.0)]


def test_two_at_once_are_told_from_one_after_the_other() -> None:
    """Executions that take a second alone and two beside each other."""
    dice = np.random.default_rng(1)
    answered, begin_s = [], 0.0
    for _ in range(60):
        both = dice.random() < 0.5
        lasts_s = (2.0 if both else 1.0) * float(dice.lognormal(0, 0.05))
        answered += [Answered("a", 4, 1, begin_s, begin_s + lasts_s)] * (2 if both else 1)
        begin_s += lasts_s + 1.0
    rooms = {"w": {"a": Room(4, 2)}}
    best = max(
        (each for at_once in (1, 2) for each in sharings({"w": answered}, rooms, at_once, 0.0)),
        key=lambda each: each.log_likelihood,
    )
    assert (best.at_once, best.interference) == (2, pytest.approx(1.0, abs=0.1))
    assert best.work_s().mean() == pytest.approx(1.0, rel=0.05)
