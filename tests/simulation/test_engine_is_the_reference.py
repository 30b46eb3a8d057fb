"""The compiled engine does what the plain reference does: the same decisions and the same latencies, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import reference
from simulation.strategies import Scenario, scenarios

from policies import BUILTIN, Policy
from simulator.result import Result
from simulator.run import run

EXACT = ("arrival_s", "picked", "attempts", "worker", "status", "latency_s", "executions")
ROUNDED = ("pending_integral_s", "end_s", "busy_s")


def assert_equal(engine: Result, plain: Result) -> None:
    """Bit for bit, but for sums over the run."""
    for name in EXACT:
        np.testing.assert_array_equal(getattr(engine, name), getattr(plain, name), err_msg=name, strict=True)
    for name in ROUNDED:
        np.testing.assert_allclose(getattr(engine, name), getattr(plain, name), rtol=1e-9, atol=1e-9, err_msg=name)


def compare(scenario: Scenario, policy: Policy, compiled: bool) -> None:
    fleet, arrivals, seed = scenario
    engine = run(fleet, [arrivals], policy, seeds=[seed], compiled=compiled)
    assert_equal(engine, reference.simulate(fleet, arrivals, policy, seed))


@pytest.mark.parametrize("name", sorted(BUILTIN))
@settings(max_examples=25, deadline=None)
@given(scenario=scenarios(), compiled=st.booleans())
def test_random_fleets(name: str, scenario: Scenario, compiled: bool) -> None:
    compare(scenario, BUILTIN[name](), compiled)
