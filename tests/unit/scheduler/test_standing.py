"""What stands is what is chosen, until somebody is to ask: so that who decides elsewhere needs no more than that."""

import math

import numpy as np
import pytest
from support.fleets import make_router
from support.guarded import Moody, Stopwatch

from balancer.kernel.settings import GuardSettings, RolloutSettings
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.events import Finished
from policies.base import Request
from policies.hashing import mix, unit
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice

GUARD = GuardSettings(window_s=0.1, settle_s=0.02, window_every_s=0.5, report_age_s=1e9, quiet_s=0.3, max_quiet_s=0.5)
FEW = RolloutSettings(shares=(0.2, 0.5, 1.0), step_s=2.0, min_requests=120, watch_s=3.0, watch_pairs=3, guard=GUARD)
PLANS = {
    "guard": CanaryPlan(guard=GUARD, baseline=LeastRequests()),
    "shadow": CanaryPlan(shadow=LeastRequests(), shadow_share=0.3),
    "rollout": CanaryPlan(rollout=FEW, new=RandomChoice()),
    "all": CanaryPlan(GUARD, LeastRequests(), LeastRequests(), 0.3, FEW, RandomChoice(), GUARD),
}


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_it_stands_until_it_says(name: str, slow: bool) -> None:
    seed = 3 + slow
    dice, moody, stopwatch = np.random.default_rng(seed), Moody(), Stopwatch()
    router = make_router(4, moody, seed=seed)
    selector = router.selector = PolicySelector(moody, PLANS[name], seed, stopwatch)
    foreseen, seen, now_s = 0, set(), 0.0
    for _ in range(4500):
        now_s += float(dice.exponential(0.002))
        # A guard falls now and then.
        moody.mood.outside = math.inf if now_s % 4 > 3.3 else 0.0
        stopwatch.step_s = 0.02 if slow and now_s % 4 > 3.8 else 0.0
        stands, number = selector.standing(), router.next_number
        side = stands.sides[unit(mix(stands.draws ^ number)) < stands.share]
        chosen = selector.choose(number, now_s)
        if now_s < stands.until_s:
            foreseen += 1
            assert side.choice == chosen
            shadow = selector.shadow is not None and selector.shadow.wants(number)
            assert selector.observes(chosen, number, now_s) == (now_s >= side.looks_from_s or shadow)
            if now_s < stands.tickets_from_s:
                assert selector.answered(chosen, 0.0, Request("m", deadline_s=0.1), now_s) is None
        decision = router.route(Request("m", deadline_s=0.1), now_s)
        seen.add(decision.policy)
        if dice.random() < 0.9:
            latency_s = 0.01 * float(dice.lognormal())
            router.observe(Finished(decision.number, decision.worker, latency_s, dice.random() < 0.98), now_s)
    assert foreseen > 4000
    assert len(seen) > 1 or name == "shadow"
    if selector.guard is not None:
        assert selector.guard.falls
    if selector.rollout is not None:
        assert selector.rollout.state == ("returned" if slow else "finished")
