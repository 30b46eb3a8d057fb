"""Joins what the gateway sees to the router, the metrics and the logs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from itertools import islice

from balancer.core.bounds import OutOfBoundsError
from balancer.core.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.core.events import Finished, Void, Withdrawn
from balancer.core.router import EXPIRED_PER_TICK, Router
from balancer.gateway.kserve import Call, Kind
from balancer.gateway.outcomes import NOT_PICKED, Outcome, verdict_of
from balancer.gateway.picker import Pick, Picker
from balancer.gateway.picks import Served
from balancer.gateway.verdict import verdict
from balancer.operate.decision_log.recording import Recording
from balancer.operate.logs import DecisionLines, Reason
from balancer.operate.metrics import Metrics
from balancer.operate.mistakes import Mistakes
from balancer.operate.recent import Recent

logger = logging.getLogger(__name__)

_REASONS: dict[type[RoutingError], Reason] = {
    UnknownModel: "unknown_model",
    NoEligibleWorker: "no_worker",
    Shed: "shed",
}
FIRST_PROCESS = "0"
_MOST_UNHEARD = 100_000
_FAILURES: tuple[Void, ...] = ("", "request")
"""What may be the worker's fault; people see all of it."""
_QUESTIONS = (Kind.MODEL, Kind.SERVER)
_INFERENCE = ("/ModelInfer", "/infer", "/generate")


