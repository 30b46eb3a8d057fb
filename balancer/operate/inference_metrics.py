"""Metrics again under the names that dashboards of the Gateway API Inference Extension read.

Source: https://gateway-api-inference-extension.sigs.k8s.io/guides/metrics-and-observability/. What has no counterpart
here, such as tokens and KV caches, is left out.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from balancer.core.fleet import ANY_MODEL
from balancer.core.router import Router
from balancer.core.view import LiveView
from balancer.operate.metrics import LATENCY_BUCKETS_S, Metrics

_LABELS = ("model_name", "target_model_name")
"""One and the same here: a request is served by the model that it names."""
_GOOD = ("grpc_0", "http_2")
"""Begin the statuses that are no error."""


class InferenceMetrics(Collector):
    """Read at the moment of the scrape, of what is counted anyway."""

    def __init__(self, metrics: Metrics, router: Router, pool: str) -> None:
        """`pool`: the name of the InferencePool that the workers are."""
        self._metrics = metrics
        self._router = router
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield from self._requests()
        yield self._durations()
        yield from self._of_pool()

    def _requests(self) -> Iterator[Metric]:
        totals: defaultdict[str, float] = defaultdict(float)
        errors: defaultdict[tuple[str, str], float] = defaultdict(float)
        for (model, _, status), count in self._metrics.requests.series():
            if not model:
                continue
            totals[model] += count.value
            if not status.startswith(_GOOD):
                errors[model, status] += count.value
        family = CounterMetricFamily("inference_objective_request", "Requests by model", labels=_LABELS)
        for model, value in totals.items():
            family.add_metric((model, model), value)
        yield family
        labels = (*_LABELS, "error_code")
        family = CounterMetricFamily("inference_objective_request_error", "Requests that failed", labels=labels)
        for (model, status), value in errors.items():
            family.add_metric((model, model, status), value)
        yield family

    def _durations(self) -> Metric:
        counts: dict[str, list[int]] = {}
        sums: defaultdict[str, float] = defaultdict(float)
        for (model, _), one in self._metrics.latency.series():
            before = counts.get(model, [0] * len(one.counts))
            counts[model] = [known + more for known, more in zip(before, one.counts, strict=True)]
            sums[model] += one.sum
        says = "Latency of the worker's answer, successful unary inference"
        family = HistogramMetricFamily("inference_objective_request_duration_seconds", says, labels=_LABELS)
        bounds = [*map(str, LATENCY_BUCKETS_S), "+Inf"]
        for model, buckets in counts.items():
            cumulative = map(float, itertools.accumulate(buckets))
            family.add_metric((model, model), list(zip(bounds, cumulative, strict=True)), sums[model])
        return family

    def _of_pool(self) -> Iterator[Metric]:
        fleet = self._router.fleet
        ready = np.array([worker.ready and not (worker.draining or worker.stopping) for worker in fleet.workers], bool)
        view = LiveView(fleet, fleet.servable("", ""), fleet.models[ANY_MODEL], 1.0, self._metrics.clock())
        pending, running = np.asarray(view.pending, float), np.asarray(view.in_flight, float)
        for name, says, value in (
            ("ready_pods", "Workers that are ready and not draining", float(ready.sum())),
            ("average_queue_size", "Requests pending, mean over the ready workers", _mean(pending[ready])),
            ("average_running_requests", "Requests in flight, mean over the ready workers", _mean(running[ready])),
        ):
            gauge = GaugeMetricFamily(f"inference_pool_{name}", says, labels=("name",))
            gauge.add_metric((self._pool,), value)
            yield gauge
        labels = ("name", "model_server_pod")
        each = GaugeMetricFamily("inference_pool_per_pod_queue_size", "Requests pending at a worker", labels=labels)
        for worker, value in zip(fleet.workers, pending.tolist(), strict=True):
            each.add_metric((self._pool, worker.name), value)
        yield each


def _mean(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(values.mean()) if len(values) else 0.0
