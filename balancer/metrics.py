"""Prometheus metrics: one prefix, base units, labels bounded by what the fleet has.

Counters and histograms are fed by the front ends; what describes the fleet is read from the router when scraped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.core.router import Router

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
_LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_DECISION_BUCKETS_S = (10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3)
_WORKER_GAUGES = {
    "in_flight": "Requests that this balancer sent and has not seen finish",
    "pending": "Requests queued or executing, all balancers', dead-reckoned",
    "tokens": "Tokens in the worker's bucket",
    "error_rate": "Moving average of the share of failed requests",
    "report_age_s": "Seconds since the last report was received (signal age)",
}
OTHER = "other"
"""Label of models that no worker has: clients may ask for any name, and labels must stay few."""


class Metrics:
    """All metrics of one process, in a registry of its own."""

    def __init__(self, router: Router, clock: Callable[[], float], process: str = "0") -> None:
        self.registry = prometheus.CollectorRegistry()
        self._router = router
        self.requests = self._counter("requests", "Requests that ended, by status", "model", "worker", "status")
        self.errors = self._counter("errors", "Requests that failed by the worker's fault", "model", "worker")
        self.model_latency = self._histogram("request_duration_seconds", "Latency of the worker's answer", "model")
        self.worker_latency = self._histogram(
            "worker_request_duration_seconds", "Latency of the worker's answer", "worker"
        )
        self.decisions = self._counter("decisions", "Picks by the policy that made them", "policy")
        self.decision_duration = prometheus.Histogram(
            "balancer_decision_duration_seconds",
            "Time to read a request, decide, and write the answer",
            buckets=_DECISION_BUCKETS_S,
            registry=self.registry,
        )
        self.refusals = self._counter("refusals", "Requests answered without a worker", "reason")
        self.fallbacks = self._counter("fallbacks", "Requests not served as picked, by cause", "cause")
        self.config_loads = self._counter("config_loads", "Config files seen, by what became of them", "result")
        self.decision_log_lines = self._counter(
            "decision_log_lines", "Lines of the decision log, by what became of them", "result"
        )
        self.registry.register(_Fleet(router, clock))
        prometheus.Info("balancer_process", "This process", registry=self.registry).info({"number": process})
        prometheus.ProcessCollector(registry=self.registry)
        # Looking a child up by its labels costs more than counting, and the labels are few.
        self.model_latency_of = cache(self.model_latency.labels)
        self.worker_latency_of = cache(self.worker_latency.labels)
        self.requests_of = cache(self.requests.labels)
        self.decisions_of = cache(self.decisions.labels)

    def model_label(self, model: str) -> str:
        """The model's name where the fleet has it; empty for calls about no model."""
        return model if not model or model in self._router.fleet.models else OTHER

    def forget(self, workers: Iterable[str]) -> None:
        """Drop the series of workers that are gone, so that years of pods do not pile up."""
        gone = set(workers)
        for metric in (self.requests, self.errors, self.worker_latency):
            position = metric._labelnames.index("worker")
            for labels in [labels for labels in list(metric._metrics) if labels[position] in gone]:
                metric.remove(*labels)
        for cached in (self.requests_of, self.worker_latency_of):
            cached.cache_clear()

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return prometheus.generate_latest(self.registry)

    def _counter(self, name: str, documentation: str, *labels: str) -> prometheus.Counter:
        return prometheus.Counter(f"balancer_{name}", documentation, labels, registry=self.registry)

    def _histogram(self, name: str, documentation: str, *labels: str) -> prometheus.Histogram:
        return prometheus.Histogram(
            f"balancer_{name}", documentation, labels, buckets=_LATENCY_BUCKETS_S, registry=self.registry
        )


class _Fleet(Collector):
    """What the router knows, read at the moment of the scrape."""

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        self._router = router
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        router = self._router
        workers: list[dict[str, Any]] = router.snapshot(self._clock())
        for name, documentation in _WORKER_GAUGES.items():
            metric_name = f"balancer_worker_{name.removesuffix('_s')}" + ("_seconds" if name.endswith("_s") else "")
            family = GaugeMetricFamily(metric_name, documentation, labels=["worker"])
            for worker in workers:
                family.add_metric([worker["worker"]], worker[name])
            yield family
        ready = GaugeMetricFamily("balancer_worker_ready", "1: ready and not draining", labels=["worker"])
        for worker in workers:
            ready.add_metric([worker["worker"]], float(worker["ready"] and not worker["draining"]))
        yield ready
        policy = GaugeMetricFamily("balancer_policy_in_force", "1 for the policy in force", labels=["policy"])
        policy.add_metric([router.policy.name], 1)
        yield policy
        for name, documentation, label, counts in (
            ("reports", "Reports by what became of them", "result", router.fleet.reports),
            ("outcomes", "Outcomes heard of, by whether the pick was known", "result", router.outcomes),
            ("policy_failures", "Invalid answers of a policy; least pending stood in", "policy", router.failures),
        ):
            counter = CounterMetricFamily(f"balancer_{name}", documentation, labels=[label])
            for value, count in counts.items():
                counter.add_metric([value], count)
            yield counter
