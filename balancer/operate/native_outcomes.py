"""What the module says of decisions made within Envoy, taken to metrics and the live line as `Recorder` does."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from balancer.front.layouts import KINDS, OUTCOME, VOIDS, Source
from balancer.front.router import SharedRouter
from balancer.gateway.kserve import Kind
from balancer.gateway.verdict import verdict
from balancer.operate.metrics import Metrics
from balancer.operate.recent import Recent

_Told: Any = namedtuple("_Told", OUTCOME.names or ())  # type: ignore[misc]  # the layout names them
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
        for row in batch.tolist():
            self._take(_Told._make(row), models)

    def _take(self, told: Any, models: dict[int, str]) -> None:
        metrics = self._metrics
        status = f"grpc_{told.grpc_status}" if told.grpc and told.grpc_status >= 0 else f"http_{told.http_status}"
        source, at_s, latency_s, ok = told.source, told.at_s, told.latency_s, bool(told.ok)
        unserved, refusal = not told.endpoint, told.refusal
        inference, model = KINDS[told.kind] is Kind.INFERENCE, models.get(told.column, "")
        if source == Source.REFUSED:
            metrics.refusals.labels(_REASONS.get(refusal, "invalid")).inc()
            if refusal == _INVALID:
                metrics.refused_inputs.labels("request", told.endpoint.decode("utf-8", "replace")).inc()
        elif source == Source.BY_POLICY:
            metrics.decisions_of(self._router.policy_names[told.policy]).inc()
            self._router.outcomes["matched"] += 1
        elif not unserved:
            metrics.fallbacks.labels("no_pick").inc()
        if source == Source.REFUSED or unserved:
            failed = verdict(told.grpc_status, told.http_status) in ((False, ""), (False, "request"))
            if inference and failed:
                self._recent.add(at_s, None, False, source == Source.BY_POLICY)
            metrics.requests_of(model, "", status).inc()
            return
        if told.attempts > 1:
            metrics.fallbacks.labels("retried").inc()
        worker = self._names.get(told.endpoint, "")
        fault = not ok and VOIDS[told.void_kind] in _FAILURES
        measured_s = latency_s if math.isfinite(latency_s) else None
        if inference:
            self._recent.add(at_s, measured_s if ok else None, not fault, source == Source.BY_POLICY)
        metrics.requests_of(model, worker, status).inc()
        if fault:
            metrics.errors_of(model, worker).inc()
        if measured_s is not None and ok and worker:
            metrics.latency_of(model, worker).observe(measured_s)
