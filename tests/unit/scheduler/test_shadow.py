"""A policy asked beside the one that decides."""

import numpy as np
from support.fleets import make_router
from support.guarded import Moody, guarded
from support.views import make_view

from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.canary.shadow import Shadow
from policies.base import Request
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice
from policies.round_robin import RoundRobin


def test_agreement_and_distance_are_those_of_the_distributions() -> None:
    view = make_view(4, in_flight=np.array([0.0, 1.0, 2.0, 3.0]))
    shadow = Shadow(LeastRequests(), 1.0)
    shadow.see(Request("m"), view, np.array([1.0, 0, 0, 0]))
    assert (shadow.answers, shadow.agreements, shadow.distance) == (1, 1, 0.0)
    shadow.see(Request("m"), view, np.array([0, 1.0, 0, 0]))
    assert (shadow.answers, shadow.agreements, shadow.distance) == (2, 1, 1.0)
    shadow.see(Request("m"), view, np.array([0.25, 0.25, 0.25, 0.25]))  # a tie that has it agrees
    assert (shadow.answers, shadow.agreements, shadow.distance) == (3, 2, 1.75)
    shown = shadow.explain()
    assert shown["agreement"] == 2 / 3
    assert shown["distance"] == 1.75 / 3


def test_it_never_changes_a_pick_and_its_failures_are_counted() -> None:
    def picks(plan: CanaryPlan | None) -> list[str]:
        router = make_router(4, RandomChoice())
        if plan is not None:
            router.selector = PolicySelector(router.policy, plan)
        return [router.route(Request("m"), 0.01 * i).worker for i in range(200)]

    broken = Moody()
    broken.mood.answer = "raise"
    assert picks(None) == picks(CanaryPlan(shadow=LeastRequests(), shadow_share=1.0))
    assert picks(None) == picks(CanaryPlan(shadow=broken, shadow_share=0.5))


def test_its_share_its_failures_and_its_time_are_shown() -> None:
    broken = Moody()
    broken.mood.answer = "raise"
    g = guarded(plan=CanaryPlan(shadow=broken, shadow_share=0.25), policy=RoundRobin())
    g.stopwatch.step_s = 0.002
    assert set(g.decide(2000)) == {"round_robin"}
    assert g.router.selector is not None
    shown = g.router.selector.explain(g.now_s)["shadow"]
    assert 400 < shown["decisions"] == shown["failures"] < 600
    assert shown["last_failure"] == "RuntimeError: moody"
    assert shown["agreement"] is None
    assert abs(shown["mean_decision_s"] - 0.002) < 1e-9
    assert not g.router.failures
