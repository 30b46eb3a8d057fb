"""What people are told of guard, shadow and rollout: /explain, metrics, the log, and the decision log."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.decision_logs import write
from support.fleets import make_router, report
from support.guarded import NO_WINDOWS, Moody, guarded

from balancer.kernel.settings import GuardSettings, RolloutSettings
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog
from balancer.server.events import EventLog, EventReporter
from balancer.server.metrics import Metrics
from balancer.server.page.explain import explain, who_decides
from policies.base import FleetView, FloatArray, Request
from policies.expected_latency import ExpectedLatency
from policies.least_requests import LeastRequests
from policies.power_of_two import PowerOfTwo
from policies.random_choice import RandomChoice
from policies.wlpr import WeightedLeastPending
from simulator.replay import replay

M = Request("m")


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_a_fall_and_a_return_are_a_line_each_and_in_the_metrics(caplog: pytest.LogCaptureFixture) -> None:
    g = guarded(dataclasses.replace(NO_WINDOWS, quiet_s=2.0))
    metrics = Metrics(g.router, lambda: g.now_s)
    assert g.router.selector is not None
    plan = g.router.selector.plan
    g.router.selector = PolicySelector(
        g.policy, plan, listener=EventReporter(g.router, metrics, EventLog(), lambda: g.now_s)
    )
    fallen = ("balancer_guard_fallen_back", frozenset({("policy", "moody")}))
    assert samples(metrics)[fallen] == 0
    with caplog.at_level(logging.INFO):
        g.policy.mood.answer = "raise"
        g.decide(1)
        assert samples(metrics)[fallen] == 1
        g.policy.mood.answer = "good"
        g.decide(50, 0.1)
    assert samples(metrics)[fallen] == 0
    breach = frozenset({("policy", "moody"), ("reason", "invalid")})
    assert samples(metrics)["balancer_guard_breaches_total", breach] == 1
    fell, returned = (record for record in caplog.records if record.name == "balancer.server.events")
    assert fell.levelname == "WARNING"
    assert "out of service, a baseline decides: RuntimeError: moody" in fell.getMessage()
    assert (fell.policy, fell.reason, fell.quiet_s) == ("moody", "invalid", 2.0)  # type: ignore[attr-defined]  # extra
    assert "back in service" in returned.getMessage()


def test_a_rollout_is_shown_step_by_step_with_what_holds_it_and_how_far_its_proof_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    windows = GuardSettings(window_every_s=1.0)
    steps = RolloutSettings((0.5, 1.0), step_s=2.0, min_requests=50, watch_s=20.0, watch_pairs=10, guard=windows)
    g = guarded(policy=RandomChoice())
    metrics = Metrics(g.router, lambda: g.now_s)
    g.router.selector = PolicySelector(
        g.router.policy,
        CanaryPlan(rollout=steps, new=PowerOfTwo()),
        listener=EventReporter(g.router, metrics, EventLog(), lambda: g.now_s),
    )
    with caplog.at_level(logging.INFO):
        g.decide(150)
        held = explain(g.router, M, g.now_s)["rollout"]
        assert who_decides(g.router, g.now_s) == "random, power_of_two for 50% of the requests (rollout)"
        g.serve(800)
        watched = explain(g.router, M, g.now_s)["rollout"]
        assert who_decides(g.router, g.now_s) == "power_of_two (rolled out, in place of random)"
        g.serve(2500)
    logged = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "balancer.server.events"]
    assert logged == [
        ("INFO", "rollout: next step"),
        ("INFO", f"rollout: step held: {held['held']}"),
        ("INFO", "rollout: the new policy decides all, watched against the old one in windows"),
        ("INFO", "rollout: finished, the new policy has proven itself; write it into policy, and remove rollout"),
    ]
    assert held["held"].endswith("ended; min_requests is 50")
    assert (watched["state"], watched["held"], watched["watch"]["watch_pairs"]) == ("watched", "", 10)
    assert 0 < watched["watch"]["quiet_s"] < 20
    done = explain(g.router, M, g.now_s)
    assert (done["decides"], done["rollout"]["state"], done["rollout"]["watch"]) == ("power_of_two", "finished", None)
    assert who_decides(g.router, g.now_s) == "power_of_two (rolled out, in place of random)"


def test_explain_says_who_decides_and_why() -> None:
    g = guarded()
    assert explain(g.router, M, 0.1)["decides"] == who_decides(g.router, 0.1) == "moody"
    g.policy.mood.answer = "raise"
    g.decide(1)
    page = explain(g.router, M, g.now_s)
    assert (page["policy"], page["decides"], page["answered_by"], page["answered_as"]) == (
        "moody",
        "least_requests",
        "least_requests",
        "baseline",
    )
    words = "least_requests (the guard's baseline, while moody is out of service)"
    assert who_decides(g.router, g.now_s) == words
    assert page["guards"]["moody"]["reason"] == "invalid"
    assert page["guards"]["moody"]["why"] == "RuntimeError: moody"
    assert g.router.failures["moody"] == 1  # looking is no decision


def test_explain_shows_what_the_shadow_would_do_and_what_share_is_rolled_out() -> None:
    new = RolloutSettings(shares=(0.25,))
    plan = CanaryPlan(shadow=LeastRequests(), shadow_share=0.5, rollout=new, new=PowerOfTwo())
    g = guarded(plan=plan, policy=RandomChoice())
    metrics = Metrics(g.router, lambda: g.now_s)
    g.decide(400)
    page = explain(g.router, M, g.now_s)
    assert page["rollout"]["share"] == 0.25
    assert page["shadow"]["policy"] == "least_requests"
    parts = "power_of_two for 25% of the requests (rollout), least_requests only looks on (shadow)"
    assert who_decides(g.router, g.now_s) == f"random, {parts}"
    assert sum(worker["shadow_probability"] for worker in page["workers"]) == pytest.approx(1)
    found = samples(metrics)
    assert found["balancer_rollout_share", frozenset({("policy", "power_of_two")})] == 0.25
    shadow = frozenset({("policy", "least_requests")})
    answers = found["balancer_shadow_answers_total", shadow]
    assert 150 < answers == found["balancer_shadow_decisions_total", shadow] < 250
    assert 0 < found["balancer_shadow_distance_total", shadow] < answers


def test_explain_without_any_of_it_names_the_policy() -> None:
    page = explain(make_router(2, RandomChoice()), M, 0.1)
    assert (page["decides"], page["guards"], page["shadow"], page["rollout"]) == ("random", {}, None, None)
    assert "moved_by" not in page["workers"][0]


@dataclasses.dataclass(frozen=True)
class Talkative(RandomChoice):
    name: ClassVar[str] = "talkative"

    def contributions(self, request: Request, fleet: FleetView) -> Mapping[str, FloatArray]:
        n = len(fleet.eligible)
        small = {f"small {i}": np.arange(n) * 1e-3 for i in range(9)}
        return {**small, "even": np.full(n, 7.0), "rank": np.arange(n, dtype=float), "first": -10.0 * np.eye(n)[0]}


@dataclasses.dataclass(frozen=True)
class Mumbling(Talkative):
    def contributions(self, request: Request, fleet: FleetView) -> Mapping[str, FloatArray]:
        raise RuntimeError("hm")


def test_explain_says_what_moved_the_pick_largest_first() -> None:
    page = explain(make_router(3, Talkative()), M, 0.1)
    first, _, last = (worker["moved_by"] for worker in page["workers"])
    # Less the mean over the workers: what all have in common moves nothing.
    assert list(first.items())[:2] == [("first", -6.67), ("rank", -1.0)]
    assert list(last.items())[:2] == [("first", 3.33), ("rank", 1.0)]
    assert len(first) == len(last) == 5  # few enough to be read
    assert page["moved_by_is_in"] == "points of its score"
    mumbled = explain(make_router(3, Mumbling()), M, 0.1)
    assert "moved_by" not in mumbled["workers"][0]
    assert "moved_by_is_in" not in mumbled


def test_explain_says_nothing_of_what_moved_the_pick_towards_who_cannot_be_picked() -> None:
    router = make_router(3, Talkative())
    router.observe(report("w0", number=2, ready=False), 0.0)
    first, second, third = explain(router, M, 0.1)["workers"]
    assert "moved_by" not in first
    assert second["moved_by"]["rank"] == -0.5  # of the two that are left
    assert third["moved_by"]["rank"] == 0.5


def recorded(folder: Path, plan: CanaryPlan, moody: bool = False) -> DecisionLog:
    policy = Moody() if moody else RandomChoice()
    router = make_router(4, policy)
    router.selector = PolicySelector(policy, plan)
    files, _ = write(folder, router)
    for i in range(600):
        router.route(M, 0.01 * i)
    files.close(wait_s=30)
    return read_log(folder)


def test_the_decision_log_names_who_decided_and_replays_all_of_it(tmp_path: Path) -> None:
    guard = GuardSettings(window_every_s=0.8, report_age_s=1e9)
    log = recorded(tmp_path, CanaryPlan(guard=guard, baseline=ExpectedLatency()))
    result = replay(log)
    assert result.exact, result.mismatches
    assert {(c.policy, c.role) for c in result.compared} == {
        ("random", "in_force"),
        ("expected_latency", "baseline"),
    }
    assert not result.left_out.any()


def test_a_replay_by_another_policy_leaves_out_what_the_policy_in_force_did_not_decide(tmp_path: Path) -> None:
    log = recorded(tmp_path, CanaryPlan(rollout=RolloutSettings(shares=(0.4,)), new=PowerOfTwo()))
    rolled_out = np.array([decision.policy.role == "rollout" for decision in log])
    assert 0.3 < rolled_out.mean() < 0.5
    result = replay(log, WeightedLeastPending())
    np.testing.assert_array_equal(result.left_out, rolled_out)
    np.testing.assert_array_equal(result.recorded[rolled_out], result.replayed[rolled_out])
    watched = ~rolled_out
    assert result.agreement == (result.recorded[watched] == result.replayed[watched]).mean()
