"""From one policy to another in steps, and back."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
from support.guarded import NO_WINDOWS, Moody, guarded

from balancer.core.events import Finished
from balancer.core.rollout import Rollout, RolloutChange
from balancer.core.settings import GuardSettings, RolloutSettings
from balancer.core.steering import Plan
from policies.base import Request
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice

STEPS = RolloutSettings(shares=(0.1, 0.5, 1.0), step_s=10.0, min_requests=20)


class Brave(RandomChoice):
    name: ClassVar[str] = "brave"


def drive(
    rollout: Rollout, slower: float = 1.0, failing: float = 0.0, duration_s: float = 60.0, seed: int = 0
) -> list[tuple[float, bool]]:
    """Requests, 200 a second, with outcomes: when each came, and whether the new policy decided it."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(int(duration_s * 200)):
        now_s = number / 200
        new = rollout.takes(number, now_s)
        found.append((now_s, new))
        ticket = rollout.ticket(new, "m", 0.1, now_s)
        if ticket is not None:
            latency_s = 0.03 * float(generator.lognormal(0, 0.5)) * (slower if new else 1.0)
            ticket.ended(latency_s, not (new and generator.random() < failing), now_s + latency_s)
    return found


def test_the_shares_are_kept_step_by_step_to_the_end() -> None:
    heard: list[RolloutChange] = []
    rollout = Rollout(STEPS, on_change=heard.append)
    found = drive(rollout)
    for begin_s, share in ((0, 0.1), (10, 0.5), (20, 1.0), (50, 1.0)):
        picked = [new for at_s, new in found if begin_s <= at_s < begin_s + 10]
        assert np.mean(picked) == pytest.approx(share, abs=0.03)
    assert [(change.state, change.share) for change in heard] == [
        ("running", 0.1),
        ("running", 0.5),
        ("finished", 1.0),
    ]
    assert [change.at_s for change in heard] == [0.0, 10.0, 20.0]
    assert rollout.state == "finished"


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


@pytest.mark.parametrize(
    ("slower", "failing", "reasons"), [(3.0, 0.0, {"late", "tail"}), (1.0, 0.5, {"errors", "late"})]
)
def test_a_worse_policy_goes_back_for_good_and_says_why(slower: float, failing: float, reasons: set[str]) -> None:
    for seed in range(4):
        heard: list[RolloutChange] = []
        rollout = Rollout(RolloutSettings(shares=(0.05, 1.0), step_s=100.0), seed, heard.append)
        found = drive(rollout, slower, failing, duration_s=100.0, seed=seed)
        assert rollout.state == "returned"
        last = heard[-1]
        assert last.finding is not None
        assert last.finding.reason in reasons
        assert last.at_s < 60
        assert not any(new for at_s, new in found if at_s > last.at_s)
        shown = rollout.explain()
        assert (shown["state"], shown["share"], shown["reason"]) == ("returned", 0.0, last.finding.reason)
        assert shown["new"]["requests"] > 20


def test_an_equal_policy_is_rolled_out() -> None:
    for seed in range(6):
        rollout = Rollout(RolloutSettings(shares=(0.1, 0.5, 1.0), step_s=60.0), seed)
        drive(rollout, duration_s=180.0, seed=seed)
        assert rollout.state == "finished"


def test_requests_of_the_new_policy_that_never_end_count_against_it() -> None:
    rollout = Rollout(RolloutSettings(shares=(0.2,), step_s=1e9))
    for number in range(40_000):
        now_s = number / 200
        new = rollout.takes(number, now_s)
        ticket = rollout.ticket(new, "m", 0.1, now_s)
        if ticket is not None and not new:
            ticket.ended(0.03, True, now_s + 0.03)
    assert rollout.state == "returned"
    assert rollout.finding is not None
    assert rollout.finding.reason in {"late", "tail"}


def test_in_the_router_each_decision_names_the_policy_that_made_it() -> None:
    plan = Plan(rollout=RolloutSettings(shares=(0.5,)), new=Brave())
    g = guarded(plan=plan, policy=LeastRequests())
    assert set(g.decide(100)) == {"least_requests", "brave"}
    assert g.heard.rollouts[0][0] == "brave"


def test_a_new_policy_without_a_valid_answer_is_returned_at_once_and_the_old_one_serves_the_request() -> None:
    new = Moody()
    g = guarded(plan=Plan(rollout=RolloutSettings(shares=(0.5,)), new=new), policy=LeastRequests())
    g.decide(20)
    new.mood.answer = "nan"
    assert set(g.decide(100)) == {"least_requests"}
    change = g.heard.rollouts[-1][1]
    assert (change.state, change.finding and change.finding.reason) == ("returned", "invalid")
    assert g.router.failures == {"moody": 1}


def test_the_guard_of_a_new_policy_ends_its_rollout_and_watches_on_once_that_is_finished() -> None:
    new = Moody()
    plan = Plan(rollout=RolloutSettings(shares=(0.5,)), new=new, baseline=LeastRequests(), guard_new=NO_WINDOWS)
    g = guarded(plan=plan, policy=RandomChoice())
    new.mood.outside = 9.0
    assert set(g.decide(200)[-50:]) == {"random"}
    change = g.heard.rollouts[-1][1]
    assert (change.state, change.finding and change.finding.reason) == ("returned", "range")

    new = Moody()
    plan = Plan(rollout=RolloutSettings(shares=(1.0,)), new=new, baseline=LeastRequests(), guard_new=NO_WINDOWS)
    g = guarded(plan=plan, policy=RandomChoice())
    assert set(g.decide(50)) == {"moody"}
    new.mood.outside = 9.0
    assert g.decide(100)[-1] == "least_requests"
    assert g.heard.rollouts[-1][1].state == "finished"
    assert g.router.steering is not None
    assert g.router.steering.explain(g.now_s)["decides"] == "least_requests"


def test_windows_begin_only_when_the_rollout_has_ended() -> None:
    settings = GuardSettings(window_every_s=1.0, report_age_s=1e9)
    steps = RolloutSettings(shares=(0.5, 1.0), step_s=20.0, min_requests=1)
    plan = Plan(settings, LeastRequests(), rollout=steps, new=Moody(), guard_new=settings)
    g = guarded(plan=plan, policy=RandomChoice())
    decision = g.router.route(Request("m"), 0.0)
    while decision.policy != "moody":
        decision = g.router.route(Request("m"), 0.0)
    g.router.observe(Finished(decision.number, decision.worker, 0.01, True), 0.0)
    assert set(g.decide(1900, 0.01)) == {"random", "moody"}
    g.decide(200, 0.01)
    assert set(g.decide(1000, 0.01)) == {"moody", "least_requests"}


def test_outcomes_reach_the_rollout_through_the_router() -> None:
    g = guarded(plan=Plan(rollout=STEPS, new=Brave()), policy=LeastRequests())
    for _ in range(3000):
        g.now_s += 0.005
        decision = g.router.route(Request("m", deadline_s=0.1), g.now_s)
        bad = decision.policy == "brave"
        g.router.observe(Finished(decision.number, decision.worker, 0.01, not bad), g.now_s)
    assert g.router.steering is not None
    shown = g.router.steering.explain(g.now_s)["rollout"]
    assert (shown["state"], shown["from"], shown["to"]) == ("returned", "least_requests", "brave")
    assert "failed" in shown["why"] or "late" in shown["why"]
    assert not math.isnan(shown["old"]["p50_s"])
