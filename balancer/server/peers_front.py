"""Other balancers of the fleet: what they tell this process of their picks, and what it tells them."""

import asyncio
import secrets
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from balancer.config.config import Config
from balancer.files.schema import reachable
from balancer.native.router import SharedRouter
from balancer.reports.hearing import Hearing
from balancer.reports.telling import Tellers
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.events import PeerLost, PeerTold
from balancer.scheduler.peers import OwnPicks
from balancer.server.metrics import Metrics
from balancer.server.metrics.scraped import counter, gauge


def peers_of(config: Config, process: int) -> tuple[str, ...]:
    """Whom a process tells: the others of its machine, and those that the config names."""
    if config.tls.reports is not None and config.peers.tls is None:
        return ()
    others = (config.listen.reports_address(number) for number in range(config.processes) if number != process)
    return (*map(reachable, others), *config.peers.addresses)


class PeersFront:
    def __init__(
        self,
        config: Config,
        process: int,
        router: AnyRouter,
        metrics: Metrics,
        observe: Callable[[PeerTold | PeerLost], None],
        flows: Callable[[], bool],
    ) -> None:
        """`observe` is called with all that is heard; `flows` says whether requests flow."""
        identity = secrets.randbits(63) + 1
        self._hearing = Hearing(identity, observe, lambda field: metrics.refused_inputs.labels("peer", field).inc())
        self.add_to = self._hearing.add_to
        tls = None if config.peers.tls is None else config.peers.tls.trust()
        self._targets = peers_of(config, process)
        self._picks, self._flows = OwnPicks(router.fleet), flows
        self._tellers = Tellers(self._targets, tls, identity, self._picks)
        self._envoys_pick = isinstance(router, SharedRouter)
        router.moved = self._tellers.moved
        metrics.register(self._metrics)

    async def run(self) -> None:
        """Tell the peers; until cancelled."""
        if not self._targets:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tellers.run())
            if self._envoys_pick:
                group.create_task(self._tellers.look(self._picks, self._flows))

    def _metrics(self) -> Iterator[Metric]:
        counts = self._hearing.counts
        yield gauge("balancer_peers", "Other balancers that tell this one of their picks", counts.peers)
        yield counter("balancer_peer_messages", "Messages that they sent", counts.messages)
        yield counter("balancer_peer_bytes", "What these had", counts.bytes)
