"""The compiled engine does what the plain reference does: the same decisions and the same latencies, bit for bit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import reference
from simulation.equality import assert_equal
from simulation.strategies import Scenario, scenarios

from policies import BUILTIN, Policy
from simulator.run import run


def compare(scenario: Scenario, policy: Policy, compiled: bool) -> None:
    fleet, arrivals, seed = scenario
    engine = run(fleet, [arrivals], policy, seeds=[seed], compiled=compiled)
    assert_equal(engine, reference.simulate(fleet, arrivals, policy, seed))


@pytest.mark.parametrize("name", sorted(BUILTIN))
@settings(max_examples=25, deadline=None)
@given(scenario=scenarios(), compiled=st.booleans())
def test_random_fleets(name: str, scenario: Scenario, compiled: bool) -> None:
    compare(scenario, BUILTIN[name](), compiled)
