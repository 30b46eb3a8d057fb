"""From one policy to another in steps, and back."""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest
from support.guarded import NO_WINDOWS, Moody, guarded

from balancer.kernel.settings import GuardSettings, RolloutSettings
from balancer.scheduler.canary.rollout import Rollout, RolloutChange
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector, Ticket
from balancer.scheduler.events import Finished
from policies.base import Policy, Request
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice

WINDOWS = GuardSettings(window_every_s=1.0)
STEPS = RolloutSettings(shares=(0.1, 0.5, 1.0), step_s=10.0, min_requests=20, watch_s=60.0, guard=WINDOWS)

REPORTED = GuardSettings(report_age_s=1e9, window_every_s=1.0)


class Brave(RandomChoice):
    name: ClassVar[str] = "brave"


def arrivals(
    rollout: Rollout, count: int, deadline_s: float = 0.1, first: int = 0
) -> Iterator[tuple[int, float, bool, Ticket | None]]:
    """Requests, 200 a second: number, time, whether the new policy decides it, and its ticket."""
    for number in range(first, first + count):
        now_s = number / 200
        new = rollout.takes(number, now_s)
        yield number, now_s, new, rollout.ticket(new, "m", deadline_s, now_s)


def drive(
    rollout: Rollout, slower: float = 1.0, failing: float = 0.0, duration_s: float = 60.0, seed: int = 0
) -> list[tuple[float, bool]]:
    """Requests with outcomes at once: when each came, and whether the new policy decided it."""
    generator = np.random.default_rng(seed)
    found = []
    for _, now_s, new, ticket in arrivals(rollout, int(duration_s * 200)):
        found.append((now_s, new))
        if ticket is not None:
            latency_s = 0.03 * float(generator.lognormal(0, 0.5)) * (slower if new else 1.0)
            ticket.ended(latency_s, not (new and generator.random() < failing), now_s + latency_s)
    return found


def test_the_shares_are_kept_step_by_step_to_the_end() -> None:
    changes: list[RolloutChange] = []
    rollout = Rollout(STEPS, on_change=changes.append)
    found = drive(rollout, duration_s=200.0)
    for begin_s, share in ((0, 0.1), (10, 0.5), (20, 0.75), (190, 1.0)):  # windows of 0.25 s, one a second
        picked = [new for at_s, new in found if begin_s <= at_s < begin_s + 10]
        assert np.mean(picked) == pytest.approx(share, abs=0.06)
    assert [(change.state, change.share) for change in changes] == [
        ("running", 0.1),
        ("running", 0.5),
        ("watched", 1.0),
        ("finished", 1.0),
    ]
    assert [change.at_s for change in changes[:3]] == [0.0, 10.0, 20.0]
    assert changes[3].at_s > 20 + STEPS.watch_s
    assert rollout.state == "finished"
    assert rollout.ticket(True, "m", 0.1, 200.0) is None


def test_equal_seeds_give_equal_arms_and_who_was_moved_stays_moved() -> None:
    first, again = (drive(Rollout(STEPS, seed=4)) for _ in range(2))
    assert first == again
    assert first != drive(Rollout(STEPS, seed=5))
    small, large = (Rollout(RolloutSettings(shares=(share,))) for share in (0.2, 0.6))
    taken = [{n for n in range(2000) if rollout.takes(n, 0.0)} for rollout in (small, large)]
    assert taken[0] < taken[1]


def test_a_step_waits_for_enough_outcomes_of_the_new_policy() -> None:
    rollout = Rollout(STEPS)
    for number in range(10_000):
        rollout.takes(number, number / 100)  # nothing is heard of any
    assert (rollout.state, rollout.share) == ("running", 0.1)
    assert (
        rollout.explain(100.0)["held"] == "0 requests of the new policy and 0 of the old one ended; min_requests is 20"
    )


def test_a_step_waits_for_enough_outcomes_of_the_old_policy_too() -> None:
    changes: list[RolloutChange] = []
    rollout = Rollout(STEPS, on_change=changes.append)
    for _, now_s, new, ticket in arrivals(rollout, 6000, math.inf):
        if ticket is not None and new:
            ticket.ended(0.03, True, now_s)
    assert rollout.share == 0.1
    assert [change.held and change.held.reason for change in changes] == [None, "outcomes"]  # told once


