"""Prometheus metrics: one prefix, base units, labels bounded by what the fleet has.

Counters and histograms are fed by the gateway; what describes the fleet is read from its arrays when scraped.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.core.fleet import ANY_MODEL
from balancer.core.router import Router
from balancer.core.view import LiveView
from balancer.operate.exposition import Exposition, Text
from balancer.operate.metric_series import OTHER, Count, Counters, Distribution, Exemplar, Family, Histograms, sliced
from balancer.operate.metric_sources import ConfigInForce, Envoys, Expiring, Hashed, ReportStreams
from policies.columns import DECLARED, columns_of

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_DECISION_BUCKETS_S = (1e-6, 2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3)
_LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_MOST_POLICIES = 256
_STATUSES = frozenset(
    (*(f"grpc_{code}" for code in range(17)), "http_0", *(f"http_{status.value}" for status in HTTPStatus))
)
"""Labels of a request's status; `http_0`: the client left before there was one."""
_SHADOW_COUNTERS = {
    "decisions": "Decisions that the shadow was asked about",
    "answers": "Decisions that it had a valid answer to",
    "agreements": "Answers with the same most likely worker as the serving policy's",
    "distance": "Sum over the answers of the total variation distance to the serving policy's: 0 same, 1 disjoint",
    "failures": "Exceptions and invalid answers of the shadow",
    "seconds": "Sum over the decisions of the time that the shadow took",
}


