"""Metrics again under the names that dashboards of the Gateway API Inference Extension read.

Source: https://gateway-api-inference-extension.sigs.k8s.io/guides/metrics-and-observability/. What has no counterpart
here, such as distributions of tokens, is left out.
"""

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
from prometheus_client.core import HistogramMetricFamily, Metric

from balancer.kernel.view import LiveView
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.fleet import ANY_MODEL
from balancer.scheduler.snapshot import ready
from balancer.server.metrics.metrics import LATENCY_BUCKETS_S, Metrics, memory_share
from balancer.server.metrics.scraped import counter, gauge
from policies.base import FloatArray, Request

_LABELS = ("model_name", "target_model_name")
"""One and the same here: a request is served by the model that it names."""
_GOOD = ("grpc_0", "http_2")


def inference_metrics(metrics: Metrics, router: AnyRouter, pool: str) -> Iterator[Metric]:
    """The families; `pool`: the name of the InferencePool that the workers are."""
    yield from _requests(metrics)
    yield _durations(metrics)
    yield from _of_pool(router, metrics.clock(), pool)


def _requests(metrics: Metrics) -> Iterator[Metric]:
    totals: Counter[tuple[str, ...]] = Counter()
    errors: Counter[tuple[str, ...]] = Counter()
    for (model, _, status), count in metrics.requests.series():
        if model:
            totals[model, model] += int(count.value)
            if not status.startswith(_GOOD):
                errors[model, model, status] += int(count.value)
    yield counter("inference_objective_request", "Requests by model", totals, *_LABELS)
    yield counter("inference_objective_request_error", "Requests that failed", errors, *_LABELS, "error_code")


def _durations(metrics: Metrics) -> Metric:
    counts: dict[str, list[int]] = {}
    sums: dict[str, float] = {}
    for (model, _), one in metrics.latency.series():
        before = counts.get(model, [0] * len(one.counts))
        counts[model] = [known + more for known, more in zip(before, one.counts, strict=True)]
        sums[model] = sums.get(model, 0.0) + one.sum
    says = "Latency of the worker's answer, successful unary inference"
    family = HistogramMetricFamily("inference_objective_request_duration_seconds", says, labels=_LABELS)
    bounds = [*map(str, LATENCY_BUCKETS_S), "+Inf"]
    for model, buckets in counts.items():
        cumulative = map(float, itertools.accumulate(buckets))
        family.add_metric((model, model), list(zip(bounds, cumulative, strict=True)), sums[model])
    return family


def _of_pool(router: AnyRouter, now_s: float, pool: str) -> Iterator[Metric]:
    fleet = router.fleet
    are_ready = ready(fleet, now_s)
    view = LiveView(fleet, fleet.servable("", ""), fleet.models[ANY_MODEL], Request(""), now_s)
    pending, running = np.asarray(view.pending, float), np.asarray(view.in_flight, float)
    share = memory_share(fleet)
    for name, says, value in (
        ("ready_pods", "Workers that are ready, not draining and not silent", float(are_ready.sum())),
        ("average_queue_size", "Requests pending, mean over the ready workers", _mean(pending[are_ready])),
        (
            "average_kv_cache_utilization",
            "Share of the KV cache in use, mean over the ready workers that tell",
            _mean(share[are_ready & ~np.isnan(share)]),
        ),
        ("average_running_requests", "Requests in flight, mean over the ready workers", _mean(running[are_ready])),
    ):
        yield gauge(f"inference_pool_{name}", says, {pool: value}, "name")
    queues = {(pool, name): queue for name, queue in zip(fleet.names, pending.tolist(), strict=True)}
    says = "Requests pending at a worker"
    yield gauge("inference_pool_per_pod_queue_size", says, queues, "name", "model_server_pod")


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else 0.0
