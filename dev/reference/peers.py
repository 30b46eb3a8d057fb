"""What balancers tell each other: picks and their ends, which come as much later as the fleet says."""

from collections.abc import Callable

from balancer.scheduler.told import count_peer
from dev.reference.batcher import LiveRequest
from dev.reference.clock import Kind
from dev.reference.world import World


class Peers:
    def __init__(self, world: World, heard: Callable[[], None]) -> None:
        """`heard`: balancers have heard of something."""
        self._world, self._heard = world, heard

    def tell(self, request: LiveRequest, *, ended: bool) -> None:
        """The request's balancer has picked its worker, or seen it end."""
        world = self._world
        if world.fleet.tells_peers:
            at_s = world.clock.now_s + (world.fleet.peers_s or 0.0)
            world.clock.at(at_s, Kind.PEER, (request.index, int(ended)), self._hear, request, ended)

    def _hear(self, request: LiveRequest, ended: bool) -> None:
        fleet, now_s = self._world.fleet, self._world.clock.now_s
        worker, model = fleet.workers[request.targets[0]].name, fleet.models[request.model].name
        for b, router in enumerate(self._world.routers):
            if b != request.balancer:
                count_peer(router.fleet, worker, model, float(request.rows), ended, now_s)
        self._heard()
