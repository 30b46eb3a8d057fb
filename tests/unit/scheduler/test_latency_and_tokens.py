"""What a worker's latency and errors, and its bucket of tokens, are known to be; by hand."""

import math

import numpy as np
import pytest
from support.estimators import allocate

from balancer.kernel.estimators import latency, tokens
from balancer.kernel.estimators.latency import Latency
from balancer.kernel.estimators.tokens import Tokens
from balancer.kernel.settings import TokenSettings


class TestLatency:
    def observe(self, x: Latency, latency_s: float, ok: bool, now_s: float) -> None:
        latency.observe(x, 0, latency_s, ok, now_s, decay_s=10.0, error_decay_s=10.0)

    def test_a_peak_is_taken_at_once_and_forgotten_slowly(self) -> None:
        x = allocate(Latency, 1, 0)
        self.observe(x, 0.1, True, 0.0)
        self.observe(x, 0.5, True, 1.0)
        assert x.latency_s[0] == 0.5
        self.observe(x, 0.1, True, 11.0)
        assert x.latency_s[0] == pytest.approx(0.1 + 0.4 * np.exp(-1))

    def test_a_fast_error_does_not_lower_it_and_a_slow_one_raises_it(self) -> None:
        x = allocate(Latency, 1, 0)
        self.observe(x, 0.1, True, 0.0)
        self.observe(x, 0.0001, False, 5.0)
        assert x.latency_s[0] == 0.1
        self.observe(x, 0.9, False, 6.0)
        assert x.latency_s[0] == 0.9

    def test_errors_show_in_the_error_rate_and_fade(self) -> None:
        x = allocate(Latency, 1, 0)
        for k in range(500):
            self.observe(x, math.nan, False, k * 0.1)
        assert latency.error_rate_now(x, ..., 50.0, 10.0)[0] == pytest.approx(1.0, abs=0.05)
        assert latency.error_rate_now(x, ..., 150.0, 10.0)[0] < 0.001
        assert x.latency_s[0] == 0

    def test_one_outcome_has_at_least_a_hundredth_of_the_weight(self) -> None:
        x = allocate(Latency, 1, 0)
        for _ in range(2):
            self.observe(x, 0.1, False, 5.0)
        one = 1 - np.exp(-0.5)
        assert x.errors[0] == pytest.approx(one * np.exp(-0.01) + 1 - np.exp(-0.01))
        self.observe(x, 0.1, True, 5.0)
        assert x.errors[0] == pytest.approx((one * np.exp(-0.01) + 1 - np.exp(-0.01)) * np.exp(-0.01))

    def test_what_is_learned_of_one_worker_is_not_of_another(self) -> None:
        x = allocate(Latency, 3, 0)
        latency.observe(x, 1, 0.2, False, 1.0, decay_s=10.0, error_decay_s=10.0)
        assert x.latency_s.tolist() == [0, 0.2, 0]
        assert x.errors[0] == x.errors[2] == 0 < x.errors[1]

    def test_the_average_and_the_error_rate_are_forgotten_each_by_its_own_time(self) -> None:
        x = allocate(Latency, 1, 0)
        latency.observe(x, 0, 0.2, False, 1.0, decay_s=2.0, error_decay_s=4.0)
        assert latency.latency_now_s(x, 0, 3.0, 2.0) == pytest.approx(0.2 / np.e)
        assert latency.error_rate_now(x, 0, 5.0, 4.0) == pytest.approx((1 - np.exp(-0.25)) / np.e)


class TestTokens:
    settings = TokenSettings(capacity=10, refill_per_s=100, target_pending=4)

    def test_never_above_capacity_nor_below_zero(self) -> None:
        t = allocate(Tokens, 1, 0)
        tokens.advance(t, 0, 0, self.settings, 0.0)
        for _ in range(20):
            tokens.take(t, 0)
        assert tokens.level_now(t, ..., self.settings, 0.0)[0] == 0
        assert tokens.level_now(t, ..., self.settings, 99.0)[0] == 10
