import math

import numpy as np
import pytest

from balancer.load.arrivals import uniform
from balancer.load.workload import LoadWorkload, ModelMix, RowSizes, mixed, streams


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("digits", ModelMix("digits", 1, math.inf)),
        ("digits:2.5", ModelMix("digits", 2.5, math.inf)),
        ("digits@50", ModelMix("digits", 1, 0.05)),
        ("digits:3@50", ModelMix("digits", 3, 0.05)),
    ],
)
def test_a_model_of_the_mix_is_read(text: str, expected: ModelMix) -> None:
    assert ModelMix.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "model is ''"),
        ("a:x", "weight in 'a:x' is 'x'"),
        ("a:0", "weight"),
        ("a@-5", "deadline"),
        ("a:1:2", "model"),
    ],
)
def test_a_model_that_cannot_be_read_is_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ModelMix.parse(text)


def test_the_default_deadline_is_for_models_that_name_none() -> None:
    assert ModelMix.parse("a", 0.2).deadline_s == 0.2
    assert ModelMix.parse("a@50", 0.2).deadline_s == 0.05


@pytest.mark.parametrize(
    ("text", "values", "shares"),
    [
        ("4", (4,), (1.0,)),
        ("1-3", (1, 2, 3), (1 / 3,) * 3),
        ("1:3,8:1", (1, 8), (0.75, 0.25)),
        ("1,2", (1, 2), (0.5, 0.5)),
    ],
)
def test_row_sizes_are_read(text: str, values: tuple[int, ...], shares: tuple[float, ...]) -> None:
    sizes = RowSizes.parse(text)
    assert sizes.values == values
    assert sizes.shares == pytest.approx(shares)


@pytest.mark.parametrize("text", ["", "0", "3-1", "a", "1:x", "1:-1", "-2"])
def test_row_sizes_that_cannot_be_read_are_refused_with_the_value(text: str) -> None:
    with pytest.raises(ValueError, match="rows"):
        RowSizes.parse(text)


def made(seed: int) -> LoadWorkload:
    _, models, rows = streams(seed, 3)
    mix = [ModelMix("a", 3, 0.05), ModelMix("b", 1)]
    return mixed(uniform(1000, 20), mix, RowSizes((1, 8), (0.5, 0.5)), models, rows)


def test_the_mix_has_its_shares_and_deadlines() -> None:
    workload = made(1)
    assert np.mean(workload.model == 0) == pytest.approx(0.75, abs=0.02)
    assert np.mean(workload.rows == 8) == pytest.approx(0.5, abs=0.02)
    assert set(workload.deadline_s[workload.model == 0]) == {0.05}
    assert set(workload.deadline_s[workload.model == 1]) == {math.inf}


def test_workloads_are_cut_and_joined_in_time() -> None:
    workload = made(1)
    cut = workload.until(0.5)
    assert len(cut) == 500
    twice = cut.then(cut, 1.0)
    assert len(twice) == 1000
    assert twice.time_s[500] == 1.0
    with pytest.raises(ValueError, match="descends"):
        cut.then(cut, 0.1)


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry for each request"):
        LoadWorkload(("a",), np.zeros(2), np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(2))
