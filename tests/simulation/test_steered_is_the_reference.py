"""Guards, rollouts and shadows in the simulator are those of production's router, bit for bit: who decides, what
changes when and why, and what is known at the end.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.equality import assert_equal
from simulation.fickle import plans, policies
from simulation.reference import Simulation
from simulation.strategies import Scenario, arrivals, fleets

from balancer.core.steering import Plan
from policies import Policy
from simulator.steered import BY_BASELINE, BY_NEW, BY_POLICY, NOBODY, run_steered

_LATER_S = 1000.0
_CODES = {None: NOBODY, "hash": NOBODY, "in_force": BY_POLICY, "baseline": BY_BASELINE, "rollout": BY_NEW}


@st.composite
def long_scenarios(draw: st.DrawFn) -> Scenario:
    """Of up to a minute, so that policies fall, return, and are rolled out to the end.

    Workers that join later are not eligible in the engine and unknown to a router, so that a policy which picks such
    would fail in one alone: all are there.
    """
    drawn = draw(fleets())
    fleet = dataclasses.replace(drawn, workers=tuple(dataclasses.replace(w, present=True) for w in drawn.workers))
    short = draw(arrivals(fleet, most=400))
    stretched = dataclasses.replace(short, time_s=short.time_s * draw(st.sampled_from([1.0, 4.0, 16.0])))
    return Scenario(fleet, stretched, draw(st.integers(0, 1000)))


def compare(scenario: Scenario, policy: Policy, plan: Plan) -> None:
    fleet, requests, seed = scenario
    seeds = [seed, seed + 1]
    found = run_steered(fleet, [requests] * len(seeds), policy, plan, seeds=seeds)
    for e, each in enumerate(seeds):
        plain = Simulation(fleet, requests, policy, each, plan=plan)
        assert_equal(found.result, plain.run(), e)
        np.testing.assert_array_equal(found.decided[e], [_CODES[role] for role in plain.roles])
        watch = plain.world.watch
        assert found.changes[e] == tuple(watch.guards)
        assert found.rollouts[e] == tuple(watch.rollouts)
        for steering, router in zip(found.steerings[e], plain.world.routers, strict=True):
            assert router.steering is not None
            np.testing.assert_equal(steering.explain(_LATER_S), router.steering.explain(_LATER_S))


@pytest.mark.parametrize("rollout", [False, True], ids=["guard", "rollout"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_random_fleets_policies_and_plans(rollout: bool, data: st.DataObject) -> None:
    compare(data.draw(long_scenarios()), data.draw(policies), data.draw(plans(rollout)))
