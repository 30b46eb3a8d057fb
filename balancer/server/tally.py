"""Counts what became of requests, whoever tells of it: Envoy's access log, another gateway, or Envoy's module."""

from collections.abc import Sequence
from math import isnan, nan
from typing import NamedTuple

from balancer.extproc.responses import By, verdict
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.scheduler.events import Void
from balancer.scheduler.keys import STICKY
from balancer.scheduler.outliers import Outliers
from balancer.server.logs import Reason
from balancer.server.metrics import Metrics
from balancer.server.recent import OutcomeKey, Recent

REASONS: dict[type[RoutingError], Reason] = {
    UnknownModel: "unknown_model",
    NoEligibleWorker: "no_worker",
    Shed: "shed",
}
_FAILURES: tuple[Void, ...] = ("", "request")
"""What may be the worker's fault; people see all of it."""


class Ended(NamedTuple):
    model: str
    worker: str
    """That served, or was tried last; empty: none, or one that discovery no longer lists."""
    grpc_status: int
    """-1: none."""
    http_status: int
    inference: bool
    """And no stream or question, so that its time is one of the worker's."""
    picked: bool
    ok: bool
    void: Void
    by: By = ""
    policy: str = ""
    """Whose pick it was; empty: nobody's of this process."""

    @property
    def status(self) -> str:
        return f"grpc_{self.grpc_status}" if self.grpc_status >= 0 else f"http_{self.http_status}"


class Measured(NamedTuple):
    at_s: Sequence[float]
    latency_s: Sequence[float]
    """NaN: none that is the worker's."""
    first_byte_s: Sequence[float]
    """NaN: none."""
    bytes_in: int = 0
    bytes_out: int = 0


class Tally:
    def __init__(self, metrics: Metrics, recent: Recent) -> None:
        self._metrics, self._recent = metrics, recent
        self.outliers = Outliers()

    def decided(self, policy: str, seconds: Sequence[float]) -> None:
        self._metrics.decisions.labels(policy).inc(len(seconds))
        self._metrics.decision_duration.observe_all(seconds)

    def refused(self, reason: str, seconds: Sequence[float]) -> None:
        self._metrics.refusals.labels(reason).inc(len(seconds))
        self._metrics.decision_duration.observe_all(seconds)

    def invalid(self, field: str, count: int = 1) -> None:
        self._metrics.refused_inputs.labels("request", field).inc(count)
        self._metrics.refusals.labels("invalid").inc(count)

    def unserved(self, ended: Ended, at_s: Sequence[float]) -> None:
        """No worker got them: they were refused, their clients left, or Envoy knew of no worker."""
        ok, void = verdict(ended.grpc_status, ended.http_status)
        if ended.inference and not ok and void in _FAILURES:
            of = OutcomeKey(self._metrics.model_label(ended.model), "", ended.policy)
            self._recent.add(at_s, [nan] * len(at_s), False, ended.picked, of)
        self._metrics.requests_of(ended.model, "", ended.status).inc(len(at_s))
        self._aborted(ended, len(at_s))

    def served(self, ended: Ended, measured: Measured) -> None:
        metrics, count = self._metrics, len(measured.at_s)
        model, worker, ok = metrics.model_label(ended.model), ended.worker, ended.ok
        fault = not ok and ended.void in _FAILURES
        # An error at a worker that a key or another gateway chose may be aimed there.
        doubtful = ended.void == "request" and ended.policy not in ("", STICKY.name)
        if worker and ended.inference and (ok or doubtful):
            self.outliers.count(ended.model, worker, ok, count)
        if ended.inference:
            latency_s = measured.latency_s if ok else [nan] * count
            self._recent.add(measured.at_s, latency_s, not fault, ended.picked, OutcomeKey(model, worker, ended.policy))
        metrics.requests_of(model, worker, ended.status).inc(count)
        metrics.received.labels(model).inc(measured.bytes_in)
        metrics.sent.labels(model).inc(measured.bytes_out)
        if fault:
            metrics.errors_of(model, worker).inc(count)
        if ok and worker and ended.inference:
            metrics.latency_of(model, worker).observe_all(measured.latency_s)
            metrics.first_byte.labels(model).observe_all(measured.first_byte_s)
        self._aborted(ended, count)

    def exemplify(self, ended: Ended, latency_s: float, trace: str) -> None:
        if ended.ok and ended.worker and ended.inference and not isnan(latency_s):
            self._metrics.exemplify(ended.model, ended.worker, latency_s, trace)

    def placed(self, picked: bool, attempts: int, count: int = 1) -> None:
        """Whether some balancer picked their worker, and how many were tried for each."""
        if not picked:
            self._metrics.fallbacks.labels("no_pick").inc(count)
        elif attempts > 1:
            self._metrics.fallbacks.labels("retried").inc(count)

    def _aborted(self, ended: Ended, count: int) -> None:
        if ended.by:
            self._metrics.aborted.labels(ended.by).inc(count)
