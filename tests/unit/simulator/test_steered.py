"""A policy under its guard, or rolled out, in the simulator."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from balancer.core.settings import GuardSettings, RolloutSettings
from balancer.core.trials.steering import Plan
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
from simulator.steered import BY_BASELINE, BY_NEW, BY_POLICY, run_steered

QUIET = GuardSettings(window_s=0.0, report_age_s=5.0)
SCENARIO = load_scenario("heterogeneous-bursty")
TWO = load_scenario("two-balancers")


def guarded_by(settings: GuardSettings, baseline: Policy | None = None) -> Plan:
    return Plan(guard=settings, baseline=baseline or ExpectedLatency())


@dataclasses.dataclass(frozen=True)
class Narrow(RoundRobin):
    """Trained, as it were, on short queues only."""

    name: ClassVar[str] = "narrow"
    trained: ClassVar[bool] = True

    def out_of_range(self, request: Request, fleet: FleetView) -> FloatArray:
        return np.where(fleet.eligible, fleet.in_flight, 0.0).max(axis=-1) - 10.0


@dataclasses.dataclass(frozen=True)
class Broken(LeastRequests):
    """Answers NaN to every 500th request."""

    name: ClassVar[str] = "broken"

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        answer = super().probabilities(request, fleet)
        return np.where(np.asarray(request.number) % 500 == 499, np.nan, answer)


class Unknowing(LeastRequests):
    """Raises when asked about its range."""

    name: ClassVar[str] = "unknowing"

    def out_of_range(self, request: Request, fleet: FleetView) -> FloatArray:
        raise RuntimeError("broken")


def test_without_breach_and_windows_the_decisions_are_those_of_the_policy() -> None:
    arrivals = [TWO.arrivals(seed, 800) for seed in range(3)]
    guarded = run_steered(TWO.fleet, arrivals, PowerOfTwo(), guarded_by(QUIET))
    plain = run(TWO.fleet, arrivals, PowerOfTwo())
    np.testing.assert_array_equal(guarded.result.picked, plain.picked)
    np.testing.assert_array_equal(guarded.result.latency_s, plain.latency_s)
    assert (guarded.decided == BY_POLICY).all()
    assert guarded.changes == ((), (), ())


def test_windows_give_the_baseline_its_share_and_change_nothing_where_both_are_the_same() -> None:
    arrivals = [SCENARIO.arrivals(seed, 6000) for seed in range(2)]
    settings = GuardSettings(window_every_s=1.0, report_age_s=5.0)
    guarded = run_steered(SCENARIO.fleet, arrivals, RoundRobin(), guarded_by(settings, RoundRobin()))
    plain = run(SCENARIO.fleet, arrivals, RoundRobin())
    np.testing.assert_array_equal(guarded.result.picked, plain.picked)
    assert 0.15 < (guarded.decided == BY_BASELINE).mean() < 0.4  # a window of 0.25 s about every second
    assert guarded.changes == ((), ())


def test_equal_runs_are_equal_and_each_environment_has_its_own_windows() -> None:
    arrivals = [SCENARIO.arrivals(0, 3000)] * 2
    settings = GuardSettings(window_every_s=1.0)
    first, again = (
        run_steered(SCENARIO.fleet, arrivals, RandomChoice(), guarded_by(settings), seeds=[5, 6]) for _ in range(2)
    )
    np.testing.assert_array_equal(first.decided, again.decided)
    np.testing.assert_array_equal(first.result.latency_s, again.result.latency_s)
    assert (first.decided[0] != first.decided[1]).any()


def test_a_policy_that_is_much_worse_than_the_baseline_is_replaced() -> None:
    arrivals = [SCENARIO.arrivals(seed, 30_000, load=0.6) for seed in range(2)]
    settings = GuardSettings(report_age_s=5.0, window_every_s=1.0, quiet_s=1e6, max_quiet_s=1e6)
    guarded = run_steered(SCENARIO.fleet, arrivals, RandomChoice(), guarded_by(settings))
    for changes in guarded.changes:
        assert [change.fell for change in changes] == [True]
        assert changes[0].finding.reason in {"late", "tail"}
    plain = run(SCENARIO.fleet, arrivals, RandomChoice())
    last = slice(20_000, None)
    assert guarded.result.latency_s[:, last].mean() < 0.7 * plain.latency_s[:, last].mean()


def test_a_policy_that_is_better_than_the_baseline_stays() -> None:
    arrivals = [SCENARIO.arrivals(seed, 20_000, load=0.6) for seed in range(2)]
    settings = GuardSettings(report_age_s=5.0, window_every_s=1.0)
    guarded = run_steered(SCENARIO.fleet, arrivals, ExpectedLatency(), guarded_by(settings, RandomChoice()))
    assert guarded.changes == ((), ())


def test_it_falls_back_within_a_second_of_strange_inputs_and_returns_when_they_are_usual_again() -> None:
    worker = SCENARIO.fleet.workers[0].name
    faults = (Fault("stall", worker, at_s=5.0, duration_s=1.0),)  # in flight there grows beyond what is usual
    fleet = dataclasses.replace(SCENARIO.fleet, faults=faults)
    arrivals = [SCENARIO.arrivals(0, 8000, load=0.2)]
    settings = dataclasses.replace(QUIET, quiet_s=2.0)
    guarded = run_steered(fleet, arrivals, Narrow(), guarded_by(settings))
    fell, returned = guarded.changes[0][:2]
    assert fell.fell
    assert fell.finding.reason == "range"
    assert 5.0 < fell.at_s < 6.0
    assert not returned.fell
    assert returned.at_s >= fell.at_s + 2.0
    time_s = guarded.result.arrival_s[0]
    between = (time_s > fell.at_s) & (time_s < returned.at_s)
    assert (guarded.decided[0][between] == BY_BASELINE).all()
    assert (guarded.decided[0][time_s > returned.at_s][:10] == BY_POLICY).all()


@pytest.mark.parametrize(("policy", "last_by_policy"), [(Broken(), 498), (Unknowing(), 0)])
def test_invalid_answers_and_exceptions_cost_no_request(policy: Policy, last_by_policy: int) -> None:
    arrivals = [SCENARIO.arrivals(seed, 1500, load=0.4) for seed in range(2)]
    guarded = run_steered(SCENARIO.fleet, arrivals, policy, guarded_by(QUIET))
    assert (guarded.result.status == 0).all()
    assert (guarded.decided[:, : last_by_policy + 1] == BY_POLICY).all()
    assert (guarded.decided[:, last_by_policy + 1 :] == BY_BASELINE).all()
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
    run_steered(SCENARIO.fleet, arrivals, policy, guarded_by(QUIET), progress=steps.append)
    assert calls == [(3, len(SCENARIO.fleet.workers))] * len(steps)


def test_a_policy_that_raises_in_one_environment_fails_there_alone() -> None:
    class Raising(LeastRequests):
        def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
            if np.any(np.asarray(request.deadline_s) == 123.0):
                raise RuntimeError("a deadline of 123 s")
            return super().probabilities(request, fleet)

    arrivals = [SCENARIO.arrivals(seed, 400) for seed in range(2)]
    arrivals[1].deadline_s[7] = 123.0
    guarded = run_steered(SCENARIO.fleet, arrivals, Raising(), guarded_by(QUIET))
    assert guarded.changes[0] == ()
    (fell,) = guarded.changes[1]
    assert fell.finding == ("invalid", "RuntimeError: a deadline of 123 s")
    assert (guarded.decided[1] == BY_POLICY).nonzero()[0].tolist() == list(range(7))


def test_a_rollout_goes_to_its_end_where_the_new_policy_does_as_well_and_returns_where_it_does_worse() -> None:
    arrivals = [SCENARIO.arrivals(seed, 12_000, load=0.6) for seed in range(2)]
    windows = GuardSettings(report_age_s=5.0, window_every_s=1.0)
    settings = RolloutSettings(
        shares=(0.3, 1.0), step_s=1.0, min_requests=10, watch_s=2.0, watch_pairs=2, guard=windows
    )
    for new, ends in ((ExpectedLatency(), "finished"), (Broken(), "returned")):
        plan = Plan(rollout=settings, new=new)
        found = run_steered(SCENARIO.fleet, arrivals, ExpectedLatency(), plan)
        for e, changes in enumerate(found.rollouts):
            assert changes[-1].state == ends
            later = found.result.arrival_s[e] > changes[-1].at_s
            assert (found.decided[e][later] == (BY_NEW if ends == "finished" else BY_POLICY)).all()


def test_reports_that_break_off_are_a_breach() -> None:
    faults = tuple(Fault("silent", worker.name, at_s=3.0) for worker in SCENARIO.fleet.workers)
    fleet = dataclasses.replace(SCENARIO.fleet, faults=faults)
    arrivals = [SCENARIO.arrivals(0, 3000, load=0.5)]
    guarded = run_steered(fleet, arrivals, LeastRequests(), guarded_by(GuardSettings(window_s=0.0)))
    (fell,) = guarded.changes[0]
    assert fell.finding.reason == "reports"
    assert 3.0 < fell.at_s < 4.0


def test_policies_whose_keys_decide_are_not_asked_about_them() -> None:
    scenario = load_scenario("cache-affinity")
    arrivals = [scenario.arrivals(0, 1500)]
    guarded = run_steered(scenario.fleet, arrivals, LeastRequests(), guarded_by(QUIET))
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


@pytest.mark.parametrize(("policy", "falls"), [(RoundRobin(), True), (ExpectedLatency(temperature=0.1), False)])
def test_when_half_the_fleet_slows_down_only_a_policy_that_does_worse_than_the_baseline_is_replaced(
    policy: Policy, falls: bool
) -> None:
    arrivals = [load_scenario("homogeneous-steady").arrivals(seed, 30_000, load=0.4) for seed in range(2)]
    settings = GuardSettings(window_every_s=1.0, quiet_s=1e6, max_quiet_s=1e6)
    guarded = run_steered(half_slowed(at_s=8.0), arrivals, policy, guarded_by(settings))
    for changes in guarded.changes:
        assert [change.finding.reason in {"late", "tail"} for change in changes] == [True] * falls
        assert all(change.at_s > 8.0 for change in changes)