class Metrics:
    """All metrics of one process, in a registry of its own."""

    def __init__(self, router: Router, clock: Callable[[], float], process: str = "0") -> None:
        self.registry = prometheus.CollectorRegistry()
        self._router = router
        self.clock = clock
        self.requests = self._series("requests", "Requests that ended, by status", "model", "worker", "status")
        self.errors = self._series("errors", "Requests that failed by the worker's fault", "model", "worker")
        self.latency = Histograms(
            "balancer_request_duration_seconds",
            "Latency of the worker's answer, successful unary inference",
            ("model", "worker"),
            LATENCY_BUCKETS_S,
        )
        self.first_byte = Histograms(
            "balancer_first_byte_seconds",
            "Until the worker's answer began, successful unary inference",
            ("model",),
            LATENCY_BUCKETS_S,
        )
        self._received = self._series("received_bytes", "Bodies of the requests that workers got", "model")
        self._sent = self._series("sent_bytes", "Bodies of their answers", "model")
        decision = Histograms(
            "balancer_decision_duration_seconds",
            "Time to read a request, decide, and write the answer",
            (),
            _DECISION_BUCKETS_S,
        )
        self.decision_duration = decision.labels()
        self.held = Histograms(
            "balancer_held_seconds",
            "How long requests waited at the balancer for a worker with room, by what became of them",
            ("model", "result"),
            LATENCY_BUCKETS_S,
        )
        self._families: tuple[Family[Any], ...] = (
            *(self.requests, self.errors, self.latency),
            *(self.first_byte, self._received, self._sent, decision, self.held),
        )
        self.decisions = self._counter("decisions", "Picks by the policy that made them", "policy")
        self.refusals = self._counter("refusals", "Requests answered without a worker", "reason")
        self.fallbacks = self._counter("fallbacks", "Requests not served as picked, by cause", "cause")
        self.aborted = self._counter(
            "aborted_requests", "Requests that were not answered to their end, by who ended them", "by"
        )
        self.handler_errors = self._counter(
            "handler_errors",
            "Calls that failed by a mistake of the balancer's; none was answered as if it had not",
            "handler",
        )
        self.refused_inputs = self._counter(
            "refused_inputs", "Messages refused because a field was out of bounds", "message", "field"
        )
        self.admin_closed = self._counter(
            "admin_connections_closed", "Connections to the admin pages closed before they were answered", "cause"
        )
        self.loop_lag = prometheus.Histogram(
            "balancer_event_loop_lag_seconds",
            "By how much the event loop was late, looked at every 50 ms",
            buckets=_LAG_BUCKETS_S,
            registry=self.registry,
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
        self._made = prometheus.Gauge(
            "balancer_metrics_timestamp_seconds",
            "Unix time at which this text was begun; it is made once a second at most",
            registry=self.registry,
        )
        self.held_now = prometheus.Gauge(
            "balancer_held_requests", "Requests that wait for a worker with room", registry=self.registry
        )
        self.registry.register(_Fleet(router, clock))
        self.registry.register(_Steering(router))
        prometheus.Info("balancer_process", "This process", registry=self.registry).info({"number": process})
        prometheus.ProcessCollector(registry=self.registry)
        build = {"version": importlib.metadata.version("balancer"), "python": platform.python_version()}
        prometheus.Info("balancer_build", "What runs", registry=self.registry).info(build)
        self._exposition, self._open_exposition = (
            Exposition(self.registry, self._families, clock, self._prepare, open_metrics)
            for open_metrics in (False, True)
        )
        self.catch_up: Callable[[], None] = lambda: None
        """Takes in what was not counted yet; before a text is made. Must not raise."""
        # Looking a child up by its labels costs more than counting.
        self.decisions_of = lru_cache(_MOST_POLICIES)(self.decisions.labels)

    def watch(
        self,
        streams: ReportStreams,
        envoys: Envoys,
        config: ConfigInForce,
        certificates: Mapping[str, Expiring],
    ) -> None:
        """Tell of these too, as they are when scraped; `certificates` by listener."""
        self.registry.register(_Process(streams, envoys, config))
        self.registry.register(_Certificates(certificates))

    def requests_of(self, model: str, worker: str, status: str) -> Count:
        """The counter of requests with these labels; `status` as `grpc_0` or `http_200`.

        What is no known code counts as `grpc_other` or `http_other`, and what the fleet has not as `other`.
        """
        if status not in _STATUSES:
            status = "grpc_other" if status.startswith("grpc_") else "http_other"
        return self.requests.labels(self.model_label(model), self._worker_label(worker), status)

    def moved(self, model: str, received_bytes: int, sent_bytes: int) -> None:
        """Count bodies; `model` is a label."""
        self._received.labels(model).inc(received_bytes)
        self._sent.labels(model).inc(sent_bytes)

    def errors_of(self, model: str, worker: str) -> Count:
        """The counter of the worker's failures with these labels."""
        return self.errors.labels(self.model_label(model), self._worker_label(worker))

    def latency_of(self, model: str, worker: str) -> Distribution:
        """The histogram of latencies with these labels, in seconds."""
        return self.latency.labels(self.model_label(model), self._worker_label(worker))

    def exemplify(self, model: str, worker: str, latency_s: float, trace: str) -> None:
        """Show a traced request with the bucket of the latencies that it is one of."""
        self.latency_of(model, worker).exemplify(Exemplar(trace, latency_s, time.time()))

    def model_label(self, model: str) -> str:
        """The model's name where the fleet has it; empty for calls about no model."""
        return model if not model or model in self._router.fleet.models else OTHER

    def _worker_label(self, worker: str) -> str:
        """The worker's name where the fleet has it, which the last outcomes of a removed one no longer find."""
        return worker if not worker or worker in self._router.fleet.index else OTHER

    def forget(self, workers: Iterable[str]) -> None:
        """Drop the series of workers that are gone, so that years of pods do not pile up."""
        self._forget("worker", set(workers))

    def forget_models(self, models: list[str]) -> None:
        """Drop the series of models that no worker has any more, and clear the list."""
        if models:
            self._forget("model", set(models))
            models.clear()

    def _forget(self, label: str, gone: set[str]) -> None:
        for family in self._families:
            family.forget(label, gone)

    def _prepare(self) -> None:
        self._made.set(time.time())
        self.catch_up()
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Drop the series of whatever the fleet no longer has."""
        fleet = self._router.fleet
        for label, there in (("model", fleet.models), ("worker", fleet.index)):
            for family in self._families:
                family.forget(label, {value for value in family.values(label) if value and value != OTHER} - set(there))

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes, all at once."""
        return b"".join(self._exposition.slices())

    async def latest(self, open_metrics: bool = False) -> Text:
        """The text that Prometheus scrapes, made at most once a second, while requests are served; `open_metrics`: in
        that format, with exemplars.
        """
        return await (self._open_exposition if open_metrics else self._exposition).latest()

    def _counter(self, name: str, documentation: str, *labels: str) -> prometheus.Counter:
        return prometheus.Counter(f"balancer_{name}", documentation, labels, registry=self.registry)

    def _series(self, name: str, documentation: str, *labels: str) -> Counters:
        return Counters(f"balancer_{name}", documentation, labels)


class _Fleet(Collector):
    """What the router knows, read at the moment of the scrape."""

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        self._router = router
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        router, fleet = self._router, self._router.fleet
        names = fleet.names
        view = LiveView(fleet, fleet.servable("", ""), fleet.models[ANY_MODEL], 1.0, self._clock())
        columns = {
            f"balancer_worker_{name.removesuffix('_s')}" + ("_seconds" if name.endswith("_s") else ""): (
                DECLARED[name].says,
                getattr(view, name).tolist(),
            )
            for name in columns_of("moment")
        }
        ready = [float(worker.ready and not (worker.draining or worker.stopping)) for worker in fleet.workers]
        columns["balancer_worker_ready"] = ("1: ready and not draining", ready)
        for name, (documentation, values) in columns.items():
            yield from _by_worker(name, documentation, list(zip(names, values, strict=True)))
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


def _by_worker(name: str, documentation: str, items: list[tuple[str, float]]) -> Iterator[Metric]:
    """A gauge with a sample for each worker."""

    def add(family: GaugeMetricFamily, item: tuple[str, float]) -> None:
        family.add_metric([item[0]], item[1])

    return sliced(lambda: GaugeMetricFamily(name, documentation, labels=["worker"]), items, add)


class _Process(Collector):
    """Who is connected, and the config in force, read at the moment of the scrape."""

    def __init__(self, streams: ReportStreams, envoys: Envoys, config: ConfigInForce) -> None:
        self._streams = streams
        self._envoys = envoys
        self._config = config
        self._hashed: Hashed | None = None
        self._hash = ""

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        streams = self._streams
        yield GaugeMetricFamily("balancer_report_streams", "Agents' report streams open now", streams.streams)
        asked = "Questions of agents, what is in flight at their workers"
        yield CounterMetricFamily("balancer_report_questions", asked, streams.questions)
        ended = CounterMetricFamily(
            "balancer_report_streams_ended", "Report streams that this process ended, by cause", labels=["cause"]
        )
        for cause in ("silent", "invalid", "refused", "taken_over"):
            ended.add_metric([cause], getattr(streams, cause))
        yield ended
        yield GaugeMetricFamily("balancer_envoys_connected", "Envoys that ask for endpoints", self._envoys.connected)
        nacks = "Updates of endpoints that an Envoy refused"
        yield CounterMetricFamily("balancer_envoy_nacks", nacks, self._envoys.rejections)
        if self._hashed is not self._config.config:
            self._hashed = self._config.config
            self._hash = self._hashed.hash
        yield InfoMetricFamily("balancer_config", "The config in force", {"hash": self._hash})
        yield GaugeMetricFamily(
            "balancer_config_loaded_timestamp_seconds",
            "Unix time at which the config in force was taken over",
            self._config.loaded_at_s,
        )
        says = "1 while the newest config file is refused, and the last good one is in force"
        yield GaugeMetricFamily("balancer_config_refused", says, float(self._config.last_error is not None))


class _Certificates(Collector):
    """Of the listeners, read at the moment of the scrape."""

    def __init__(self, certificates: Mapping[str, Expiring]) -> None:
        self._certificates = certificates

    def collect(self) -> Iterator[Metric]:
        """Yield the family; without samples where nothing has TLS."""
        expiry = GaugeMetricFamily(
            "balancer_certificate_expiry_timestamp_seconds",
            "Unix time at which the first certificate of the chain that a listener shows expires",
            labels=["listener"],
        )
        for listener, certificate in self._certificates.items():
            if certificate.expires_s is not None:
                expiry.add_metric([listener], certificate.expires_s)
        yield expiry


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
