"""Guard, rollout and shadow over policies that are published: the module keeps to the tables of who is to decide."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.published import SETTINGS, Other, PublishedEnvoy, Thirds, drawn, lacking, published_envoy
from support.settling import SEED, TAKEN

from balancer.core.settings import GuardSettings, RolloutSettings
from balancer.core.trials.steering import Plan, Steering
from balancer.front.layouts import Decider
from policies import BUILTIN
from policies.base import Policy, Request
from policies.hashing import mix, unit

pytestmark = pytest.mark.usefixtures("no_time")

GUARD = GuardSettings(window_s=0.0, report_age_s=1e9)
STEPS = RolloutSettings(shares=(0.3, 1.0), step_s=1e6, min_requests=30, watch_s=1.0, watch_pairs=1, guard=GUARD)
WLPR = BUILTIN["wlpr"]()
REQUESTS = 300


def compare(e: PublishedEnvoy, policy: Policy, plan: Plan) -> Steering:
    steering = Steering(policy, plan, SEED)
    e.router.configure(policy, SETTINGS, steering)
    return steering


def drive(e: PublishedEnvoy, steering: Steering) -> Counter[str]:
    """Requests, each decided by whom the lot of its number says; who decided: `asked` is the balancer."""
    decided: Counter[str] = Counter()
    in_flight = e.router.fleet.queue.in_flight
    mask = e.router.fleet.eligible(e.request.model, "", e.now_s)
    for each in range(REQUESTS):
        if each % 10 == 0:
            e.publish()
        standing, number = steering.standing(), e.router.next_number
        choice = standing.sides[unit(mix(standing.lots ^ number)) < standing.share].choice
        table = e.table_of(Decider.NEW if choice.role == "rollout" else Decider.POLICY)
        shares = None if table is None else lacking(table, in_flight, mask)
        answer, decided_number, row, propensity = e.decide()
        if answer != TAKEN:
            e.route()
            decided["asked"] += 1
            continue
        assert decided_number == number
        decided[choice.policy.name] += 1
        if not e.router._compiled[e.router._policies.index(choice.policy)]:
            assert shares is not None
            assert (row, propensity) == drawn(shares, SEED, number)
        e.router.learn()
    return decided


def test_a_guard_watches_a_policy_that_is_published(settle: Path, shared: Path) -> None:
    policy = Thirds()
    with published_envoy(settle, shared, policy, SETTINGS) as e:
        steering = compare(e, policy, Plan(guard=GUARD, baseline=WLPR))
        decided = drive(e, steering)
        assert decided["thirds"] > 0.9 * REQUESTS
        assert e.router.state.counts()["published"] == decided["thirds"]
        guard = steering.guards()["thirds"]
        assert guard.breach is None
        # Each decision, and each answer that a table was computed from.
        assert guard._decisions >= decided["thirds"]


@pytest.mark.parametrize("fault", ["slow", "raises"])
def test_a_guard_has_the_baseline_stand_in(
    settle: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    policy = Thirds(raises=fault == "raises")
    if fault == "slow":
        seconds = iter(range(100_000))
        monkeypatch.setattr("balancer.front.tables.time.perf_counter", lambda: GUARD.decision_s * 2 * next(seconds))
    with published_envoy(settle, shared, policy, SETTINGS) as e:
        steering = compare(e, policy, Plan(guard=GUARD, baseline=WLPR))
        for _ in range(200):
            if e.decide()[0] != TAKEN:
                e.route()
            e.publish()
        assert steering.guards()["thirds"].breach is not None
        published = e.router.state.counts()["published"]
        assert all(e.decide()[0] == TAKEN for _ in range(10))
        assert e.router.state.counts()["published"] == published


def test_a_rollout_to_a_policy_that_is_published_has_its_share(settle: Path, shared: Path) -> None:
    with published_envoy(settle, shared, WLPR, SETTINGS) as e:
        steering = compare(e, WLPR, Plan(rollout=STEPS, new=Other()))
        decided = drive(e, steering)
        assert decided["asked"] < 0.1 * REQUESTS
        assert e.router.state.counts()["published"] == decided["other"]
        assert 0.2 * REQUESTS < decided["other"] < 0.4 * REQUESTS


def test_a_rollout_between_two_that_are_published_has_tables_for_both(settle: Path, shared: Path) -> None:
    policy = Thirds()
    with published_envoy(settle, shared, policy, SETTINGS) as e:
        steering = compare(e, policy, Plan(rollout=STEPS, new=Other()))
        decided = drive(e, steering)
        assert decided["asked"] < 0.1 * REQUESTS
        assert 0.2 * REQUESTS < decided["other"] < 0.4 * REQUESTS
        assert len(e.router.tables) == 2


def test_a_shadow_is_asked_about_its_share_alone(settle: Path, shared: Path) -> None:
    policy = Thirds()
    with published_envoy(settle, shared, policy, SETTINGS) as e:
        steering = compare(e, policy, Plan(shadow=WLPR, shadow_share=0.2))
        decided = drive(e, steering)
        assert 0.1 * REQUESTS < decided["asked"] < 0.3 * REQUESTS
        assert decided["thirds"] == REQUESTS - decided["asked"]
        assert steering.shadow is not None
        # The first ten came before there was a table.
        assert 0 <= decided["asked"] - steering.shadow.decisions <= 10


def test_what_was_compared_before_has_no_table_any_more(settle: Path, shared: Path) -> None:
    policy = Thirds()
    with published_envoy(settle, shared, policy, SETTINGS) as e:
        drive(e, compare(e, policy, Plan(rollout=STEPS, new=Other())))
        e.router.configure(policy, SETTINGS)
        e.publish()
        assert not e.asks(Request(e.request.model))
        for _ in range(30):
            e.decide()
            e.publish(50)
        assert e.table_of(Decider.NEW) is None
        assert e.table_of(Decider.POLICY) is not None
