"""Takes what ext_proc and Envoy's access log say of requests to the router, the metrics and the logs."""

import logging
import math
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from balancer.bounds import OutOfBoundsError
from balancer.extproc.exchange import Served
from balancer.extproc.kserve import Call, Kind, is_openai
from balancer.extproc.outcomes import NOT_PICKED, Outcome, UpstreamAnswer, verdict_of
from balancer.extproc.picker import Pick, Picker
from balancer.extproc.prompts import Usage
from balancer.extproc.responses import CODES, By, of_version, verdict
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.split import Split, VersionDraw
from balancer.scheduler.events import Finished, FirstToken, Withdrawn
from balancer.scheduler.router import EXPIRED_PER_TICK
from balancer.server.decision_log.recording import Recording
from balancer.server.internal_errors import InternalErrors
from balancer.server.logs import DecisionLines
from balancer.server.metrics import Metrics
from balancer.server.metrics.metrics import split_metrics
from balancer.server.tally import REASONS, Ended, Measured, Recent, Tally
from policies.base import Request

logger = logging.getLogger(__name__)

FIRST_PROCESS = "0"
_MOST_AWAITED = 100_000
_MOST_LATE = 10_000
_NO_INFERENCE = (Kind.MODEL, Kind.SERVER)
_INFERENCE = ("/ModelInfer", "/infer", "/generate", "/completions", "/embeddings")


class _AwaitedPick(NamedTuple):
    number: int
    at_s: float
    policy: str
    draw: VersionDraw | None
    answered: bool = False
    """Its worker is done; the rest of its outcome is awaited."""
    stopped: bool = False
    first_token_s: float = math.nan
    """When the answer of a language model began; NaN: it did not, or is not told."""
    has_prompt: bool = False


