"""What policies see cannot be written to, and a policy that tries has no valid answer; nothing else changes."""

import copy
import dataclasses
from typing import ClassVar

import numpy as np
import pytest
from support.fleets import make_router
from support.guarded import guarded

from balancer.kernel.settings import Limits, RolloutSettings, Settings
from balancer.scheduler.canary.selector import CanaryPlan
from balancer.scheduler.events import Finished, WorkerAdded
from balancer.scheduler.router import Router
from policies.base import FleetView, FloatArray, Policy, Request, option
from policies.columns import Columns
from policies.least_requests import LeastRequests

COLUMNS = tuple(field.name for field in dataclasses.fields(Columns))


@dataclasses.dataclass(frozen=True)
class Scribbler(Policy):
    """Writes to a column of what it sees, and then sends everything to the first worker."""

    name: ClassVar[str] = "scribbler"
    summary: ClassVar[str] = "Writes where it may not."
    source: ClassVar[str] = "these tests"

    column: str = option("in_flight", "Where it writes")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """See `Policy`."""
        getattr(fleet, self.column)[0] = True
        return np.eye(len(fleet.eligible))[0]


def busy(policy: Policy, settings: Settings | None = None) -> Router:
    """A router with some history, whose first worker is draining."""
    router = make_router(4, LeastRequests(), settings)
    for number in range(12):
        decision = router.route(Request("m"), number * 0.01)
        if number % 3 == 0:
            router.observe(Finished(decision.number, decision.worker, 0.01, True), number * 0.01)
    router.observe(WorkerAdded("w0", draining=True), 0.2)
    router.policy = policy
    return router


def state(router: Router) -> dict[str, np.ndarray]:
    """All arrays of the fleet, copied."""
    fleet = router.fleet
    found = {"weight": fleet.weight, "name_hash": fleet.name_hash, "reported_s": fleet.reported_s}
    for part in (fleet.queue, fleet.service, fleet.latency, fleet.tokens, fleet.caches):
        found |= {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return copy.deepcopy(found)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("limits", [Limits(), Limits(max_pending_per_worker=50.0)], ids=["unlimited", "limited"])
def test_a_policy_that_writes_to_a_column_is_counted_replaced_and_changes_nothing(column: str, limits: Limits) -> None:
    router, honest = busy(Scribbler(column), Settings(limits=limits)), busy(LeastRequests(), Settings(limits=limits))
    before = state(router)
    answered = router.answer_now(Request("m"), 0.3)
    assert not answered.valid
    after = state(router)
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    # What stands in sees what it would have seen, and so do all requests after it.
    for _ in range(3):
        assert router.route(Request("m"), 0.3).worker == honest.route(Request("m"), 0.3).worker != "w0"
    assert router.failures == {"scribbler": 4}
    assert "read-only" in router.last_failure


def test_no_column_of_a_view_can_be_written_to_and_the_router_still_writes_its_own() -> None:
    router = busy(LeastRequests())
    view = router.view(Request("m"), 0.3)
    for name in COLUMNS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(view, name)[...] = 0
    before = view.in_flight.copy()
    decision = router.route(Request("m"), 0.3)
    assert view.in_flight.sum() == before.sum() + 1  # the column is the estimator's own, not a copy
    router.observe(Finished(decision.number, decision.worker, 0.01, True), 0.4)
    assert view.in_flight.sum() == before.sum()


def test_a_shadow_that_writes_fails_and_a_rollout_of_a_policy_that_writes_returns() -> None:
    g = guarded(plan=CanaryPlan(shadow=Scribbler(), shadow_share=1.0), policy=LeastRequests())
    g.decide(10)
    assert g.router.selector is not None
    assert g.router.selector.shadow is not None
    assert (g.router.selector.shadow.failures, g.router.failures) == (10, {})

    g = guarded(plan=CanaryPlan(rollout=RolloutSettings(shares=(1.0,)), new=Scribbler()), policy=LeastRequests())
    assert set(g.decide(10)) == {"least_requests"}
    change = g.changes.rollouts[-1][1]
    assert (change.state, change.finding and change.finding.reason) == ("returned", "invalid")
