"""A worse policy always goes back before it has proven itself, whatever the steps; an equal or a better one finishes.

The router of production, with workers of a small simulation: first come, first served, each of its own speed.
"""

import heapq
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fleets import make_router
from support.guarded import RecordedChanges

from balancer.kernel.settings import GuardSettings, RolloutSettings
from balancer.scheduler.canary.rollout import Rollout
from balancer.scheduler.canary.selector import CanaryPlan, PolicySelector
from balancer.scheduler.events import Finished
from policies.base import FleetView, FloatArray, Policy, Request
from policies.least_requests import LeastRequests
from policies.random_choice import RandomChoice

SERVICE_S = (0.01, 0.01, 0.01, 0.06)
"""Mean, of each worker; the last is the slowest, and where `failing` it fails what it gets."""
DEADLINE_S = 0.2
GUARD = GuardSettings(report_age_s=1e9, window_every_s=2.0)


class Slowest(RandomChoice):
    """Half of its picks go to the slowest worker, which is more than it can serve."""

    name: ClassVar[str] = "slowest"

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """See `Policy`."""
        return np.array([1 / 6, 1 / 6, 1 / 6, 1 / 2])


class Twin(LeastRequests):
    """As good as the old one."""

    name: ClassVar[str] = "twin"


def roll_out(
    steps: RolloutSettings, old: Policy, new: Policy, seed: int, rate_per_s: float, failing: float, until_s: float
) -> tuple[Rollout, RecordedChanges]:
    """Poisson arrivals until the rollout is over; a share `failing` of the last worker's answers are fast errors."""
    generator, changes = np.random.default_rng(seed), RecordedChanges()
    router = make_router(len(SERVICE_S), old, seed=seed)
    router.selector = PolicySelector(old, CanaryPlan(rollout=steps, new=new), seed, listener=changes)
    rollout = router.selector.rollout
    assert rollout is not None
    free_s = [0.0] * len(SERVICE_S)
    ends: list[tuple[float, int, str, float, bool]] = []
    now_s = 0.0
    while now_s < until_s and not rollout.over:
        now_s += float(generator.exponential(1 / rate_per_s))
        while ends and ends[0][0] <= now_s:
            end_s, number, worker, latency_s, ok = heapq.heappop(ends)
            router.observe(Finished(number, worker, latency_s, ok), end_s)
        decision = router.route(Request("m", deadline_s=DEADLINE_S), now_s)
        row = int(decision.worker[1:])
        fails = row == len(SERVICE_S) - 1 and bool(generator.random() < failing)
        service_s = 0.001 if fails else float(generator.gamma(4.0, SERVICE_S[row] / 4))
        free_s[row] = max(free_s[row], now_s) + service_s
        end_s = free_s[row]
        heapq.heappush(ends, (end_s, decision.number, decision.worker, end_s - now_s, not fails))
    return rollout, changes


STEPS = st.builds(
    RolloutSettings,
    shares=st.sampled_from([(0.5, 1.0), (1.0,), (0.01, 1.0), (0.05, 0.2, 0.5, 0.9, 1.0), (0.99, 1.0)]),
    step_s=st.sampled_from([1.0, 3.0, 10.0, 60.0, 600.0]),
    min_requests=st.sampled_from([1, 20, 100]),
    watch_s=st.sampled_from([1.0, 60.0, 600.0]),
    watch_pairs=st.sampled_from([30, 100]),
    guard=st.just(GUARD),
)


@pytest.mark.long
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    failing=st.sampled_from([0.0, 0.5, 1.0]),
    rate_per_s=st.sampled_from([40.0, 80.0]),
    seed=st.integers(0, 2**32),
)
def test_a_worse_policy_returns_before_it_has_proven_itself_whatever_the_steps(
    steps: RolloutSettings, failing: float, rate_per_s: float, seed: int
) -> None:
    rollout, changes = roll_out(steps, LeastRequests(), Slowest(), seed, rate_per_s, failing, until_s=1200.0)
    assert rollout.state == "returned", rollout.explain(1200.0)
    assert rollout.finding is not None
    assert rollout.finding.reason in {"late", "tail", "errors"}
    states = [change.state for _, change in changes.rollouts]
    assert "finished" not in states
    assert states[-1] == "returned"


@pytest.mark.parametrize(("old", "new"), [(LeastRequests, Twin), (RandomChoice, LeastRequests)])
@pytest.mark.parametrize("shares", [(0.5, 1.0), (1.0,)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_an_equal_or_better_policy_finishes(
    old: Callable[[], Policy], new: Callable[[], Policy], shares: tuple[float, ...], seed: int
) -> None:
    steps = RolloutSettings(shares, step_s=5.0, min_requests=20, watch_s=60.0, watch_pairs=50, guard=GUARD)
    rollout, changes = roll_out(steps, old(), new(), seed, 80.0, failing=0.0, until_s=600.0)
    assert rollout.state == "finished", rollout.explain(600.0)
    assert changes.rollouts[-1][1].at_s < 300