class Recorder:
    def __init__(
        self,
        router: AnyRouter,
        picker: Picker,
        metrics: Metrics,
        clock: Callable[[], float],
        process: str = FIRST_PROCESS,
    ) -> None:
        self.router = router
        self._picker = picker
        self.shares = picker.shares
        self.metrics = metrics
        self._clock = clock
        self._process = process
        self.internal_errors = InternalErrors(metrics.handler_errors, clock)
        self._failing: frozenset[tuple[str, str]] = frozenset()
        self._awaited: dict[str, _AwaitedPick] = {}
        """By the gateway's own id of the request, oldest first."""
        self._late: dict[str, None] = {}
        """Ids of requests that a worker was done with before there was a pick, for which Envoy did not wait."""
        self.decision_lines = DecisionLines(0.0)
        self._recording: Recording | None = None
        self.recent = Recent()
        self.tally = Tally(metrics, self.recent)
        picker.holding.listener = self
        self.splits = picker.splits
        self.splits.returned = _log_return
        metrics.register(lambda: split_metrics(self.splits))
        metrics.held_now = picker.holding.waiting.__len__

    @property
    def awaited(self) -> int:
        return len(self._awaited)

    def record(self, recording: Recording | None) -> None:
        """From now on record every decision and outcome there; None: nowhere."""
        self._recording = self.router.observer = recording

    def picked(self, call: Call, pick: Pick, seconds: float) -> None:
        decision = pick.decision
        if decision is not None:
            self.tally.decided(decision.policy, (seconds,))
            if call.gateway_id in self._late:
                del self._late[call.gateway_id]
                self.observe(Withdrawn(decision.number), self._clock())
            elif call.gateway_id:
                # Envoy may tell of its end under the request's id alone.
                awaited = _AwaitedPick(decision.number, decision.at_s, decision.policy, pick.draw)
                self._awaited[call.gateway_id] = awaited._replace(has_prompt=call.has_prompt)
                if len(self._awaited) > _MOST_AWAITED:
                    del self._awaited[next(iter(self._awaited))]
            if self._recording is not None and call.kind in _NO_INFERENCE:
                self._recording.no_inference(decision.number)
        else:
            self.tally.refused(REASONS[type(pick.error)] if pick.error else "per_server", (seconds,))
            if pick.draw is not None and pick.error is not None:
                http_status, grpc_status = CODES[type(pick.error)]
                self.compare(pick.draw, grpc_status, http_status, "", math.nan, self._clock())
        # A refusal has a number of its own only where a policy was asked: the router's next one serves as well.
        if self.decision_lines.wants(decision.number if decision else self.router.next_number):
            self._log(call, pick)

    def refused(self, error: OutOfBoundsError) -> None:
        self.tally.invalid(error.field)

    def out_of_bounds(self, field: str) -> None:
        self.metrics.refused_inputs.labels("outcome", field).inc()

    def held(self, request: Request, seconds: float, how: str) -> None:
        self.metrics.held.labels(self.metrics.model_label(request.model), how).observe(seconds)

    def failed_internally(self, error: Exception) -> None:
        self.internal_errors.caught("pick", error)

    def compare(
        self, draw: VersionDraw, grpc_status: int, http_status: int, by: By, latency_s: float, now_s: float
    ) -> None:
        """Tell a split how a request ended, where that says something of its version; the rest as in `of_version`."""
        good = of_version(grpc_status, http_status, by)
        if good is not None:
            self.splits.ended(draw, latency_s, good, now_s)

    def _remember_late(self, gateway_id: str) -> None:
        if gateway_id:
            self._late[gateway_id] = None
            if len(self._late) > _MOST_LATE:
                del self._late[next(iter(self._late))]

    def tick(self, now_s: float) -> None:
        """Let go of picks whose outcome is awaited no more, as the router does, and see who waits no longer."""
        self._picker.holding.soon()
        self._leave_out(now_s)
        timeout_s = self.router.settings.outcome_timeout_s
        for gateway_id, pick in list(islice(self._awaited.items(), EXPIRED_PER_TICK)):
            if now_s - pick.at_s < timeout_s:
                break
            del self._awaited[gateway_id]

    def _leave_out(self, now_s: float) -> None:
        """Leave out workers that fail at a model while others do not, and take them back."""
        failing = self.tally.outliers.tick(self.router.fleet.names, now_s)
        if failing == self._failing:
            return
        for model, worker in sorted(failing - self._failing):
            extra = {"worker": worker, "model": model}
            logger.warning("a worker fails at every request to a model, and is left out for a while", extra=extra)
        self._failing = failing
        self.router.leave_out(failing)

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

    def answered(self, answers: list[UpstreamAnswer]) -> None:
        """Envoy says that workers are done with requests: their places are free, whether or not the clients read."""
        now_s = self._clock()
        for answer in answers:
            pick = self._awaited.get(answer.gateway_id)
            worker = self._picker.addresses.name(answer.upstream)
            if is_openai(answer.path) or (pick is not None and pick.has_prompt):
                continue  # how many tokens it had, the outcome says
            if pick is None:
                self._remember_late(answer.gateway_id)
            # Whichever worker has it: what was picked is no longer kept busy by it.
            if pick is None or pick.answered:
                continue
            self._awaited[answer.gateway_id] = pick._replace(answered=answer.http_status > 0, stopped=True)
            if not answer.http_status:
                if not pick.stopped:
                    self.router.observe(Withdrawn(pick.number), now_s)
                    self._picker.holding.soon()
                continue
            ok, void = verdict(answer.grpc_status, answer.http_status)
            unknown = math.isnan(answer.latency_s) or not _is_inference(answer)
            self.observe(Finished(pick.number, worker, None if unknown else answer.latency_s, ok, void), now_s)

    def outcomes(self, outcomes: list[Outcome]) -> None:
        now_s = self._clock()
        for outcome in outcomes:
            try:
                self._outcome(outcome, now_s)
            except Exception as error:  # one that cannot be counted must not keep the others from it
                self.internal_errors.caught("outcome", error)

    def _outcome(self, outcome: Outcome, now_s: float) -> None:
        inference = _is_inference(outcome)
        number = outcome.number
        awaited = self._awaited.pop(outcome.gateway_id, None)
        counted = awaited is not None and awaited.answered
        if not counted and number == NOT_PICKED and awaited is not None:
            # Envoy gave up on the pick, most likely because the client left: it went nowhere, or elsewhere.
            self.observe(Withdrawn(awaited.number), now_s)
        if number == NOT_PICKED and awaited is None:
            self._remember_late(outcome.gateway_id)
        ended = self._ended(outcome, inference, awaited.policy if awaited is not None and number >= 0 else "")
        if not outcome.upstream and number >= 0 and not counted:
            self.observe(Withdrawn(number), now_s)
        if number == NOT_PICKED and self._process != FIRST_PROCESS:
            # All processes get the outcome of a request that none picked for, so that one whose pick was dropped
            # learns of it. The first counts it.
            return
        if not outcome.upstream:
            self.tally.unserved(ended, (now_s,))
            return
        latency_s = outcome.latency_s if inference else math.nan
        measured = (now_s,), (latency_s,), (outcome.first_byte_s,)
        finished_s = None if math.isnan(latency_s) else latency_s
        output_tokens = cached_tokens = 0.0
        usage = outcome.usage
        if usage is None and awaited is not None and awaited.has_prompt:
            # Triton does not tell.
            usage = Usage(0.0, 0.0, outcome.bytes_out * self.shares.of(ended.model))
        if usage is not None and ended.ok:
            output_tokens, cached_tokens = usage.output, usage.cached
            self._take_usage(ended, usage, outcome.bytes_in, awaited, now_s)
        if not counted:
            answer = output_tokens, math.nan, cached_tokens
            self.observe(Finished(number, ended.worker, finished_s, ended.ok, ended.void, *answer), now_s)
        if awaited is not None and awaited.draw is not None and number >= 0:
            self.compare(awaited.draw, ended.grpc_status, ended.http_status, ended.by, latency_s, now_s)
        self.tally.served(ended, Measured(*measured, outcome.bytes_in, outcome.bytes_out))
        self.tally.placed(number != NOT_PICKED, outcome.attempts)
        if outcome.trace:
            self.tally.exemplify(ended, latency_s, outcome.trace)

    def _take_usage(
        self, ended: Ended, usage: Usage, request_bytes: int, awaited: _AwaitedPick | None, now_s: float
    ) -> None:
        answering_s = math.nan if awaited is None else now_s - awaited.first_token_s
        self.take_answer(ended.model, ended.worker, usage, request_bytes, math.nan, answering_s)

    def take_answer(
        self, model: str, worker: str, usage: Usage, request_bytes: int, first_token_s: float, answering_s: float
    ) -> None:
        """What a language model's answer says of its tokens.

        Args:
            model: That answered.
            worker: Where.
            usage: The tokens.
            request_bytes: Of the whole body.
            first_token_s: From the decision to the first token; not a number: it was taken in before, or not seen.
            answering_s: And from there to the end; not a number: not seen.
        """
        self.shares.learn(model, usage.prompt, request_bytes)
        self.metrics.count_tokens(model, worker, *usage)
        if not math.isnan(first_token_s):
            self.metrics.told_first_token(model, worker, first_token_s)
        if usage.output > 1 and not math.isnan(answering_s):
            self.metrics.told_tokens(model, worker, answering_s / (usage.output - 1))

    def traced(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            try:
                ended = self._ended(outcome, _is_inference(outcome), "")
                self.tally.exemplify(ended, outcome.latency_s, outcome.trace)
            except Exception as error:  # as above
                self.internal_errors.caught("outcome", error)

    def _ended(self, outcome: Outcome, inference: bool, policy: str) -> Ended:
        ok, void = verdict_of(outcome)
        return Ended(
            model=outcome.model,
            worker=self._picker.addresses.name(outcome.upstream) if outcome.upstream else "",
            grpc_status=outcome.grpc_status,
            http_status=outcome.http_status,
            inference=inference,
            picked=outcome.number >= 0,
            ok=ok,
            void=void,
            by=outcome.by,
            policy=policy,
        )

    def first_token(self, call: Call, decision: Decision) -> None:
        """The answer of a language model begins."""
        now_s = self._clock()
        self.router.observe(FirstToken(decision.number), now_s)
        self._picker.holding.soon()
        if self._recording is not None:
            self._recording.began(decision.number, now_s)
        if (awaited := self._awaited.get(call.gateway_id)) is not None:
            self._awaited[call.gateway_id] = awaited._replace(first_token_s=now_s)
        self.metrics.told_first_token(call.request.model, decision.worker, now_s - decision.at_s)

    def served(self, call: Call, served: Served) -> None:
        decision = served.decision
        awaited = self._awaited.pop(call.gateway_id, None)
        worker = self._picker.addresses.name(served.endpoint) if served.endpoint else decision.worker
        ok, void = verdict(served.grpc_status, served.status)
        ended = Ended(
            model=call.request.model,
            worker=worker,
            grpc_status=served.grpc_status,
            http_status=served.status,
            inference=call.kind not in _NO_INFERENCE,
            picked=True,
            ok=ok,
            void=void,
            policy=decision.policy,
        )
        now_s = self._clock()
        latency_s = served.latency_s if call.kind is Kind.INFERENCE else None
        output_tokens = cached_tokens = 0.0
        if served.usage is not None and ok:
            output_tokens, cached_tokens = served.usage.output, served.usage.cached
            self._take_usage(ended, served.usage, served.request_bytes, awaited, now_s)
        answer = output_tokens, math.nan, cached_tokens
        self.observe(Finished(decision.number, worker, latency_s, ok, void, *answer), now_s)
        measured_s = math.nan if latency_s is None else latency_s
        if served.draw is not None:
            self.compare(served.draw, served.grpc_status, served.status, "", measured_s, now_s)
        self.tally.served(ended, Measured((now_s,), (measured_s,), (math.nan,)))

    def observe(self, event: Finished | Withdrawn, now_s: float) -> None:
        self.router.observe(event, now_s)
        self._picker.holding.soon()
        if self._recording is not None:
            self._recording.ended(event, now_s)


def _is_inference(outcome: Outcome | UpstreamAnswer) -> bool:
    return outcome.path.partition("?")[0].endswith(_INFERENCE)


def _log_return(split: Split) -> None:
    logger.warning("all requests for model %r go to the old version again: %s", split.model, split.returned)
