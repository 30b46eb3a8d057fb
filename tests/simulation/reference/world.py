"""What all parts of a simulation share."""

from __future__ import annotations

from simulation.reference.clock import Clock, Stream, draw
from simulation.reference.worker import Worker

from balancer.core.events import Event
from balancer.core.router import Router
from policies.base import Policy
from simulator.spec import FleetSpec


class World:
    def __init__(self, fleet: FleetSpec, policy: Policy, seed: int) -> None:
        self.fleet = fleet
        self.seed = seed
        self.clock = Clock()
        self.workers = [Worker(fleet, w) for w in range(len(fleet.workers))]
        self.index = {worker.spec.name: worker for worker in self.workers}
        self.routers = [Router(policy, fleet.settings, (seed << 8) + b) for b in range(fleet.balancers)]

    def u(self, stream: Stream, k: int) -> float:
        return draw(self.seed, stream, k)

    def tell(self, event: Event) -> None:
        """All balancers observe it now."""
        for router in self.routers:
            router.observe(event, self.clock.now_s)