class Recorder:
    """Listens to the picks and to Envoy's access log."""

    def __init__(
        self, router: Router, picker: Picker, metrics: Metrics, clock: Callable[[], float], process: str = FIRST_PROCESS
    ) -> None:
        self._router = router
        self._picker = picker
        self._metrics = metrics
        self._clock = clock
        self._process = process
        self.mistakes = Mistakes(metrics.handler_errors, clock)
        self._failures = 0
        self._unheard: dict[str, tuple[int, float]] = {}
        """Decision numbers, and when they were made, by the gateway's own id of the request, oldest first."""
        self.decision_lines = DecisionLines(0.0)
        self._recording: Recording | None = None
        self.recent = Recent()

    @property
    def awaited(self) -> int:
        """Picks whose outcome may come under the gateway's id."""
        return len(self._unheard)

    def record(self, recording: Recording | None) -> None:
        """From now on record every decision and outcome there; None: nowhere."""
        self._recording = self._router.witness = recording

    def picked(self, call: Call, pick: Pick, seconds: float) -> None:
        """Count a decision or a refusal."""
        metrics = self._metrics
        metrics.decision_duration.observe(seconds)
        decision = pick.decision
        if decision is not None:
            metrics.decisions_of(decision.policy).inc()
            if call.gateway_id:
                self._remember(call.gateway_id, decision.number, decision.at_s)
            if self._recording is not None and call.kind in _QUESTIONS:
                self._recording.no_inference(decision.number)
        else:
            metrics.refusals.labels(_REASONS[type(pick.error)] if pick.error else "per_server").inc()
        # A refusal has a number of its own only where a policy was asked: the router's next one serves as well.
        if self.decision_lines.wants(decision.number if decision else self._router.next_number):
            self._log(call, pick)
        failures = self._router.failures.total()
        if failures != self._failures:
            self._failures = failures
            logger.error("policy gave no valid answer, another stood in: %s", self._router.last_failure)

    def refused(self, error: OutOfBoundsError) -> None:
        """Count a request that was out of bounds."""
        self._metrics.refused_inputs.labels("request", error.field).inc()
        self._metrics.refusals.labels("invalid").inc()

    def out_of_bounds(self, field: str) -> None:
        """Count a value of an outcome that was out of bounds."""
        self._metrics.refused_inputs.labels("outcome", field).inc()

    def mistaken(self, error: Exception) -> None:
        """Count a mistake of ours, which cost one request its answer, or one outcome."""
        self.mistakes.caught("pick", error)

    def _remember(self, gateway_id: str, number: int, at_s: float) -> None:
        """Keep a pick while its outcome is awaited: Envoy may tell of it under the request's id alone."""
        self._unheard[gateway_id] = number, at_s
        if len(self._unheard) > _MOST_UNHEARD:
            del self._unheard[next(iter(self._unheard))]

    def tick(self, now_s: float) -> None:
        """Let go of picks whose outcome is awaited no more, as the router does."""
        timeout_s = self._router.settings.outcome_timeout_s
        for gateway_id, (_, at_s) in list(islice(self._unheard.items(), EXPIRED_PER_TICK)):
            if now_s - at_s < timeout_s:
                break
            del self._unheard[gateway_id]

    def _log(self, call: Call, pick: Pick) -> None:
        decision = pick.decision
        self.decision_lines.write(
            number=decision.number if decision else None,
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
            try:
                self._outcome(outcome, now_s)
            except Exception as error:  # one that cannot be counted must not keep the others from it
                self.mistakes.caught("outcome", error)

    def _outcome(self, outcome: Outcome, now_s: float) -> None:
        grpc = outcome.grpc_status >= 0
        status = f"grpc_{outcome.grpc_status}" if grpc else f"http_{outcome.http_status}"
        inference = outcome.path.partition("?")[0].endswith(_INFERENCE)
        number = outcome.number
        dropped = self._unheard.pop(outcome.gateway_id, None)
        if number == NOT_PICKED and dropped is not None:
            # Envoy gave up on the pick, most likely because the client left: it went nowhere, or elsewhere.
            self._observe(Withdrawn(dropped[0]), now_s)
        if not outcome.upstream:
            self._unserved(outcome, status, inference, now_s)
            return
        if number == NOT_PICKED and self._process != FIRST_PROCESS:
            # All processes hear of what none picked for, so that the one whose pick was dropped does. One counts it.
            return
        ok, void = verdict_of(outcome)
        measured = inference and math.isfinite(outcome.latency_s)
        worker = self._picker.addresses.name(outcome.upstream)
        latency_s = outcome.latency_s if measured else None
        self._finish(Finished(number, worker, latency_s, ok, void), outcome.model, status, inference, now_s)
        if number == NOT_PICKED:
            self._metrics.fallbacks.labels("no_pick").inc()
        elif outcome.attempts > 1:
            self._metrics.fallbacks.labels("retried").inc()

    def _unserved(self, outcome: Outcome, status: str, inference: bool, now_s: float) -> None:
        """A request that no worker got: it was refused, its client left, or Envoy knew of no worker."""
        if outcome.number >= 0:
            self._observe(Withdrawn(outcome.number), now_s)
        elif outcome.number == NOT_PICKED and self._process != FIRST_PROCESS:
            return
        ok, void = verdict(outcome.grpc_status, outcome.http_status)
        if inference and not ok and void in _FAILURES:
            self.recent.add(now_s, None, False, outcome.number >= 0)
        self._metrics.requests_of(self._metrics.model_label(outcome.model), "", status).inc()

    def served(self, call: Call, served: Served) -> None:
        """A gateway without our access log says how a request ended."""
        decision = served.decision
        self._unheard.pop(call.gateway_id, None)
        worker = self._picker.addresses.name(served.endpoint) if served.endpoint else decision.worker
        measured = call.kind is Kind.INFERENCE
        ok, void = verdict(served.grpc_status, served.status)
        grpc = served.grpc_status >= 0
        status = f"grpc_{served.grpc_status}" if grpc else f"http_{served.status}"
        inference = call.kind not in _QUESTIONS
        finished = Finished(decision.number, worker, served.latency_s if measured else None, ok, void)
        self._finish(finished, call.request.model, status, inference, self._clock())

    def _observe(self, event: Finished | Withdrawn, now_s: float) -> None:
        self._router.observe(event, now_s)
        if self._recording is not None:
            self._recording.ended(event, now_s)

    def _finish(self, finished: Finished, model: str, status: str, inference: bool, now_s: float) -> None:
        metrics = self._metrics
        label = metrics.model_label(model)
        fault = not finished.ok and finished.void in _FAILURES
        self._observe(finished, now_s)
        if inference:
            self.recent.add(now_s, finished.latency_s if finished.ok else None, not fault, finished.number >= 0)
        metrics.requests_of(label, finished.worker, status).inc()
        if fault:
            metrics.errors_of(label, finished.worker).inc()
        if finished.latency_s is not None and finished.ok and finished.worker:
            metrics.latency_of(label, finished.worker).observe(finished.latency_s)
