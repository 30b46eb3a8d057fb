"""Limits, the draw, and who comes after the one picked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleets import make_router
from support.kernel import request_of

from balancer.kernel import limits_and_draw
from balancer.kernel.deciding import DRAWS, LIMITS, NAMES
from balancer.kernel.settings import Limits, Settings
from balancer.scheduler.router import Router
from policies.base import Request
from policies.round_robin import RoundRobin

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


def busy(limits: Limits, in_flight: tuple[int, ...] = (3, 2, 0, 1)) -> Router:
    """As many requests in flight as it says; each takes 10 ms, one after the other."""
    router = make_router(len(in_flight), settings=Settings(limits=limits))
    for w, count in enumerate(in_flight):
        for _ in range(count):
            router.route(Request("m", priority=0), 0.1, {f"w{w}"})
    return router


def left(router: Router, request: Request, eligible: tuple[int, ...]) -> tuple[int, list[int]]:
    """How many the kernel leaves of those that are eligible, and whom."""
    fleet, now_s = router.fleet, 0.1
    request = request.numbered(0)
    view = router.view(request, now_s)
    mask = np.zeros(len(fleet.workers), bool)
    mask[list(eligible)] = True
    fleet.decision.mask[0] = mask
    count = limits_and_draw.keep_within_limits(fleet, 0, 0, request_of(request, view), now_s)
    return count, np.flatnonzero(fleet.decision.mask[0]).tolist()


def test_those_with_as_many_pending_as_the_limit_are_left_out() -> None:
    assert left(busy(Limits(4.0)), Request("m"), (0, 1, 2, 3)) == (4, [0, 1, 2, 3])
    assert left(busy(Limits(3.0)), Request("m"), (0, 1, 2, 3)) == (3, [1, 2, 3])
    assert left(busy(Limits(9.0, 2, 2.0)), Request("m", priority=2), (0, 1, 2, 3)) == (2, [2, 3])
    assert left(busy(Limits(9.0, 2, 2.0)), Request("m", priority=1), (0, 1, 2, 3)) == (4, [0, 1, 2, 3])


def test_who_was_not_eligible_is_not_let_in() -> None:
    assert left(busy(Limits(3.0)), Request("m"), (0, 1, 3)) == (2, [1, 3])
    assert left(busy(Limits()), Request("m"), (0, 3)) == (2, [0, 3])


def test_none_is_left_where_all_are_full() -> None:
    assert left(busy(Limits(4.0), (3, 3, 0)), Request("m"), (0, 1)) == (2, [0, 1])
    assert left(busy(Limits(3.0), (3, 3, 0)), Request("m"), (0, 1)) == (0, [])


def test_a_request_that_would_be_late_at_the_best_of_the_eligible_has_nobody() -> None:
    router = busy(Limits(shed_late=True), (3, 1, 0))
    # An idle worker takes 10 ms, the one with a request 20 ms.
    assert left(router, Request("m", deadline_s=0.015), (0, 1, 2))[0] == 3
    assert left(router, Request("m", deadline_s=0.015), (0, 1))[0] == 0
    assert left(router, Request("m", deadline_s=0.021), (0, 1))[0] == 2
    assert left(router, Request("m"), (0, 1))[0] == 2
    assert left(busy(Limits()), Request("m", deadline_s=0.03), (0,))[0] == 1


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


@pytest.mark.parametrize(
    ("line", "count", "named"),
    [
        ([3.0, 1.0, 2.0], 2, [1, 2]),
        ([3.0, 1.0, 2.0], 3, [1, 2, 0]),
        # Ties in order of rows; what is infinite is not named.
        ([1.0, 0.0, 1.0, 0.0], 4, [1, 3, 0, 2]),
        ([2.0, INF, 1.0, INF], 4, [2, 0, -1, -1]),
        ([1.0, 1.0], 0, []),
    ],
)
def test_the_least_are_named_in_order(line: list[float], count: int, named: list[int]) -> None:
    out = [-1] * count
    limits_and_draw.name_least(line, count, out)
    assert out == named


def fallbacks(router: Router, picked: int, eligible: tuple[int, ...], room: int) -> list[int]:
    fleet, request = router.fleet, Request("m").numbered(0)
    features = request_of(request, router.view(request, 0.1))
    mask = np.zeros(len(fleet.workers), bool)
    mask[list(eligible)] = True
    fleet.decision.mask[0] = mask
    out = np.full(room, 99)
    limits_and_draw.name_fallbacks(fleet, 0, 0, picked, features, 0.1, out)
    return out.tolist()


def test_fallbacks_are_the_other_eligible_ones_as_many_as_are_wanted_and_have_room() -> None:
    router = busy(Limits())  # (3, 2, 0, 1) requests in flight
    assert fallbacks(router, 2, (0, 1, 2, 3), room=5) == [3, 1, -1, -1, -1]
    assert fallbacks(router, 3, (0, 1, 2, 3), room=1) == [2]
    assert fallbacks(router, 1, (0, 1), room=2) == [0, -1]
    router.configure(RoundRobin(), Settings(max_fallbacks=9))
    assert fallbacks(router, 3, (0, 1, 2, 3), room=5) == [2, 1, 0, -1, -1]


def test_the_pick_has_its_fallbacks_in_the_same_order_and_a_propensity_that_sums_to_one() -> None:
    router = busy(Limits())
    mask, kernel = np.array([True, True, False, True]), router.fleet.kernel
    picked = kernel.decide(router.fleet, router, RoundRobin(), Request("m"), 2, 1, mask, 0.1, LIMITS | DRAWS | NAMES)
    assert picked == (3, 1.0, (1, 0), 3)


@given(
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0]) | st.floats(0.0, 1.0), max_size=20),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_draw_falls_on_the_same_worker_however_it_is_looked_for(shares: list[float], uniform: float) -> None:
    of, sums = np.array(shares), np.zeros(len(shares))
    assert limits_and_draw.draw_by_sums(of, uniform, sums) == limits_and_draw.draw(shares, uniform)
    assert not shares or sums[-1] == limits_and_draw.total_of(shares)
