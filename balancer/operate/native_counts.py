"""What Envoy's module counts of requests, in metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.front.layouts import COUNTS
from balancer.front.router import SharedRouter

_PUBLISHED = "published"
_LOST = ("outcomes_lost", "lines_lost", "trials_lost")


class NativeCounts(Collector):
    """Read at the moment of the scrape."""

    def __init__(self, router: SharedRouter) -> None:
        self._router = router

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        state, counts = self._router.state, self._router.state.counts()
        requests = CounterMetricFamily(
            "balancer_native_requests", "Requests that Envoy's module saw, by what became of them", labels=["result"]
        )
        lost = CounterMetricFamily(
            "balancer_native_lost", "What the module did not tell, since too much of it waited", labels=["what"]
        )
        for name in COUNTS:
            if name in _LOST:
                lost.add_metric([name.removesuffix("_lost")], counts[name])
            elif name != _PUBLISHED:
                requests.add_metric([name], counts[name])
        yield requests
        yield lost
        yield GaugeMetricFamily("balancer_native_in_flight", "Requests that the module counted in", state.in_flight)
        yield from self._tables(counts[_PUBLISHED])
        yield CounterMetricFamily(
            "balancer_native_states", "States given up since somebody kept the lock", self._router.replaced
        )

    def _tables(self, decided: int) -> Iterator[Metric]:
        tables = self._router.tables
        for name, says, value in (
            ("decisions", "Picks of the module by probabilities that were published", decided),
            ("answers", "Answers asked of policies so as to be published", tables.asked),
            ("seconds", "That computing what is published took", tables.seconds),
        ):
            yield CounterMetricFamily(f"balancer_published_{name}", says, value)
        for name, says, value in (
            ("tables", "Tables of published probabilities", len(tables)),
            ("wait_seconds", "Between two rounds of publishing; longer for a slow policy", tables.wait_s),
        ):
            yield GaugeMetricFamily(f"balancer_published_{name}", says, value)
