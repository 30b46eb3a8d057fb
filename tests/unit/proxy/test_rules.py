"""Budgets, breakers and latencies, by hand-computed cases; time is an argument."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from balancer.proxy.attempts import wait_s
from balancer.proxy.breakers import AttemptLatencies, Breakers
from balancer.proxy.settings import ProxyConstants, ProxySection, ProxySettings, TenantsSection
from balancer.proxy.tenants import TenantLimits


@given(st.integers(1, 100), st.floats(0, 1))
def test_waits_double_within_their_bound(attempt: int, chance: float) -> None:
    constants = ProxyConstants(retry_base_s=0.01, retry_max_s=0.1)
    assert 0 <= wait_s(constants, attempt, chance) <= 0.1
    assert wait_s(constants, 1, 0.5) == 0.01
    assert wait_s(constants, 2, 0.5) == 0.02


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 50)), max_size=60))
def test_no_tenant_gets_more_rows_than_its_rate_and_one_burst(events: list[tuple[float, int]]) -> None:
    now_s, rows = 0.0, 0
    tenants = TenantLimits(lambda: now_s, lambda: None)
    tenants.configure(ProxySettings(ProxySection(tenants=TenantsSection(rows_per_s=20, burst_s=1))))
    for pause_s, each in events:
        now_s += pause_s
        if not tenants._wait_s("a", each):
            rows += each
    # One request may be larger than what was left: it is paid for afterwards.
    assert rows <= 20 + 20 * now_s + 50


def test_a_breaker_opens_tries_and_closes() -> None:
    breakers = Breakers(2, open_s=1)
    breakers.ended("m", "w", 0, False, 0.0)
    assert not breakers.shut("m", 0.0)
    breakers.ended("m", "w", 1, None, 0.0)
    breakers.ended("m", "w", 2, False, 0.0)
    assert breakers.shut("m", 0.5) == {"w"}
    assert not breakers.shut("other", 0.5)
    breakers.ended("m", "w", 3, True, 0.6)  # sent before it opened
    assert breakers.shut("m", 0.9) == {"w"}
    assert not breakers.shut("m", 1.0)
    breakers.sent("m", "w", 4)
    assert breakers.shut("m", 1.1) == {"w"}
    assert breakers.states() == {("m", "w"): "half_open"}
    breakers.ended("m", "w", 4, False, 1.2)
    assert breakers.shut("m", 2.1) == {"w"}
    breakers.sent("m", "w", 5)
    breakers.ended("m", "w", 5, None, 2.3)
    assert not breakers.shut("m", 2.3)
    breakers.sent("m", "w", 6)
    breakers.ended("m", "w", 6, True, 2.4)
    assert not breakers.states()


def test_a_success_between_failures_keeps_a_breaker_closed() -> None:
    breakers = Breakers(2)
    for number in range(10):
        breakers.ended("m", "w", number, number % 2 == 0, 0.0)
    assert not breakers.shut("m", 0.0)


def test_breakers_of_workers_that_left_are_forgotten() -> None:
    breakers = Breakers(1)
    breakers.ended("m", "gone", 0, False, 0.0)
    breakers.ended("m", "there", 0, False, 0.0)
    breakers.keep(frozenset(["there"]))
    assert breakers.shut("m", 0.0) == {"there"}


@given(st.lists(st.floats(0.001, 10), min_size=50, max_size=600))
def test_quantiles_are_of_the_latest(latencies: list[float]) -> None:
    found = AttemptLatencies()
    for number, latency_s in enumerate(latencies):
        assert (found.quantile_s("m", 0.95) is None) == (number < 50)
        found.took("m", latency_s)
    latest = sorted(latencies[-512:])
    assert found.quantile_s("m", 0.95) == latest[int(0.95 * len(latest))]