def test_no_step_is_taken_while_there_is_evidence_against_the_new_policy() -> None:
    changes: list[RolloutChange] = []
    rollout = Rollout(RolloutSettings(shares=(0.5, 1.0), step_s=3.0, min_requests=20), 0, changes.append)
    drive(rollout, slower=1.5, duration_s=4.0)
    assert (rollout.state, rollout.share) == ("running", 0.5)
    assert [change.held and change.held.reason for change in changes] == [None, "evidence"]
    shown = rollout.explain(4.0)
    assert 10 < max(shown["evidence_against_new"].values()) < 300_000
    assert shown["held"].startswith("evidence ")
    assert "requests" in shown["held"]


def test_a_held_step_is_taken_when_the_evidence_has_gone() -> None:
    changes: list[RolloutChange] = []
    rollout = Rollout(RolloutSettings(shares=(0.5, 1.0), step_s=3.0, min_requests=20), 0, changes.append)
    for number, now_s, new, ticket in arrivals(rollout, 200 * 600):
        if rollout.state != "running":
            break
        assert ticket is not None
        ticket.ended(0.03, not (new and now_s < 3 and number % 10 == 0), now_s)
    assert [(change.state, bool(change.held)) for change in changes] == [
        ("running", False),
        ("running", True),
        ("watched", False),
    ]


def test_what_was_drawn_and_ends_after_the_last_step_still_counts() -> None:
    """The new policy's requests that ended soon are good; the others hang."""
    rollout = Rollout(RolloutSettings(shares=(0.5, 1.0), step_s=1.0, min_requests=20))
    for number, now_s, new, ticket in arrivals(rollout, 600, math.inf):
        if ticket is not None and not (new and number % 2):
            ticket.ended(0.03, True, now_s)
    assert rollout.state == "watched"
    before = max(rollout.explain(3.0)["evidence_against_new"].values())
    rollout.takes(600, 15.0)
    assert rollout.state == "returned" or max(rollout.explain(15.0)["evidence_against_new"].values()) > 10 * before


def test_the_watch_returns_a_policy_that_becomes_worse_after_the_last_step() -> None:
    changes: list[RolloutChange] = []
    rollout = Rollout(STEPS, on_change=changes.append)
    drive(rollout, duration_s=40.0)
    assert rollout.state == "watched"
    shown = rollout.explain(40.0)["watch"]
    assert (shown["watch_s"], shown["watch_pairs"]) == (60.0, 100)
    assert 15 < shown["quiet_s"] <= 20
    assert 5 < shown["pairs"] <= 20
    generator = np.random.default_rng(1)
    for _, now_s, new, ticket in arrivals(rollout, 200 * 300, first=8000):
        if ticket is not None:
            ticket.ended(0.03 * float(generator.lognormal(0, 0.5)), not (new and generator.random() < 0.5), now_s)
    assert rollout.state == "returned"
    assert rollout.finding is not None
    assert rollout.finding.reason in {"errors", "late"}
    assert "of the old policy's" in rollout.finding.words
    assert changes[-1].state == "returned"
    assert rollout.share == 0.0
    assert not any(rollout.takes(number, 400.0) for number in range(100))


@pytest.mark.parametrize("rate_per_s", [1.0, 3.0, 20.0])
def test_the_windows_of_the_watch_get_longer_where_requests_are_few(rate_per_s: float) -> None:
    rollout = Rollout(RolloutSettings(shares=(1.0,)))
    generator, now_s = np.random.default_rng(0), 0.0
    for number in range(20_000):
        now_s += float(generator.exponential(1 / rate_per_s))
        new = rollout.takes(number, now_s)
        ticket = rollout.ticket(new, "m", 0.1, now_s)
        if ticket is not None:
            ticket.ended(0.03, not new, now_s)
        if rollout.state == "returned":
            break
    assert rollout.state == "returned"


