"""The agent's streams: one to each replica of the balancer, each broken, slow or gone without harm to the others."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from balancer import bounds
from balancer.balancer_tls import BalancerTls
from balancer.reports.addresses import Streams
from balancer.reports.prompts import PromptLog
from balancer.reports.sending import Replica
from balancer.scheduler.events import Report
from balancer.scheduler.peers import AtWorker


class Replicas:
    """A stream to every address that the targets resolve to."""

    def __init__(
        self, targets: Sequence[str], tls: BalancerTls | None = None, flows: Callable[[], None] = lambda: None
    ) -> None:
        """`targets` are `host:port` or `unix:/path`; a name with several addresses stands for as many replicas.
        `flows` is called when one of them wants reports at full rate from now on."""
        self._flows = flows
        self._tls = tls
        self._streams = Streams(targets, self._replica)
        self._replicas = self._streams.by_address
        self._answers = asyncio.Event()
        self._prompts = PromptLog()

    @property
    def addresses(self) -> tuple[str, ...]:
        """`ip:port` or `unix:/path` of every replica that is streamed to, or tried."""
        return tuple(self._replicas)

    @property
    def connected(self) -> int:
        """How many balancers acknowledged a report of late."""
        return sum(replica.connected for replica in self._replicas.values())

    @property
    def pause_s(self) -> float:
        """Seconds that may pass between two reports by what all balancers say; 0: as few as can be."""
        return min((replica.pause_s for replica in self._replicas.values()), default=0.0)

    @property
    def unaware_of_draining(self) -> list[str]:
        """Connected balancers that have not acknowledged yet that this worker is draining."""
        return [r.address for r in self._replicas.values() if r.connected and not r.knows_draining]

    async def ask(self, within_s: float) -> None:
        """Ask all balancers what they have in flight here, where there are several; returns once all answered, or then.

        An answer that is late counts from the next report on.
        """
        if self.connected < 2:
            return
        replicas = [replica for replica in self._replicas.values() if replica.ask()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(replica.owes for replica in replicas):
                    self._answers.clear()
                    await self._answers.wait()

    def offer(self, report: Report) -> None:
        """Send the report to all, as soon as each can take one, and with it what all other balancers have here."""
        self._prompts.belongs_to(report.incarnation)
        answers = {address: each.there for address, each in self._replicas.items() if each.connected}
        for address, replica in self._replicas.items():
            in_flight, waiting_tokens = peers(address, answers)
            replica.offer(replace(report, peers_in_flight=in_flight, peers_waiting_tokens=waiting_tokens))

    async def run(self) -> None:
        """Stream to what the targets resolve to; until cancelled."""
        await self._streams.run()

    def _replica(self, address: str) -> Replica:
        return Replica(address, self._tls, self._answers.set, self._flows, self._prompts)


def peers(address: str, answers: Mapping[str, AtWorker | None]) -> tuple[tuple[tuple[str, int], ...] | None, float]:
    """`peers_in_flight` and `peers_waiting_tokens` of a report to the balancer at `address`; None where there is no
    other one, one has not answered, or the models are too many.

    `answers`: of each connected balancer, by its address.
    """
    others = [there for peer, there in answers.items() if peer != address]
    total: Counter[str] = Counter()
    waiting_tokens = 0.0
    for there in others:
        if there is None:
            return None, 0.0
        total.update(there.in_flight)
        waiting_tokens += there.waiting_tokens
    if not others or len(total) > bounds.MAX_MODELS_IN_FLIGHT:
        return None, 0.0
    return tuple(total.items()), min(waiting_tokens, bounds.MAX_WAITING_TOKENS)
