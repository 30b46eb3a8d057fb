"""Guards, rollouts and shadows in the simulator are those of production's router, bit for bit: who decides, what
changes when and why, and what is known at the end.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.equality import assert_equal
from simulation.fickle import Fickle, plans, policies
from simulation.strategies import Scenario, arrivals, fleets
from support.examples import examples

from balancer.kernel.settings import GuardSettings, Margins, RolloutSettings
from balancer.scheduler.canary.selector import CanaryPlan
from dev.reference import Simulation
from policies import Policy
from policies.expected_latency import ExpectedLatency
from policies.power_of_two import PowerOfTwo
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin
from simulator.scenario import load_scenario
from simulator.with_selector import BY_BASELINE, BY_NEW, BY_POLICY, NOBODY, SelectedResult, run_with_selector

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
    short = draw(arrivals(fleet, most=500, least=200))
    stretched = dataclasses.replace(short, time_s=short.time_s * draw(st.sampled_from([8.0, 2.0, 32.0])))
    return Scenario(fleet, stretched, draw(st.integers(0, 1000)))


def compare(scenario: Scenario, policy: Policy, plan: CanaryPlan, environments: int = 2) -> SelectedResult:
    fleet, requests, seed = scenario
    seeds = [seed + e for e in range(environments)]
    found = run_with_selector(fleet, [requests] * len(seeds), policy, plan, seeds=seeds)
    for e, each in enumerate(seeds):
        plain = Simulation(fleet, requests, policy, each, plan=plan)
        assert_equal(found.result, plain.run(), e)
        np.testing.assert_array_equal(found.decided[e], [_CODES[role] for role in plain.roles])
        watch = plain.world.watch
        assert found.changes[e] == tuple(watch.guards)
        assert found.rollouts[e] == tuple(watch.rollouts)
        for selector, router in zip(found.selectors[e], plain.world.routers, strict=True):
            assert router.selector is not None
            assert_said_alike(selector.explain(_LATER_S), router.selector.explain(_LATER_S))
    return found


def assert_said_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The same, but for the last bits of exp, which NumPy takes otherwise for many fleets: they show in distances."""
    distances = [said["shadow"].pop("distance") for said in (one, other) if said["shadow"] is not None]
    np.testing.assert_equal(one, other)
    if None not in distances:
        np.testing.assert_allclose(distances[:1], distances[1:], rtol=1e-9)


@pytest.mark.parametrize("rollout", [False, True], ids=["guard", "rollout"])
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_random_fleets_policies_and_plans(rollout: bool, data: st.DataObject) -> None:
    compare(data.draw(long_scenarios()), data.draw(policies), data.draw(plans(rollout)))


INPUTS = GuardSettings(report_age_s=1e9, quiet_s=0.5, max_quiet_s=1.0, window_s=0.0)
OUTCOMES = dataclasses.replace(
    INPUTS, window_s=0.125, settle_s=0.03, window_every_s=0.5, margins=Margins(0.0, 0.0, 0.0), false_alarm_pairs=1.0
)
STEPS = RolloutSettings(
    shares=(0.3, 1.0),
    step_s=0.5,
    min_requests=10,
    watch_s=0.5,
    watch_pairs=2,
    guard=dataclasses.replace(OUTCOMES, margins=Margins(), false_alarm_pairs=10_000.0),
)


@pytest.mark.parametrize(
    ("policy", "plan", "happens"),
    [
        (Fickle(does="strange", every=4, of=100), CanaryPlan(INPUTS, PowerOfTwo()), {"fell: range", "returned: range"}),
        (Fickle(does="nan", every=300), CanaryPlan(INPUTS, PowerOfTwo()), {"fell: invalid", "returned: invalid"}),
        (RoundRobin(), CanaryPlan(OUTCOMES, ExpectedLatency()), {"fell: tail", "returned: tail"}),
        (
            ExpectedLatency(),
            CanaryPlan(rollout=STEPS, new=RandomChoice(), guard_new=OUTCOMES, baseline=PowerOfTwo()),
            {"running", "watched", "finished", "fell: tail"},
        ),
        (
            ExpectedLatency(),
            CanaryPlan(rollout=STEPS, new=Fickle(does="sheds", every=3), shadow=RandomChoice(), shadow_share=0.5),
            {"running", "watched", "returned"},
        ),
    ],
    ids=["range", "invalid", "outcomes", "rollout-finished", "rollout-returned"],
)
def test_all_that_guards_and_rollouts_do(policy: Policy, plan: CanaryPlan, happens: set[str]) -> None:
    scenario = load_scenario("two-balancers")
    found = compare(Scenario(scenario.fleet, scenario.arrivals(0, 3000, load=0.1), 0), policy, plan, environments=1)
    ended = {("fell: " if each.fell else "returned: ") + each.finding.reason for each in found.changes[0]}
    assert happens <= ended | {each.state for each in found.rollouts[0]}
