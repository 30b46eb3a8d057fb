"""Sends an inference to a worker, again where that may help, and tells the router how each attempt ended."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import grpc

from balancer.bounds import OutOfBoundsError, shown
from balancer.channels.channels import Channels, UnknownWorkerError
from balancer.discovery.workers import PortName
from balancer.extproc.inference_bytes import read
from balancer.extproc.kserve import Call
from balancer.extproc.picker import Holding
from balancer.extproc.responses import OF_ABORTED, Verdict
from balancer.proxy.breakers import AttemptLatencies, Breakers
from balancer.proxy.messages import (
    CANCELLED,
    INFER,
    OK,
    UNAVAILABLE,
    UNREACHED,
    Arrived,
    ProxyAnswer,
    failed,
    outcome_of,
    passed_on,
    pushback,
    refusal,
)
from balancer.proxy.settings import ProxyConstants, ProxySettings
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed
from balancer.scheduler.events import Finished
from balancer.scheduler.worker import table_objections
from policies.base import Request
from policies.hashing import mix, unit

_SLOW_SHARE = 0.95
_HEDGE_BURST = 10.0
"""Second copies that may go out together, as slow requests come together; on average the share holds."""


Found = TypeVar("Found")


class AttemptObserver(Protocol):
    def placed(self, arrived: Arrived, decision: Decision | None, error: RoutingError | None, seconds: float) -> None:
        """A worker was picked, or none, in that many seconds."""

    def first_token(self, call: Call, decision: Decision) -> None:
        """The answer of a language model begins."""

    def attempted(self, finished: Finished) -> None:
        """An attempt ended."""


@dataclass(slots=True)
class Clocks:
    now: Callable[[], float]
    stopwatch: Callable[[], float]


class Share:
    """So many extra attempts for each request, saved up to a burst."""

    def __init__(self, share: float, burst: float) -> None:
        self.share, self.burst = share, burst
        self.tokens = burst

    def earn(self) -> None:
        self.tokens = min(self.burst, self.tokens + self.share)

    def take(self) -> bool:
        """Whether there is one for an extra attempt, which is then taken."""
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Attempts:
    def __init__(
        self,
        router: AnyRouter,
        channels: Channels,
        observer: AttemptObserver,
        clocks: Clocks,
        holding: Holding | None = None,
        that_have: Callable[[PortName], frozenset[str] | None] = lambda port: None,
    ) -> None:
        """`holding`: where requests wait for room; None: none does. `that_have`: the workers that have a port of this
        kind; None: all."""
        self._that_have = that_have
        self._router, self._channels, self._observer, self._clocks = router, channels, observer, clocks
        self._holding = holding
        self.counts: Counter[tuple[str, str]] = Counter()
        """What was done beside sending requests once, by what and result."""
        self.latencies = AttemptLatencies()
        self._settings = ProxySettings()
        self._make_anew()

    def configure(self, settings: ProxySettings) -> None:
        """From now on; what stays the same goes on as it is."""
        before, self._settings = self._settings, settings
        same = (before.proxy.retries, before.proxy.breaker, before.constants) == (
            settings.proxy.retries,
            settings.proxy.breaker,
            settings.constants,
        )
        if not same:
            self._make_anew()

    def _make_anew(self) -> None:
        constants = self._settings.constants
        self._retries = Share(constants.retry_share, constants.retry_burst)
        self._hedges = Share(constants.hedge_share, _HEDGE_BURST)
        self.breakers = Breakers(self._settings.proxy.breaker.failures, constants.breaker_open_s)

    async def infer(self, arrived: Arrived) -> ProxyAnswer:
        """The answer to one inference: the first that succeeds, or the last that was tried."""
        self._retries.earn()
        tried: set[str] = set()
        answer: ProxyAnswer | None = None
        attempts = 0
        while answer is None or await self.may_go_on(arrived, answer, attempts, tried):
            try:
                decision = await self.place(arrived, tried)
            except RoutingError as error:
                return answer or self.refused(error)
            tried.add(decision.worker)
            answer = await self._hedged(arrived, decision, tried)
            attempts += 1
        return answer

    async def may_go_on(self, arrived: Arrived, answer: ProxyAnswer, attempts: int, tried: set[str]) -> bool:
        """Whether there is to be another attempt after so many, the last of which came to `answer`; waits for it."""
        if attempts >= self._settings.proxy.retries.max_attempts or not _again(arrived, answer):
            return False
        return await self._pause(arrived, attempts, tried)

    async def _pause(self, arrived: Arrived, attempt: int, tried: set[str]) -> bool:
        if tried.issuperset(self._names(arrived.call.port)):
            self.counts["retries", "no_worker"] += 1
            return False
        if not self._retries.take():
            self.counts["retries", "no_budget"] += 1
            return False
        pause_s = wait_s(self._settings.constants, attempt, unit(mix(self._router.next_number)))
        if self._clocks.now() + pause_s >= arrived.deadline_s:
            self.counts["retries", "no_time"] += 1
            return False
        await asyncio.sleep(pause_s)
        self.counts["retries", "made"] += 1
        return True

    async def place(self, arrived: Arrived, tried: Iterable[str] = ()) -> Decision:
        """Pick a worker. A request that is held waits here for its first one; further attempts do not wait again."""
        start_s = self._clocks.stopwatch()
        decision, refused, waited_s = None, None, 0.0
        try:
            if not tried and self._holding is not None and self._holding.waiting.holds(arrived.call.request):
                future = self._held(arrived, self._holding)
                held_since_s = self._clocks.stopwatch()
                decision = await self._outcome(arrived, future)
                waited_s = self._clocks.stopwatch() - held_since_s
            else:
                decision = self._route(arrived, tried)
            return decision
        except RoutingError as error:
            refused = error
            raise
        finally:
            if decision is not None or (refused is not None and not tried):
                self._observer.placed(arrived, decision, refused, self._clocks.stopwatch() - start_s - waited_s)

    def _held(self, arrived: Arrived, holding: Holding) -> asyncio.Future[Decision | RoutingError]:
        """Who waits may go to workers whose breakers are closed as it begins to wait, if there are such."""
        request = arrived.call.request
        return self._sparing(arrived.call, (), lambda among: holding.ask(request, among, len(arrived.data)))

    async def _outcome(self, arrived: Arrived, future: asyncio.Future[Decision | RoutingError]) -> Decision:
        try:
            outcome = await future
        except asyncio.CancelledError:
            # The client may leave in the moment in which a worker is found, and counted as sent to.
            if future.done() and not future.cancelled() and isinstance(left := future.result(), Decision):
                self._observer.placed(arrived, left, None, 0.0)
                self._observer.attempted(Finished(left.number, left.worker, None, *OF_ABORTED["client"]))
            raise
        if isinstance(outcome, RoutingError):
            raise outcome
        self.breakers.sent(arrived.call.request.model, outcome.worker, outcome.number)
        return outcome

    def _route(self, arrived: Arrived, tried: Iterable[str]) -> Decision:
        """A worker that was not tried, and whose breaker is closed if there is one such; raises as the router does."""
        request, now_s = arrived.call.request, self._clocks.now()
        decision = self._sparing(arrived.call, tried, lambda among: self._router.route(request, now_s, among))
        self.breakers.sent(request.model, decision.worker, decision.number)
        return decision

    def _sparing(self, call: Call, tried: Iterable[str], ask: Callable[[frozenset[str] | None], Found]) -> Found:
        """What is found among the workers with its port that were not tried and whose breakers are closed, if there are
        such; a sequence has one worker, whatever its breaker."""
        left_out, request = frozenset(tried), call.request
        shut = frozenset() if request.sequence else self.breakers.shut(request.model, self._clocks.now())
        try:
            return ask(self._but(shut | left_out, call.port))
        except NoEligibleWorker:
            if not shut:
                raise
            # All have failed: then trying is no worse than refusing.
            return ask(self._but(left_out, call.port))

    def expected_s(self, request: Request) -> float | None:
        """How long the best worker is expected to take; None: none may serve the request."""
        try:
            view = self._router.view(request, self._clocks.now())
        except RoutingError:
            return None
        return float(view.completion_s[view.mask].min())

    def _but(self, left_out: frozenset[str], port: PortName) -> frozenset[str] | None:
        return self._names(port) - left_out if left_out else self._that_have(port)

    def _names(self, port: PortName) -> frozenset[str]:
        those = self._that_have(port)
        return frozenset(self._router.fleet.names) if those is None else those

    def objection(self, worker: str, message: bytes) -> str:
        """Why a further message of a stream may not go to its worker, by the model table; empty: it may."""
        fleet = self._router.fleet
        row = fleet.index.get(worker)
        if row is None or not fleet.settings.models:
            return ""
        try:
            fields = read(message).fields
        except OutOfBoundsError as error:
            return str(error)  # a Triton may read what is not read here
        model, version = (str(*fields[name]) for name in ("model_name", "model_version"))
        at = fleet.workers[row]
        if not any(table_objections(at, fleet.settings.models.get(model), model, version, at.versions.get(model, ()))):
            return ""
        return f"the worker of this stream may not serve model {shown(model)} in this version; open another stream"

    def refused(self, error: RoutingError) -> ProxyAnswer:
        answer = refusal(error)
        if not isinstance(error, Shed):
            return answer
        # Those that are turned away together must not come back together.
        return pushback(answer, self._settings.constants.pushback_s * (0.5 + unit(mix(self._router.next_number))))

    async def _hedged(self, arrived: Arrived, decision: Decision, tried: set[str]) -> ProxyAnswer:
        """One attempt, and a second beside it where the first takes longer than most."""
        slow_s = self._slow_s(arrived)
        if slow_s is None:
            return await self._attempt(arrived, decision)
        self._hedges.earn()
        start_s = self._clocks.now()
        running = {asyncio.create_task(self._attempt(arrived, decision))}
        try:
            done, running = await asyncio.wait(running, timeout=slow_s)
            if not done and (second := await self._second(arrived, tried)) is not None:
                running.add(asyncio.create_task(self._attempt(arrived, second)))
            answer = done.pop().result() if done else None
            while running and (answer is None or answer.code != OK):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                answer = min((each.result() for each in done), key=lambda each: each.code)
            assert answer is not None
            if len(tried) > 1 and answer.code == OK:
                won = answer.worker != decision.worker
                self.counts["hedges", "won" if won else "lost"] += 1
                if won and running:
                    # At least so long. Left out, what is slow would not count as slow, and ever more would get a copy.
                    self.latencies.took(arrived.call.request.model, self._clocks.now() - start_s)
            return answer
        finally:
            for each in running:
                each.cancel()

    def _slow_s(self, arrived: Arrived) -> float | None:
        if not (arrived.hedged and arrived.repeatable) or arrived.call.request.sequence:
            return None
        usual_s = self.latencies.quantile_s(arrived.call.request.model, _SLOW_SHARE)
        return None if usual_s is None else max(usual_s, self._settings.constants.hedge_min_s)

    async def _second(self, arrived: Arrived, tried: set[str]) -> Decision | None:
        if not self._hedges.take():
            self.counts["hedges", "no_budget"] += 1
            return None
        try:
            decision = await self.place(arrived, tried)
        except RoutingError:
            self.counts["hedges", "no_worker"] += 1
            return None
        tried.add(decision.worker)
        return decision

    async def _attempt(self, arrived: Arrived, decision: Decision) -> ProxyAnswer:
        clocks, start_s = self._clocks, self._clocks.now()
        answer = ProxyAnswer(CANCELLED, by="client")
        try:
            answer = await self._send(arrived, decision.worker)
        except asyncio.CancelledError:
            answer = ProxyAnswer(CANCELLED, by="deadline" if clocks.now() >= arrived.deadline_s else "client")
            raise
        finally:
            self.ended(arrived, decision, answer, clocks.now() - start_s)
        return replace(
            answer, latency_s=clocks.now() - start_s if answer.code == OK else math.nan, policy=decision.policy
        )

    def ended(self, arrived: Arrived, decision: Decision, answer: ProxyAnswer, latency_s: float) -> None:
        """One inference, for a tally of how long they take too."""
        outcome = outcome_of(answer)
        if outcome[0]:
            self.latencies.took(arrived.call.request.model, latency_s)
        self.finished(arrived, decision, outcome, latency_s)

    def begins(self, arrived: Arrived, decision: Decision) -> None:
        """The answer of a language model does."""
        self._observer.first_token(arrived.call, decision)

    def finished(
        self,
        arrived: Arrived,
        decision: Decision,
        outcome: Verdict,
        latency_s: float | None,
        output_tokens: float = 0.0,
        said_s: float = math.nan,
        cached_tokens: float = 0.0,
    ) -> None:
        """The worker that was decided on has done with a request; as `Finished` says it."""
        ok, void = outcome
        good = None if void else ok
        request = arrived.call.request
        self.breakers.ended(request.model, decision.worker, decision.number, good, self._clocks.now())
        answer = output_tokens, said_s, cached_tokens
        finished = Finished(decision.number, decision.worker, latency_s, ok, void, *answer)
        self._observer.attempted(finished)

    def channel(self, worker: str) -> grpc.aio.Channel | ProxyAnswer:
        """To a worker; or the answer where it has just left."""
        try:
            return self._channels.of(worker)
        except UnknownWorkerError:
            return ProxyAnswer(UNAVAILABLE, UNREACHED, worker=worker, unexecuted=True, by="worker")

    async def _send(self, arrived: Arrived, worker: str) -> ProxyAnswer:
        channel = self.channel(worker)
        if isinstance(channel, ProxyAnswer):
            return channel
        left_s = arrived.deadline_s - self._clocks.now()
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INFER)
        rpc = method(arrived.data, timeout=left_s if left_s < math.inf else None, metadata=arrived.metadata)
        try:
            data = await rpc
            initial, trailing = await rpc.initial_metadata(), await rpc.trailing_metadata()
            return ProxyAnswer(OK, "", data, worker, passed_on(initial or ()), passed_on(trailing or ()))
        except grpc.aio.AioRpcError as error:
            return failed(error, worker)
        finally:
            rpc.cancel()


def wait_s(constants: ProxyConstants, attempt: int, chance: float) -> float:
    """Before attempt number `attempt` (from 1 for the second); `chance`, from 0 to 1, spreads those that failed
    together."""
    most = min(constants.retry_max_s, constants.retry_base_s * 2.0 ** min(attempt, 30))
    return most * chance


def _again(arrived: Arrived, answer: ProxyAnswer) -> bool:
    if arrived.call.request.sequence:
        return False
    if answer.unexecuted:
        return answer.code != OK
    return arrived.repeatable and answer.code in (UNAVAILABLE, CANCELLED)
