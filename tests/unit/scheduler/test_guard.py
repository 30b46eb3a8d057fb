"""When the guard takes a policy out of service, why, and when that returns."""

import dataclasses

import pytest
from support.fleets import make_router, report
from support.guarded import NO_WINDOWS, Moody, RecordedChanges, guarded

from balancer.kernel.settings import GuardSettings
from balancer.scheduler.canary.guard import Guard, Look
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.canary.switchback import Arm
from balancer.scheduler.errors import Shed
from balancer.scheduler.events import Finished
from policies.base import Request
from policies.least_requests import LeastRequests

FINE = Look(0.0, 0.0)
STRANGE = Look(0.0, 9.0)


def test_a_policy_that_does_well_decides_everything() -> None:
    g = guarded()
    assert set(g.decide(500)) == {"moody"}
    assert g.changes.guards == []


@pytest.mark.parametrize("answer", ["nan", "heavy", "raise", "ineligible"])
def test_an_invalid_answer_is_replaced_by_the_baselines_for_the_same_request_and_from_then_on(answer: str) -> None:
    g = guarded()
    g.decide(3)
    g.router.observe(report("w0", 2, ready=False), g.now_s)  # not eligible from now on
    g.policy.mood.answer = answer
    assert g.decide(3) == ["least_requests"] * 3
    [(policy, change)] = g.changes.guards
    assert (policy, change.fell, change.finding.reason) == ("moody", True, "invalid")
    assert change.at_s == pytest.approx(4 * 0.02)
    # Once, for the request that it failed at; what it answers while out of service is the guard's affair.
    assert g.router.failures == {"moody": 1}


def test_it_returns_after_a_quiet_period_without_cause_and_not_before() -> None:
    g = guarded(dataclasses.replace(NO_WINDOWS, quiet_s=10.0))
    g.policy.mood.answer = "nan"
    assert g.decide(200, 0.1) == ["least_requests"] * 200  # 20 s: twice the quiet period, but the cause is there
    g.policy.mood.answer = "good"
    decided = g.decide(150, 0.1)
    first = decided.index("moody")
    # From the last probe that found the cause: at most two probes more than the quiet period itself.
    assert 99 <= first <= 102
    assert set(decided[first:]) == {"moody"}
    assert [change.fell for _, change in g.changes.guards] == [True, False]
    assert g.router.selector is not None
    assert g.router.selector.explain(g.now_s)["guards"]["moody"]["fallen_back"] is False


@pytest.mark.parametrize("probe_s", [0.1, 1.0, 30.0])
def test_it_does_not_return_while_inputs_are_strange_however_few_the_requests(probe_s: float) -> None:
    guard = Guard(dataclasses.replace(NO_WINDOWS, quiet_s=0.5))
    for number in range(200):
        guard.looked(STRANGE, number * probe_s)
    assert guard.falls == 1
    assert guard.breach is not None


def test_a_breach_soon_after_a_return_doubles_the_quiet_period_up_to_the_cap() -> None:
    guard = Guard(dataclasses.replace(NO_WINDOWS, quiet_s=1.0, max_quiet_s=5.0))
    now_s, quiet = 0.0, []
    for _ in range(5):
        guard.failed("bad", now_s)
        assert guard.breach is not None
        quiet.append(guard.breach.quiet_s)
        while guard.breach is not None:
            now_s += 0.1
            guard.looked(FINE, now_s)
    assert quiet == [1.0, 2.0, 4.0, 5.0, 5.0]
    now_s += 5.0  # long enough without a breach
    guard.failed("bad", now_s)
    assert guard.breach is not None
    assert guard.breach.quiet_s == 1.0


def test_one_strange_request_is_no_breach_and_many_are_within_a_second() -> None:
    g = guarded()
    g.policy.mood.outside = 9.0
    g.decide(1)
    g.policy.mood.outside = 0.0
    assert set(g.decide(200)) == {"moody"}
    g.policy.mood.outside = 9.0
    decided = g.decide(50)  # a second of 50 requests
    assert decided.index("least_requests") == 11
    [(_, change)] = g.changes.guards
    assert change.finding.reason == "range"
    assert "9.00 (limit 0.25)" in change.finding.words


def test_strange_inputs_are_seen_at_high_rates_though_only_some_are_looked_at() -> None:
    g = guarded()
    g.policy.mood.outside = 9.0
    assert g.decide(1000, 0.001)[-1] == "least_requests"


def test_inputs_that_are_no_number_are_strange_and_a_range_that_raises_is_invalid() -> None:
    g = guarded()
    g.policy.mood.outside = float("nan")
    g.decide(50)
    g.policy.mood.range_raises = True
    g.decide(50)
    [(_, change)] = g.changes.guards
    assert change.finding.reason == "range"
    assert g.router.selector is not None
    assert "no range" in g.router.selector.explain(g.now_s)["guards"]["moody"]["last_cause"]