@pytest.mark.long
def test_equal_policies_are_called_unequal_no_more_often_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a promise of one false alarm in 20 observations and more, so that there are some to count."""
    monkeypatch.setattr("balancer.scheduler.canary.evidence._FALSE_ALARM_BLOCKS", 20.0)
    settings = RolloutSettings(shares=(0.5,), step_s=1e9)
    returns, blocks = 0, 0.0
    for seed in range(10):
        rollout = Rollout(settings, seed)
        found = drive(rollout, duration_s=100.0, seed=seed)
        blocks += sum(new or rollout.state == "running" for _, new in found) / 200
        returns += rollout.state == "returned"
    assert blocks > 300
    assert returns / blocks <= 1 / 20

    lively = GuardSettings(window_every_s=1.0, false_alarm_pairs=20.0)
    returns, pairs = 0, 0
    for seed in range(6):
        rollout = Rollout(RolloutSettings(shares=(1.0,), watch_s=1e9, guard=lively), seed)
        drive(rollout, duration_s=150.0, seed=seed)
        returns += rollout.state == "returned"
        pairs += rollout.explain(150.0)["watch"]["pairs"] if rollout.state == "watched" else 1
    assert pairs > 100
    assert returns / pairs <= 1 / 20


@pytest.mark.parametrize(
    ("slower", "failing", "reasons"), [(3.0, 0.0, {"late", "tail"}), (1.0, 0.5, {"errors", "late"})]
)
def test_a_worse_policy_goes_back_for_good_and_says_why(slower: float, failing: float, reasons: set[str]) -> None:
    for seed in range(4):
        changes: list[RolloutChange] = []
        rollout = Rollout(RolloutSettings(shares=(0.05, 1.0), step_s=100.0), seed, changes.append)
        found = drive(rollout, slower, failing, duration_s=100.0, seed=seed)
        assert rollout.state == "returned"
        last = changes[-1]
        assert last.finding is not None
        assert last.finding.reason in reasons
        assert last.at_s < 60
        assert not any(new for at_s, new in found if at_s > last.at_s)
        shown = rollout.explain(100.0)
        assert (shown["state"], shown["share"], shown["reason"]) == ("returned", 0.0, last.finding.reason)
        assert shown["new"]["requests"] > 20


def test_requests_of_the_new_policy_that_never_end_count_against_it() -> None:
    rollout = Rollout(RolloutSettings(shares=(0.2,), step_s=1e9))
    for _, now_s, new, ticket in arrivals(rollout, 40_000):
        if ticket is not None and not new:
            ticket.ended(0.03, True, now_s + 0.03)
    assert rollout.state == "returned"
    assert rollout.finding is not None
    assert rollout.finding.reason in {"late", "tail"}


def test_in_the_router_each_decision_names_the_policy_that_made_it() -> None:
    plan = CanaryPlan(rollout=RolloutSettings(shares=(0.5,)), new=Brave())
    g = guarded(plan=plan, policy=LeastRequests())
    assert set(g.decide(100)) == {"least_requests", "brave"}
    assert g.changes.rollouts[0][0] == "brave"


def test_a_new_policy_without_a_valid_answer_is_returned_at_once_and_the_old_one_serves_the_request() -> None:
    new = Moody()
    g = guarded(plan=CanaryPlan(rollout=RolloutSettings(shares=(0.5,)), new=new), policy=LeastRequests())
    g.decide(20)
    new.mood.answer = "nan"
    assert set(g.decide(100)) == {"least_requests"}
    change = g.changes.rollouts[-1][1]
    assert (change.state, change.finding and change.finding.reason) == ("returned", "invalid")
    assert g.router.failures == {"moody": 1}


def test_the_guard_of_a_new_policy_ends_its_rollout_and_watches_on_once_that_is_finished() -> None:
    new = Moody()
    plan = CanaryPlan(rollout=RolloutSettings(shares=(0.5,), guard=REPORTED), new=new, baseline=LeastRequests())
    g = guarded(plan=plan, policy=RandomChoice())
    new.mood.outside = 9.0
    assert set(g.decide(200)[-50:]) == {"random"}
    change = g.changes.rollouts[-1][1]
    assert (change.state, change.finding and change.finding.reason) == ("returned", "range")

    for watch_s, state, stands_in in ((1e9, "returned", "random"), (5.0, "finished", "least_requests")):
        new = Moody()
        steps = RolloutSettings(shares=(1.0,), watch_s=watch_s, watch_pairs=1, guard=REPORTED)
        plan = CanaryPlan(rollout=steps, new=new, baseline=LeastRequests(), guard_new=NO_WINDOWS)
        g = guarded(plan=plan, policy=RandomChoice())
        g.serve(2000, 0.01)
        new.mood.outside = 9.0
        assert g.decide(100)[-1] == stands_in
        assert g.changes.rollouts[-1][1].state == state
        assert g.router.selector is not None
        assert g.router.selector.explain(g.now_s)["decides"] == stands_in


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("shares", [(0.5,), (1.0,)])
def test_a_slow_new_policy_returns_trained_or_not(trained: bool, shares: tuple[float, ...]) -> None:
    new: Policy = Moody() if trained else Brave()
    g = guarded(
        plan=CanaryPlan(rollout=RolloutSettings(shares=shares, guard=REPORTED), new=new), policy=LeastRequests()
    )
    g.stopwatch.step_s = 0.006
    assert set(g.decide(100)[-50:]) == {"least_requests"}
    change = g.changes.rollouts[-1][1]
    assert (change.state, change.finding and change.finding.reason) == ("returned", "slow")
    assert g.changes.guards == []  # one event, one line


def test_missing_reports_return_a_trained_policy_and_say_nothing_against_others() -> None:
    for new, state in ((Moody(), "returned"), (Brave(), "watched")):
        g = guarded(plan=CanaryPlan(rollout=RolloutSettings(shares=(1.0,)), new=new), policy=LeastRequests())
        g.decide(200)
        assert g.changes.rollouts[-1][1].state == state


def test_windows_against_the_baseline_begin_only_when_the_rollout_is_finished() -> None:
    settings = GuardSettings(window_every_s=1.0, report_age_s=1e9)
    steps = RolloutSettings((0.5, 1.0), step_s=20.0, min_requests=1, watch_s=30.0, watch_pairs=10, guard=settings)
    plan = CanaryPlan(settings, LeastRequests(), rollout=steps, new=Moody(), guard_new=settings)
    g = guarded(plan=plan, policy=RandomChoice())
    assert set(g.serve(1900, 0.01)) == {"random", "moody"}
    g.serve(200, 0.01)
    assert set(g.serve(2000, 0.01)) == {"random", "moody"}  # the windows of the watch: the old policy's
    g.serve(2000, 0.01)
    assert g.changes.rollouts[-1][1].state == "finished"
    assert set(g.serve(1000, 0.01)) == {"moody", "least_requests"}


def test_a_config_that_changes_elsewhere_keeps_the_rollout_and_its_guard() -> None:
    plan = CanaryPlan(rollout=RolloutSettings(shares=(1.0,), guard=REPORTED), new=Moody())
    g = guarded(plan=plan, policy=LeastRequests())
    g.serve(100)
    before = g.router.selector
    assert before is not None
    after = PolicySelector(
        before.policy, dataclasses.replace(plan, shadow=RandomChoice()), listener=g.changes, before=before
    )
    assert after.rollout is before.rollout
    assert after.rollout_guard is before.rollout_guard
    after.plan.new.mood.outside = 9.0  # type: ignore[union-attr]  # it is moody
    g.router.selector = after
    g.decide(100)
    assert g.changes.rollouts[-1][1].state == "returned"
    new_steps = dataclasses.replace(plan, rollout=RolloutSettings(shares=(0.5,)))
    again = PolicySelector(before.policy, new_steps, listener=g.changes, before=after)
    assert again.rollout is not before.rollout
    assert again.rollout_guard is not before.rollout_guard


def test_outcomes_reach_the_rollout_through_the_router() -> None:
    g = guarded(plan=CanaryPlan(rollout=STEPS, new=Brave()), policy=LeastRequests())
    for _ in range(3000):
        g.now_s += 0.005
        decision = g.router.route(Request("m", deadline_s=0.1), g.now_s)
        bad = decision.policy == "brave"
        g.router.observe(Finished(decision.number, decision.worker, 0.01, not bad), g.now_s)
    assert g.router.selector is not None
    shown = g.router.selector.explain(g.now_s)["rollout"]
    assert (shown["state"], shown["from"], shown["to"]) == ("returned", "least_requests", "brave")
    assert "failed" in shown["why"] or "late" in shown["why"]
    assert not math.isnan(shown["old"]["p50_s"])
