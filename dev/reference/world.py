"""What all parts of a simulation share."""

from balancer.scheduler.after_decision import Answered, Decision
from balancer.scheduler.canary.guard import PolicyChange
from balancer.scheduler.canary.rollout import RolloutChange
from balancer.scheduler.canary.selector import CanaryListener, CanaryPlan, PolicySelector, Role
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Event
from balancer.scheduler.holding.waiting import Waiting
from balancer.scheduler.router import Router
from dev.reference.clock import Clock, Stream, draw
from dev.reference.worker import Worker
from policies.base import Policy, Request
from policies.hashing import mix
from simulator.spec import FleetSpec


class Watch(CanaryListener):
    """Observer of the routers, and listener of their selectors."""

    def __init__(self) -> None:
        self.role: Role | None = None
        """Of the policy that answered to the last request; None: none was to."""
        self.guards: list[PolicyChange] = []
        self.rollouts: list[RolloutChange] = []

    def decided(self, answered: Answered, decision: Decision | None) -> None:
        self.role = answered.role

    def refused(self, request: Request, error: RoutingError, at_s: float) -> None:
        self.role = None

    def guard_changed(self, policy: str, change: PolicyChange) -> None:
        self.guards.append(change)

    def rollout_changed(self, policy: str, change: RolloutChange) -> None:
        self.rollouts.append(change)


class World:
    def __init__(self, fleet: FleetSpec, policy: Policy, seed: int, plan: CanaryPlan, block_tokens: int) -> None:
        self.fleet = fleet
        self.seed = seed
        self.clock = Clock()
        self.workers = [Worker(fleet, w, block_tokens) for w in range(len(fleet.workers))]
        self.index = {worker.spec.name: worker for worker in self.workers}
        self.routers = [Router(policy, fleet.settings_of(b), (seed << 8) + b) for b in range(fleet.balancers)]
        for router in self.routers:
            router.fleet.peers_heard = fleet.balancers - 1 if fleet.tells_peers else 0
        self.waiting = [Waiting(router) for router in self.routers]
        self.watch = Watch()
        for b, router in enumerate(self.routers):
            router.observer = self.watch
            if plan:
                router.selector = PolicySelector(policy, plan, mix(seed) ^ b, listener=self.watch)

    def u(self, stream: Stream, k: int) -> float:
        return draw(self.seed, stream, k)

    def tell(self, event: Event) -> None:
        """All balancers observe it now."""
        for router in self.routers:
            router.observe(event, self.clock.now_s)
