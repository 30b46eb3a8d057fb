"""What routers tell of who decides."""

from __future__ import annotations

from balancer.core.errors import RoutingError
from balancer.core.router import Answered, Decision
from balancer.core.trials.guard import Change
from balancer.core.trials.rollout import RolloutChange
from balancer.core.trials.steering import Role
from policies.base import Request


class Watch:
    """Witness of the routers, and listener of their steerings."""

    def __init__(self) -> None:
        self.role: Role | None = None
        """Of the policy that answered to the last request; None: none was to."""
        self.guards: list[Change] = []
        self.rollouts: list[RolloutChange] = []

    def decided(self, answered: Answered, decision: Decision | None) -> None:
        self.role = answered.role

    def refused(self, request: Request, error: RoutingError, at_s: float) -> None:
        self.role = None

    def guard_changed(self, policy: str, change: Change) -> None:
        self.guards.append(change)

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        self.rollouts.append(change)
