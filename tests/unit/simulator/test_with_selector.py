"""A policy under its guard, or rolled out, in the simulator."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from balancer.kernel.settings import GuardSettings
from balancer.scheduler.canary.selector import CanaryPlan
from policies.base import FleetView, FloatArray, Policy, Request
from policies.expected_latency import ExpectedLatency
from policies.least_requests import LeastRequests
from policies.power_of_two import PowerOfTwo
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin
from policies.traced import traced
from simulator.run import run
from simulator.scenario import load_scenario
from simulator.spec import Fault, FleetSpec
from simulator.with_selector import BY_BASELINE, BY_POLICY, run_with_selector

QUIET = GuardSettings(window_s=0.0, report_age_s=5.0)
SCENARIO = load_scenario("heterogeneous-bursty")
TWO = load_scenario("two-balancers")


def guarded_by(settings: GuardSettings, baseline: Policy | None = None) -> CanaryPlan:
    return CanaryPlan(guard=settings, baseline=baseline or ExpectedLatency())


@dataclasses.dataclass(frozen=True)
class Broken(LeastRequests):
    """Answers NaN to every 500th request."""

    name: ClassVar[str] = "broken"

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        answer = super().probabilities(request, fleet)
        return np.where(np.asarray(request.number) % 500 == 499, np.nan, answer)


def test_without_breach_and_windows_the_decisions_are_those_of_the_policy() -> None:
    arrivals = [TWO.arrivals(seed, 800) for seed in range(3)]
    guarded = run_with_selector(TWO.fleet, arrivals, PowerOfTwo(), guarded_by(QUIET))
    plain = run(TWO.fleet, arrivals, PowerOfTwo())
    np.testing.assert_array_equal(guarded.result.picked, plain.picked)
    np.testing.assert_array_equal(guarded.result.latency_s, plain.latency_s)
    assert (guarded.decided == BY_POLICY).all()
    assert guarded.changes == ((), (), ())


def test_windows_give_the_baseline_its_share_and_change_nothing_where_both_are_the_same() -> None:
    arrivals = [SCENARIO.arrivals(seed, 6000) for seed in range(2)]
    settings = GuardSettings(window_every_s=1.0, report_age_s=5.0)
    guarded = run_with_selector(SCENARIO.fleet, arrivals, RoundRobin(), guarded_by(settings, RoundRobin()))
    plain = run(SCENARIO.fleet, arrivals, RoundRobin())
    np.testing.assert_array_equal(guarded.result.picked, plain.picked)
    assert 0.15 < (guarded.decided == BY_BASELINE).mean() < 0.4  # a window of 0.25 s about every second
    assert guarded.changes == ((), ())


@pytest.mark.long
def test_a_policy_that_is_much_worse_than_the_baseline_is_replaced() -> None:
    arrivals = [SCENARIO.arrivals(seed, 30_000, load=0.6) for seed in range(2)]
    settings = GuardSettings(report_age_s=5.0, window_every_s=1.0, quiet_s=1e6, max_quiet_s=1e6)
    guarded = run_with_selector(SCENARIO.fleet, arrivals, RandomChoice(), guarded_by(settings))
    for changes in guarded.changes:
        assert [change.fell for change in changes] == [True]
        assert changes[0].finding.reason in {"late", "tail"}
    plain = run(SCENARIO.fleet, arrivals, RandomChoice())
    last = slice(20_000, None)
    assert guarded.result.latency_s[:, last].mean() < 0.7 * plain.latency_s[:, last].mean()


@pytest.mark.long
def test_a_policy_that_is_better_than_the_baseline_stays() -> None:
    arrivals = [SCENARIO.arrivals(seed, 20_000, load=0.6) for seed in range(2)]
    settings = GuardSettings(report_age_s=5.0, window_every_s=1.0)
    guarded = run_with_selector(SCENARIO.fleet, arrivals, ExpectedLatency(), guarded_by(settings, RandomChoice()))
    assert guarded.changes == ((), ())


def test_invalid_answers_cost_no_request() -> None:
    arrivals = [SCENARIO.arrivals(seed, 1500, load=0.4) for seed in range(2)]
    guarded = run_with_selector(SCENARIO.fleet, arrivals, Broken(), guarded_by(QUIET))
    assert (guarded.result.status == 0).all()
    assert (guarded.decided[:, :499] == BY_POLICY).all()
    assert (guarded.decided[:, 499:] == BY_BASELINE).all()
    for changes in guarded.changes:
        assert [change.finding.reason for change in changes] == ["invalid"]
        assert changes[0].fell


def test_a_policy_is_asked_once_for_all_environments() -> None:
    calls, steps = [], []

    class Counted(LeastRequests):
        def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
            calls.append(fleet.eligible.shape)
            return super().probabilities(request, fleet)

    arrivals, policy = [SCENARIO.arrivals(seed, 200) for seed in range(3)], Counted()
    assert traced(policy).program is None
    calls.clear()
    run_with_selector(SCENARIO.fleet, arrivals, policy, guarded_by(QUIET), progress=steps.append)
    assert calls == [(3, len(SCENARIO.fleet.workers))] * len(steps)


def test_a_policy_that_raises_in_one_environment_fails_there_alone() -> None:
    class Raising(LeastRequests):
        def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
            if np.any(np.asarray(request.deadline_s) == 123.0):
                raise RuntimeError("a deadline of 123 s")
            return super().probabilities(request, fleet)

    arrivals = [SCENARIO.arrivals(seed, 400) for seed in range(2)]
    arrivals[1].deadline_s[7] = 123.0
    guarded = run_with_selector(SCENARIO.fleet, arrivals, Raising(), guarded_by(QUIET))
    assert guarded.changes[0] == ()
    (fell,) = guarded.changes[1]
    assert fell.finding == ("invalid", "RuntimeError: a deadline of 123 s")
    assert (guarded.decided[1] == BY_POLICY).nonzero()[0].tolist() == list(range(7))


def test_policies_whose_keys_decide_are_not_asked_about_them() -> None:
    scenario = load_scenario("cache-affinity")
    arrivals = [scenario.arrivals(0, 1500)]
    guarded = run_with_selector(scenario.fleet, arrivals, LeastRequests(), guarded_by(QUIET))
    plain = run(scenario.fleet, arrivals, LeastRequests())
    np.testing.assert_array_equal(guarded.result.picked, plain.picked)
    policy: Policy = LeastRequests()
    keyed = arrivals[0].key != 0
    if scenario.fleet.settings.sticky_keys and not policy.needs_key:
        assert (guarded.decided[0][keyed] == -1).all()


def half_slowed(at_s: float) -> FleetSpec:
    """Equal workers, half of which take four times as long from then on."""
    fleet = load_scenario("homogeneous-steady").fleet
    slowed = fleet.workers[::2]
    return dataclasses.replace(fleet, faults=tuple(Fault("slow", w.name, at_s=at_s, amount=4.0) for w in slowed))


@pytest.mark.long
@pytest.mark.parametrize(("policy", "falls"), [(RoundRobin(), True), (ExpectedLatency(temperature=0.1), False)])
def test_when_half_the_fleet_slows_down_only_a_policy_that_does_worse_than_the_baseline_is_replaced(
    policy: Policy, falls: bool
) -> None:
    arrivals = [load_scenario("homogeneous-steady").arrivals(seed, 30_000, load=0.4) for seed in range(2)]
    settings = GuardSettings(window_every_s=1.0, quiet_s=1e6, max_quiet_s=1e6)
    guarded = run_with_selector(half_slowed(at_s=8.0), arrivals, policy, guarded_by(settings))
    for changes in guarded.changes:
        assert [change.finding.reason in {"late", "tail"} for change in changes] == [True] * falls
        assert all(change.at_s > 8.0 for change in changes)
