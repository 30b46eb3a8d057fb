"""Joins what the gateway sees to the router, the metrics and the logs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from balancer.core.bounds import OutOfBoundsError
from balancer.core.events import Finished, Withdrawn
from balancer.core.router import EXPIRED_PER_TICK, Router
from balancer.core.trials.split import Lot
from balancer.gateway.exchange import Served
from balancer.gateway.kserve import Call, Kind
from balancer.gateway.outcomes import NOT_PICKED, Outcome, aborted_by, verdict_of
from balancer.gateway.picker import Pick, Picker
from balancer.gateway.responses import CODES
from balancer.gateway.verdict import By, of_version, verdict
from balancer.operate.decision_log.recording import Recording
from balancer.operate.logs import DecisionLines
from balancer.operate.metrics import Metrics
from balancer.operate.mistakes import Mistakes
from balancer.operate.recent import Recent
from balancer.operate.splits import SplitCounts, tell_return
from balancer.operate.tally import REASONS, Ended, Measured, Tally
from policies.base import Request

logger = logging.getLogger(__name__)

FIRST_PROCESS = "0"
_MOST_UNHEARD = 100_000
_QUESTIONS = (Kind.MODEL, Kind.SERVER)
_INFERENCE = ("/ModelInfer", "/infer", "/generate")


class _Unheard(NamedTuple):
    """A pick whose outcome is awaited."""

    number: int
    at_s: float
    policy: str
    lot: Lot | None


class Recorder:
    """Listens to the picks and to Envoy's access log."""

    def __init__(
        self, router: Router, picker: Picker, metrics: Metrics, clock: Callable[[], float], process: str = FIRST_PROCESS
    ) -> None:
        self.router = router
        self._picker = picker
        self.metrics = metrics
        self._clock = clock
        self._process = process
        self.mistakes = Mistakes(metrics.handler_errors, clock)
        self._failures = 0
        self._unheard: dict[str, _Unheard] = {}
        """By the gateway's own id of the request, oldest first."""
        self.decision_lines = DecisionLines(0.0)
        self._recording: Recording | None = None
        self.recent = Recent()
        self.tally = Tally(metrics, self.recent)
        picker.holding.listener = self
        self.splits = picker.splits
        self.splits.returned = tell_return
        metrics.registry.register(SplitCounts(self.splits))
        metrics.held_now.set_function(picker.holding.waiting.__len__)

    @property
    def awaited(self) -> int:
        """Picks whose outcome may come under the gateway's id."""
        return len(self._unheard)

    def record(self, recording: Recording | None) -> None:
        """From now on record every decision and outcome there; None: nowhere."""
        self._recording = self.router.witness = recording

    def picked(self, call: Call, pick: Pick, seconds: float) -> None:
        """Count a decision or a refusal."""
        decision = pick.decision
        if decision is not None:
            self.tally.decided(decision.policy, (seconds,))
            if call.gateway_id:
                heard_of = _Unheard(decision.number, decision.at_s, decision.policy, pick.lot)
                self._remember(call.gateway_id, heard_of)
            if self._recording is not None and call.kind in _QUESTIONS:
                self._recording.no_inference(decision.number)
        else:
            self.tally.refused(REASONS[type(pick.error)] if pick.error else "per_server", (seconds,))
            if pick.lot is not None and pick.error is not None:
                http_status, grpc_status = CODES[type(pick.error)]
                self.compare(pick.lot, grpc_status, http_status, "", math.nan, self._clock())
        # A refusal has a number of its own only where a policy was asked: the router's next one serves as well.
        if self.decision_lines.wants(decision.number if decision else self.router.next_number):
            self._log(call, pick)
        failures = self.router.failures.total()
        if failures != self._failures:
            self._failures = failures
            logger.error("policy gave no valid answer, another stood in: %s", self.router.last_failure)

    def refused(self, error: OutOfBoundsError) -> None:
        """Count a request that was out of bounds."""
        self.tally.invalid(error.field)

    def out_of_bounds(self, field: str) -> None:
        """Count a value of an outcome that was out of bounds."""
        self.metrics.refused_inputs.labels("outcome", field).inc()

    def held(self, request: Request, seconds: float, how: str) -> None:
        """Count a request that waited for a worker."""
        self.metrics.held.labels(self.metrics.model_label(request.model), how).observe(seconds)

    def mistaken(self, error: Exception) -> None:
        """Count a mistake of ours, which cost one request its answer, or one outcome."""
        self.mistakes.caught("pick", error)

    def compare(self, lot: Lot, grpc_status: int, http_status: int, by: By, latency_s: float, now_s: float) -> None:
        """Tell a split how a request ended, where that says something of its version; the rest as in `of_version`."""
        good = of_version(grpc_status, http_status, by)
        if good is not None:
            self.splits.ended(lot, latency_s, good, now_s)

    def _remember(self, gateway_id: str, pick: _Unheard) -> None:
        """Keep a pick while its outcome is awaited: Envoy may tell of it under the request's id alone."""
        self._unheard[gateway_id] = pick
        if len(self._unheard) > _MOST_UNHEARD:
            del self._unheard[next(iter(self._unheard))]

    def tick(self, now_s: float) -> None:
        """Let go of picks whose outcome is awaited no more, as the router does, and see who waits no longer."""
        self._picker.holding.soon()
        timeout_s = self.router.settings.outcome_timeout_s
        for gateway_id, pick in list(islice(self._unheard.items(), EXPIRED_PER_TICK)):
            if now_s - pick.at_s < timeout_s:
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
            policy=decision.policy if decision else self.router.policy.name,
            propensity=decision.propensity if decision else 0.0,
            fallbacks=decision.fallbacks if decision else (),
            reason=REASONS[type(pick.error)] if pick.error else "picked" if decision else "per_server",
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
        inference = _is_inference(outcome)
        number = outcome.number
        dropped = self._unheard.pop(outcome.gateway_id, None)
        if number == NOT_PICKED and dropped is not None:
            # Envoy gave up on the pick, most likely because the client left: it went nowhere, or elsewhere.
            self.observe(Withdrawn(dropped.number), now_s)
        ended = self._ended(outcome, inference, dropped.policy if dropped is not None and number >= 0 else "")
        if not outcome.upstream and number >= 0:
            self.observe(Withdrawn(number), now_s)
        if number == NOT_PICKED and self._process != FIRST_PROCESS:
            # All processes hear of what none picked for, so that the one whose pick was dropped does. One counts it.
            return
        if not outcome.upstream:
            self.tally.unserved(ended, (now_s,))
            return
        latency_s = outcome.latency_s if inference else math.nan
        measured = (now_s,), (latency_s,), (outcome.first_byte_s,)
        finished_s = None if math.isnan(latency_s) else latency_s
        self.observe(Finished(number, ended.worker, finished_s, ended.ok, ended.void), now_s)
        if dropped is not None and dropped.lot is not None and number >= 0:
            self.compare(dropped.lot, ended.grpc_status, ended.http_status, ended.by, latency_s, now_s)
        self.tally.served(ended, Measured(*measured, outcome.bytes_in, outcome.bytes_out))
        self.tally.placed(number != NOT_PICKED, outcome.attempts)
        if outcome.trace:
            self.tally.exemplify(ended, latency_s, outcome.trace)

    def traced(self, outcomes: list[Outcome]) -> None:
        """Envoy says how traced requests ended, of which its module tells."""
        for outcome in outcomes:
            try:
                ended = self._ended(outcome, _is_inference(outcome), "")
                self.tally.exemplify(ended, outcome.latency_s, outcome.trace)
            except Exception as error:  # as above
                self.mistakes.caught("outcome", error)

    def _ended(self, outcome: Outcome, inference: bool, policy: str) -> Ended:
        by = aborted_by(outcome)
        ok, void = verdict_of(outcome, by)
        return Ended(
            model=outcome.model,
            worker=self._picker.addresses.name(outcome.upstream) if outcome.upstream else "",
            grpc_status=outcome.grpc_status,
            http_status=outcome.http_status,
            inference=inference,
            picked=outcome.number >= 0,
            ok=ok,
            void=void,
            by=by,
            policy=policy,
        )

    def served(self, call: Call, served: Served) -> None:
        """A gateway without our access log says how a request ended."""
        decision = served.decision
        self._unheard.pop(call.gateway_id, None)
        worker = self._picker.addresses.name(served.endpoint) if served.endpoint else decision.worker
        ok, void = verdict(served.grpc_status, served.status)
        ended = Ended(
            model=call.request.model,
            worker=worker,
            grpc_status=served.grpc_status,
            http_status=served.status,
            inference=call.kind not in _QUESTIONS,
            picked=True,
            ok=ok,
            void=void,
            policy=decision.policy,
        )
        now_s = self._clock()
        latency_s = served.latency_s if call.kind is Kind.INFERENCE else None
        self.observe(Finished(decision.number, worker, latency_s, ok, void), now_s)
        measured_s = math.nan if latency_s is None else latency_s
        if served.lot is not None:
            self.compare(served.lot, served.grpc_status, served.status, "", measured_s, now_s)
        self.tally.served(ended, Measured((now_s,), (measured_s,), (math.nan,)))

    def observe(self, event: Finished | Withdrawn, now_s: float) -> None:
        """An outcome."""
        self.router.observe(event, now_s)
        self._picker.holding.soon()
        if self._recording is not None:
            self._recording.ended(event, now_s)


def _is_inference(outcome: Outcome) -> bool:
    return outcome.path.partition("?")[0].endswith(_INFERENCE)
