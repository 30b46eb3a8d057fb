"""Hand-computed expectations for prices."""

from __future__ import annotations

import numpy as np
import pytest

from balancer.core.estimators.rates import Rates, picked, price_now_s

MEMORY_S = 2.0


def rates(every_s: float, least_s: float, until_s: float, balancers: float = 1.0) -> Rates:
    """Of a worker that gets a request of `least_s` seconds every `every_s`."""
    found = Rates(*(np.zeros(1) for _ in range(4)))
    for number in range(round(until_s / every_s)):
        picked(found, 0, least_s, balancers, MEMORY_S, number * every_s)
    return found


def price_s(found: Rates, least_s: float, now_s: float, backlog_s: float = 0.3, added_s: float = 0.1) -> float:
    """Of a request of `least_s` seconds."""
    return float(price_now_s(found, 0, np.array(least_s), backlog_s, added_s, MEMORY_S, now_s))


def test_an_average_request_costs_others_nothing_and_a_longer_one_what_it_takes_beyond() -> None:
    found = rates(0.01, 0.005, 20.0)
    assert price_s(found, 0.005, 20.0) == pytest.approx(0, abs=1e-12)
    # 100 a second, half busy: 100 * (0.025 - 0.005) * (0.3 + 0.1 / 2) / (1 - 0.5); the averages are 0.5% off.
    assert price_s(found, 0.025, 20.0) == pytest.approx(1.4, rel=0.02)
    assert price_s(found, 0.001, 20.0) == 0


def test_averages_are_right_from_the_first_second_on() -> None:
    assert price_s(rates(0.01, 0.005, 1.0), 0.025, 1.0) == pytest.approx(1.4, rel=0.05)


def test_other_balancers_send_as_much() -> None:
    one, two = rates(0.01, 0.002, 20.0), rates(0.01, 0.002, 20.0, balancers=2)
    # Twice the requests, and 0.2 or 0.4 busy.
    assert price_s(two, 0.025, 20.0) / price_s(one, 0.025, 20.0) == pytest.approx(2 * (1 - 0.2) / (1 - 0.4), rel=0.01)


def test_a_worker_that_gets_no_more_has_no_price_soon() -> None:
    found = rates(0.01, 0.005, 20.0)
    assert price_s(found, 0.025, 24.0) < 0.4
    assert price_s(found, 0.025, 220.0) < 0.01


def test_prices_are_bounded_however_busy_a_worker_is() -> None:
    found = rates(0.01, 0.5, 20.0)  # fifty times what it can do
    assert 0 <= price_s(found, 1.0, 20.0) < 100 * 0.5 * 0.35 / (1 - 0.9) * 1.05
    assert price_s(Rates(*(np.zeros(1) for _ in range(4))), 1.0, 0.0) == 0


def test_a_stranger_clock_does_no_harm() -> None:
    found = rates(0.01, 0.005, 1.0)
    picked(found, 0, 0.005, 1.0, MEMORY_S, 0.5)  # before the last one
    assert np.isfinite(price_s(found, 0.025, 0.4))
