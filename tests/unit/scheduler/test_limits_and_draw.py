"""Limits, the draw, and who comes after the one picked."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleets import make_router

from balancer.kernel import limits_and_draw
from balancer.kernel.settings import Limits, Settings

INF = math.inf


@pytest.mark.parametrize(
    ("limits", "by_priority"),
    [
        (Limits(), {0: INF, 1: INF, 9: INF}),
        (Limits(5.0), {0: 5.0, 1: 5.0, 9: 5.0}),
        (Limits(5.0, 2, 3.0), {0: 5.0, 1: 5.0, 2: 3.0, 9: 3.0}),
        # The lower of the two holds, and with a priority of 0 no request is sheddable.
        (Limits(3.0, 2, 5.0), {1: 3.0, 2: 3.0}),
        (Limits(5.0, 0, 3.0), {0: 5.0, 9: 5.0}),
        (Limits(sheddable_priority=1, sheddable_max_pending_per_worker=0.0), {0: INF, 1: 0.0}),
    ],
)
def test_how_much_may_be_pending_where_a_request_goes(limits: Limits, by_priority: dict[int, float]) -> None:
    router = make_router(1, settings=Settings(limits=limits))
    for priority, most in by_priority.items():
        assert limits_and_draw.pending_limit(router.fleet, 0, priority) == most


@pytest.mark.parametrize("total", [1.0, 1.0 - 9e-7, 1.0 + 9e-7])
def test_every_draw_falls_on_somebody_in_proportion_to_the_shares(total: float) -> None:
    shares = [0.0, 0.25 * total, 0.0, 0.75 * total, 0.0]
    draws = (np.arange(4000) + 0.5) / 4000
    picked = [limits_and_draw.draw(shares, float(draw)) for draw in draws]
    assert (picked.count(1), picked.count(3)) == (1000, 3000)
    assert limits_and_draw.draw(shares, 0.0) == 1
    assert limits_and_draw.draw(shares, 1.0 - 2.0**-53) == 3


def test_where_all_shares_are_zero_it_falls_on_nobody() -> None:
    assert limits_and_draw.draw([0.0, 0.0], 0.0) == -1
    assert limits_and_draw.draw([], 0.5) == -1


@given(
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0]) | st.floats(0.0, 1.0), max_size=20),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_draw_falls_on_the_same_worker_however_it_is_looked_for(shares: list[float], uniform: float) -> None:
    of, sums = np.array(shares), np.zeros(len(shares))
    assert limits_and_draw.draw_by_sums(of, uniform, sums) == limits_and_draw.draw(shares, uniform)
    assert not shares or sums[-1] == limits_and_draw.total_of(shares)
