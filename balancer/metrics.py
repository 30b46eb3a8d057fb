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
_SHADOW_COUNTERS = {
    "decisions": "Decisions that the shadow was asked about",
    "answers": "Decisions that it had a valid answer to",
    "agreements": "Answers with the same most likely worker as the serving policy's",
    "distance": "Sum over the answers of the total variation distance to the serving policy's: 0 same, 1 disjoint",
    "failures": "Exceptions and invalid answers of the shadow",
    "seconds": "Sum over the decisions of the time that the shadow took",
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
        self.handler_errors = self._counter(
            "handler_errors",
            "Calls that failed by a mistake of the balancer's; none was answered as if it had not",
            "handler",
        )
        self.refused_inputs = self._counter(
            "refused_inputs", "Messages refused because a field was out of bounds", "message", "field"
        )
        self.config_loads = self._counter("config_loads", "Config files seen, by what became of them", "result")
        self.decision_log_lines = self._counter(
            "decision_log_lines", "Lines of the decision log, by what became of them", "result"
        )
        self.guard_breaches = self._counter(
            "guard_breaches", "Times that a guard took a policy out of service, by why", "policy", "reason"
        )
        self.rollout_returns = self._counter(
            "rollout_returns", "Rollouts that returned to the old policy, by why", "policy", "reason"
        )
        self.registry.register(_Fleet(router, clock))
        self.registry.register(_Steering(router))
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

    def forget_models(self, models: list[str]) -> None:
        """Drop the series of models that no worker has any more, and clear the list."""
        if models:
            gone = set(models)
            for metric in (self.requests, self.errors, self.model_latency):
                position = metric._labelnames.index("model")
                for labels in [labels for labels in list(metric._metrics) if labels[position] in gone]:
                    metric.remove(*labels)
            for cached in (self.requests_of, self.model_latency_of):
                cached.cache_clear()
            models.clear()

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
            ("policy_failures", "Invalid answers of a policy; another stood in", "policy", router.failures),
        ):
            counter = CounterMetricFamily(f"balancer_{name}", documentation, labels=[label])
            for value, count in counts.items():
                counter.add_metric([value], count)
            yield counter


class _Steering(Collector):
    """What guards, shadow and rollout do, read at the moment of the scrape."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterator[Metric]:
        """Yield the families; one without samples where nothing of the kind is configured."""
        steering = self._router.steering
        fallen = GaugeMetricFamily(
            "balancer_guard_fallen_back", "1 while a baseline decides in the policy's stead", labels=["policy"]
        )
        share = GaugeMetricFamily(
            "balancer_rollout_share", "Share of the requests that the new policy decides", labels=["policy"]
        )
        counters = {
            name: CounterMetricFamily(f"balancer_shadow_{name}", documentation, labels=["policy"])
            for name, documentation in _SHADOW_COUNTERS.items()
        }
        if steering is not None:
            for policy, guard in steering.guards().items():
                fallen.add_metric([policy], float(guard.breach is not None))
            if steering.rollout is not None and steering.plan.new is not None:
                share.add_metric([steering.plan.new.name], steering.rollout.share)
            if steering.shadow is not None:
                for name, counter in counters.items():
                    counter.add_metric([steering.shadow.policy.name], getattr(steering.shadow, name))
        yield from (fallen, share, *counters.values())
