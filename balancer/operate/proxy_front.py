"""The front end `proxy` of one process: its parts, wired."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import grpc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.config.config import Config
from balancer.discovery.workers import WorkerSpec
from balancer.gateway.holding import Holding
from balancer.gateway.kserve import HeaderNames
from balancer.operate.proxied import Proxied
from balancer.operate.recorder import Recorder
from balancer.proxy.attempts import Attempts, Clocks
from balancer.proxy.batching import Batching
from balancer.proxy.rest.service import Rest
from balancer.proxy.service import Proxy
from balancer.proxy.sharing import Sharing
from balancer.workers.channels import Channels

_COUNTED = {
    "retries": "Further attempts at a request that failed, by what became of the wish",
    "hedges": "Second copies of slow requests, by what became of them",
    "once": "Requests of models that execute an id once, by whether the id was new",
    "cache": "Requests of models whose answers are kept, by whether one served",
    "cascades": "Requests for a name that several models may serve, by the model that answered",
    "confidence": "Answers that a more accurate model may follow, by how sure they were, and why none followed",
    "batches": "Joined requests that were sent, what was joined in them, and those that had to be sent apart",
}
"""What `Attempts.counts` holds."""


class ProxyFront:
    """Forwards inferences for Envoy. With another front end it is told everything, and does nothing."""

    def __init__(
        self,
        config: Config,
        recorder: Recorder,
        clock: Callable[[], float],
        names: Callable[[], HeaderNames],
        ready: Callable[[], bool],
        channels: Channels,
        holding: Holding | None = None,
    ) -> None:
        """`names` and `ready` as of `Proxy`, `holding` as of `Attempts`."""
        self._forwards = config.forwards
        clocks, listener = Clocks(clock, time.perf_counter), Proxied(recorder, clock)
        self.attempts = Attempts(recorder.router, channels, listener, clocks, holding)
        counts = self.attempts.counts
        fleet = recorder.router.fleet
        self._batching = Batching(
            self.attempts,
            lambda model, version: int(fleet.eligible(model, version, clock()).sum()),
            clocks,
            self.attempts.latencies,
            counts,
        )
        self.sharing = Sharing(self._batching, clocks, counts)
        self.proxy = Proxy(self.attempts, self.sharing, listener, clocks, names, ready, recorder.splits)
        most_bytes = int(config.envoy.request_buffer_limit_bytes)
        self.rest = Rest(
            self.proxy, most_bytes, lambda error: recorder.mistakes.caught("proxy", error), serves=self._forwards
        )
        if self._forwards:
            recorder.metrics.registry.register(_Counted(self))

    def configure(self, config: Config) -> None:
        """Take over what may change while requests flow."""
        settings = config.proxy_settings()
        self.attempts.configure(settings)
        self._batching.configure(settings)
        self.sharing.configure(settings)
        self.proxy.configure(settings)

    def workers(self, workers: Sequence[WorkerSpec]) -> None:
        """These are listed."""
        self.attempts.breakers.keep(frozenset(worker.name for worker in workers))

    async def finish(self) -> None:
        """Let what is under way come to its end, within bounds."""
        if self._forwards:
            await self.proxy.finish()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve there."""
        if self._forwards:
            server.add_generic_rpc_handlers((self.proxy.handler(),))


class _Counted(Collector):
    """What the proxy counts, read at the moment of the scrape."""

    def __init__(self, front: ProxyFront) -> None:
        self._attempts, self._sharing = front.attempts, front.sharing

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        counts = self._attempts.counts
        for name, documentation in _COUNTED.items():
            family = CounterMetricFamily(f"balancer_proxy_{name}", documentation, labels=["result"])
            for (what, result), count in counts.items():
                if what == name:
                    family.add_metric([result], count)
            yield family
        breakers = self._attempts.breakers
        yield CounterMetricFamily(
            "balancer_proxy_breakers_opened", "Times that a breaker opened", value=breakers.opened
        )
        states = GaugeMetricFamily(
            "balancer_proxy_breaker_open",
            "Breakers that are not closed; 1: no request goes there, 0.5: one tries",
            labels=["model", "worker"],
        )
        for (model, worker), state in breakers.states().items():
            states.add_metric([model, worker], 1.0 if state == "open" else 0.5)
        yield states
        cache, once = self._sharing.cache, self._sharing.once
        for name, documentation, value in (
            ("cache_bytes", "Answers that serve equal requests", cache.kept_bytes),
            ("once_bytes", "Answers that are kept for ids", once.kept_bytes),
            ("once_entries", "Ids that are remembered", len(once)),
        ):
            yield GaugeMetricFamily(f"balancer_proxy_{name}", documentation, value=value)