def test_missing_reports_of_most_workers_are_a_breach_and_of_some_are_not() -> None:
    policy, changes = Moody(), RecordedChanges()
    router = make_router(4, policy)
    settings = GuardSettings(window_s=0.0, report_age_s=0.5)
    router.selector = PolicySelector(policy, CanaryPlan(guard=settings, baseline=LeastRequests()), listener=changes)
    number = 1

    def decide(count: int, reporting: list[str], start_s: float) -> list[str]:
        nonlocal number
        found = []
        for i in range(count):
            now_s = start_s + i * 0.02
            number += 1
            for worker in reporting:
                router.observe(report(worker, number), now_s)
            found.append(router.route(Request("m"), now_s).policy)
        return found

    everyone = ["w0", "w1", "w2", "w3"]
    assert set(decide(50, everyone, 0.02)) == {"moody"}
    # Two of four are missing from 1.5 s on, and left out as stale from 2 s on: half is not more than half.
    assert set(decide(100, everyone[:2], 1.02)) == {"moody"}
    cut = decide(50, [], 3.02)
    assert 24 <= cut.index("least_requests") <= 26
    [(_, change)] = changes.guards
    assert change.finding.reason == "reports"
    assert "100% of the eligible workers have no report of the last 0.5 s" in change.finding.words


def test_slow_decisions_are_a_breach_and_one_long_pause_is_not() -> None:
    g = guarded()
    g.stopwatch.step_s = 10.0  # the collector of garbage, say
    g.decide(1)
    g.stopwatch.step_s = 0.0
    g.decide(3)
    assert g.changes.guards == []
    g.stopwatch.step_s = 0.02
    assert g.decide(4)[-1] == "least_requests"
    [(_, change)] = g.changes.guards
    assert change.finding.reason == "slow"


def test_a_decision_in_ten_a_little_too_slow_is_a_breach_and_a_few_are_not() -> None:
    g = guarded()
    for _ in range(8):  # 1 in 20
        g.stopwatch.step_s = 0.006
        g.decide(1)
        g.stopwatch.step_s = 0.0
        g.decide(19)
    assert g.changes.guards == []
    for _ in range(20):  # 1 in 5
        g.stopwatch.step_s = 0.006
        g.decide(1)
        g.stopwatch.step_s = 0.0
        g.decide(4)
    assert g.changes.guards[0][1].finding.reason == "slow"


def test_a_slow_policy_out_of_service_is_probed_for_a_fiftieth_of_the_time_at_most() -> None:
    guard = Guard(NO_WINDOWS)
    guard.failed("bad", 0.0)
    guard.looked(FINE, 1.0, seconds=0.2)
    assert guard.looks_from_s(Arm.BASELINE) > 10.9
    assert guard.looks_from_s(Arm.BASELINE) <= 11.0


def test_what_a_shedding_policy_sheds_counts_against_it() -> None:
    g = guarded(GuardSettings(report_age_s=1e9, window_every_s=1.0, quiet_s=1e9, max_quiet_s=1e9))
    g.policy.mood.answer = "shed"
    shed = 0
    for _ in range(10_000):
        g.now_s += 0.01
        try:
            decision = g.router.route(Request("m"), g.now_s)
            g.router.observe(Finished(decision.number, decision.worker, 0.01, True), g.now_s + 0.005)
        except Shed:
            shed += 1
    assert shed > 0
    assert g.changes.guards[0][1].finding.reason == "errors"
    assert g.decide(1) == ["least_requests"]


def test_keys_and_sequences_stay_with_the_router_whoever_decides() -> None:
    g = guarded()
    g.policy.mood.answer = "nan"
    assert g.router.route(Request("m", key=7), 1.0).policy == "consistent_hash"
    assert g.router.route(Request("m", key=7, sequence=True), 1.0).policy == "consistent_hash"
    assert g.changes.guards == []


def test_where_the_baseline_fails_too_the_least_pending_worker_stands_in() -> None:
    baseline = Moody()
    baseline.mood.answer = "raise"
    g = guarded(plan=CanaryPlan(guard=NO_WINDOWS, baseline=baseline))
    g.policy.mood.answer = "nan"
    assert g.router.route(Request("m"), 1.0).worker
    assert g.router.failures["moody"] == 2


def test_a_new_config_keeps_the_guards_state_where_policy_and_guard_are_the_same() -> None:
    g = guarded()
    g.policy.mood.answer = "nan"
    g.decide(1)
    old = g.router.selector
    assert old is not None
    same = PolicySelector(g.policy, dataclasses.replace(old.plan, shadow=LeastRequests(), shadow_share=1.0), before=old)
    assert same.choose(0, 1.0).role == "baseline"
    other = PolicySelector(g.policy, dataclasses.replace(old.plan, guard=GuardSettings()), before=old)
    assert other.choose(0, 1.0).role == "in_force"
