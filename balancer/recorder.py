"""Joins what the front ends see to the router, the metrics and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from balancer.core.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.core.events import Finished, Withdrawn
from balancer.core.router import Decision, Router
from balancer.frontends.access_log import CLIENT_LEFT, Outcome, worker_fault
from balancer.frontends.pick.kserve import Call, Kind
from balancer.frontends.pick.picker import Pick, Picker
from balancer.frontends.pick.service import Served
from balancer.logs import DecisionLog, Reason
from balancer.metrics import Metrics
from balancer.recent import Recent

logger = logging.getLogger(__name__)

_REASONS: dict[type[RoutingError], Reason] = {
    UnknownModel: "unknown_model",
    NoEligibleWorker: "no_worker",
    Shed: "shed",
}
_INFERENCE = ("/ModelInfer", "/infer", "/generate")


class Recorder:
    """Listens to the pick front end and to Envoy's access log."""

    def __init__(self, router: Router, picker: Picker, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._router = router
        self._picker = picker
        self._metrics = metrics
        self._clock = clock
        self._failures = 0
        self.decision_log = DecisionLog(0.0)
        self.recent = Recent()

    def picked(self, call: Call, pick: Pick, seconds: float) -> None:
        """Count a decision or a refusal."""
        metrics = self._metrics
        metrics.decision_duration.observe(seconds)
        decision = pick.decision
        if decision is not None:
            metrics.decisions_of(decision.policy).inc()
        else:
            metrics.refusals.labels(_REASONS[type(pick.error)] if pick.error else "per_server").inc()
        if self.decision_log.wants(decision.number if decision else 0):
            self._log(call, pick)
        failures = self._router.failures.total()
        if failures != self._failures:
            self._failures = failures
            logger.error("policy gave no valid answer, least pending stood in: %s", self._router.last_failure)

    def _log(self, call: Call, pick: Pick) -> None:
        decision = pick.decision
        self.decision_log.write(
            request_id=call.request_id,
            triton_request_id=call.triton_request_id,
            model=call.request.model,
            worker=decision.worker if decision else "",
            policy=decision.policy if decision else self._router.policy.name,
            propensity=decision.propensity if decision else 0.0,
            fallbacks=decision.fallbacks if decision else (),
            reason=_REASONS[type(pick.error)] if pick.error else "picked" if decision else "per_server",
        )

    def outcomes(self, outcomes: list[Outcome]) -> None:
        """Envoy says how requests ended."""
        now_s = self._clock()
        for outcome in outcomes:
            self._outcome(outcome, now_s)

    def withdrawn(self, decision: Decision) -> None:
        """The client left before its request was sent on."""
        self._router.observe(Withdrawn(decision.number), self._clock())

    def _outcome(self, outcome: Outcome, now_s: float) -> None:
        method = outcome.path.partition("?")[0]
        fault = worker_fault(outcome)
        worker = self._picker.endpoints.name(outcome.upstream)
        grpc = outcome.grpc_status >= 0
        status = f"grpc_{outcome.grpc_status}" if grpc else f"http_{outcome.http_status}"
        inference = method.endswith(_INFERENCE)
        if not outcome.upstream and not CLIENT_LEFT.isdisjoint(outcome.flags):
            self._router.observe(Withdrawn(outcome.number), now_s)
            return
        self._finish(
            Finished(outcome.number, worker, outcome.latency_s if inference else None, not fault),
            outcome.model,
            status,
            now_s,
        )
        if outcome.number < 0:
            # Answered by Envoy alone: no pick was to be had.
            self._metrics.fallbacks.labels("no_pick").inc()
        elif outcome.attempts > 1:
            self._metrics.fallbacks.labels("retried").inc()

    def served(self, call: Call, served: Served) -> None:
        """A gateway without our access log says how a request ended."""
        decision = served.decision
        worker = self._picker.endpoints.name(served.endpoint) if served.endpoint else decision.worker
        measured = call.kind is Kind.INFERENCE
        ok = 0 < served.status < 500
        finished = Finished(decision.number, worker, served.latency_s if measured else None, ok)
        self._finish(finished, call.request.model, f"http_{served.status}", self._clock())

    def _finish(self, finished: Finished, model: str, status: str, now_s: float) -> None:
        metrics = self._metrics
        label = metrics.model_label(model)
        self._router.observe(finished, now_s)
        self.recent.add(now_s, finished.latency_s, finished.ok, finished.number >= 0)
        metrics.requests_of(label, finished.worker, status).inc()
        if not finished.ok:
            metrics.errors.labels(label, finished.worker).inc()
        if finished.latency_s is not None and finished.ok and finished.worker:
            metrics.model_latency_of(label).observe(finished.latency_s)
            metrics.worker_latency_of(finished.worker).observe(finished.latency_s)
