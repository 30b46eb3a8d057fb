"""What all parts of a simulation share."""

from __future__ import annotations

from simulation.reference.clock import Clock, Stream, draw
from simulation.reference.watch import Watch
from simulation.reference.worker import Worker

from balancer.core.events import Event
from balancer.core.holding.waiting import Waiting
from balancer.core.router import Router
from balancer.core.trials.steering import Plan, Steering
from policies.base import Policy
from policies.hashing import mix
from simulator.spec import FleetSpec


class World:
    def __init__(self, fleet: FleetSpec, policy: Policy, seed: int, plan: Plan) -> None:
        self.fleet = fleet
        self.seed = seed
        self.clock = Clock()
        self.workers = [Worker(fleet, w) for w in range(len(fleet.workers))]
        self.index = {worker.spec.name: worker for worker in self.workers}
        self.routers = [Router(policy, fleet.settings_of(b), (seed << 8) + b) for b in range(fleet.balancers)]
        self.waiting = [Waiting(router) for router in self.routers]
        self.watch = Watch()
        for b, router in enumerate(self.routers):
            router.witness = self.watch
            if plan:
                router.steering = Steering(policy, plan, mix(seed) ^ b, listener=self.watch)

    def u(self, stream: Stream, k: int) -> float:
        return draw(self.seed, stream, k)

    def tell(self, event: Event) -> None:
        """All balancers observe it now."""
        for router in self.routers:
            router.observe(event, self.clock.now_s)
