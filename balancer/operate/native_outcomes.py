"""What the module says of decisions made within Envoy, taken to metrics and the live line as `Recorder` does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from balancer.front.module import BY_POLICY, REFUSED, VOIDS
from balancer.front.router import SharedRouter
from balancer.gateway.verdict import verdict
from balancer.operate.metrics import Metrics
from balancer.operate.recent import Recent

_INFERENCE = 0
"""Of an outcome's kind, see `enum call_kind` of balancer/native/module/decide.h."""
_INVALID = 3
_REASONS = {_INVALID: "invalid", 5: "unknown_model", 8: "shed", 14: "no_worker"}
"""Of refusals, by gRPC's status."""
_FAILURES = ("", "request")


class NativeOutcomes:
    """Counts what ended. The estimators have learned of it already."""

    def __init__(self, router: SharedRouter, metrics: Metrics, recent: Recent) -> None:
        self._router, self._metrics, self._recent = router, metrics, recent
        self._names: dict[bytes, str] = {}

    def tell(self, endpoints: Iterable[tuple[str, str]]) -> None:
        """Workers' `address:port`, and their names."""
        self._names = {endpoint.encode(): name for endpoint, name in endpoints}

    def take(self, batch: npt.NDArray[Any]) -> None:
        """As `OUTCOME`."""
        models = {column: model for model, column in self._router.fleet.models.items() if column}
        for told in batch.tolist():
            self._take(told, models)

    def _take(self, told: tuple[Any, ...], models: dict[int, str]) -> None:
        metrics = self._metrics
        _, at_s, latency_s, _, _, column, http, grpc, source, kind, is_grpc, ok, void, refusal, *rest = told
        retried, unserved, policy, endpoint, field = rest
        status = f"grpc_{grpc}" if is_grpc and grpc >= 0 else f"http_{http}"
        inference, model = kind == _INFERENCE, models.get(column, "")
        if source == REFUSED:
            metrics.refusals.labels(_REASONS.get(refusal, "invalid")).inc()
            if refusal == _INVALID:
                metrics.refused_inputs.labels("request", field.decode("utf-8", "replace")).inc()
        elif source == BY_POLICY:
            metrics.decisions_of(self._router.policy_names[policy]).inc()
            self._router.outcomes["matched"] += 1
        elif not unserved:
            metrics.fallbacks.labels("no_pick").inc()
        if source == REFUSED or unserved:
            failed = verdict(grpc, http) in ((False, ""), (False, "request"))
            if inference and failed:
                self._recent.add(at_s, None, False, source == BY_POLICY)
            metrics.requests_of(model, "", status).inc()
            return
        if retried:
            metrics.fallbacks.labels("retried").inc()
        worker = self._names.get(endpoint, "")
        fault = not ok and VOIDS[void] in _FAILURES
        measured_s = latency_s if math.isfinite(latency_s) else None
        if inference:
            self._recent.add(at_s, measured_s if ok else None, not fault, source == BY_POLICY)
        metrics.requests_of(model, worker, status).inc()
        if fault:
            metrics.errors_of(model, worker).inc()
        if measured_s is not None and ok and worker:
            metrics.latency_of(model, worker).observe(measured_s)
