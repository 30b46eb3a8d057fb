"""Intervals are over scenarios, trainings and request seeds, and of both sides of a ratio."""

from __future__ import annotations

import numpy as np
import pytest

from dev.experiments.sealed.intervals import together


def test_where_all_agree_there_is_no_interval() -> None:
    alike = together(np.log(np.full((9, 1, 3), 0.8)))
    assert (alike.value, alike.low, alike.high) == pytest.approx((0.8, 0.8, 0.8))


def test_the_interval_is_over_scenarios() -> None:
    apart = together(np.log(np.linspace(0.5, 1.5, 9))[:, None, None] + np.zeros((9, 1, 3)))
    assert apart.value == pytest.approx(1.0)
    assert apart.low < 0.8
    assert apart.high > 1.2


def test_the_interval_is_over_trainings() -> None:
    found = together(np.zeros((9, 4, 3)) + np.log([0.5, 0.5, 2.0, 2.0])[None, :, None])
    assert found.low < 0.8
    assert found.high > 1.25


def test_the_interval_is_over_request_seeds() -> None:
    found = together(np.zeros((2, 4, 3)) + np.log([0.5, 1.0, 2.0])[None, None, :])
    assert found.value == pytest.approx(1.0)
    assert found.low < 0.9
    assert found.high > 1.1


def test_the_middle_is_what_is_asked_for() -> None:
    logs = np.log([1.0, 1.0, 8.0])[:, None, None]
    assert together(logs).value == pytest.approx(1.0)
    assert together(logs, np.mean).value == pytest.approx(2.0)


def test_what_both_sides_have_in_common_cancels() -> None:
    """Scenarios and request seeds are the same on both sides, however far apart they are."""
    hard = np.random.default_rng(0).normal(size=(6, 1, 4))
    found = together(hard + np.log(0.5) + np.zeros((6, 3, 4)), np.mean, hard)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_trainings_of_what_it_is_divided_by_are_drawn_too() -> None:
    found = together(np.zeros((5, 1, 2)), np.mean, np.zeros((5, 4, 2)) + np.log([0.5, 0.5, 2.0, 2.0])[None, :, None])
    assert found.value == pytest.approx(1.0)
    assert found.low < 0.8
    assert found.high > 1.25
