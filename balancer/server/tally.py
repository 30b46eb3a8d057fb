"""Counts what became of requests, whoever tells of it: Envoy's access log, another gateway, or Envoy's module."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import isnan, nan
from typing import NamedTuple

import numpy as np

from balancer.extproc.responses import By, verdict
from balancer.kernel.settings import Settings
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.canary.selector import PolicySelector
from balancer.scheduler.errors import NoEligibleWorker, RoutingError, Shed, UnknownModel
from balancer.scheduler.events import Void
from balancer.scheduler.keys import STICKY
from balancer.scheduler.outliers import Outliers
from balancer.server.internal_errors import InternalErrors
from balancer.server.logs import Reason
from balancer.server.metrics import Metrics
from policies.base import FloatArray

_MOST = 20_000
"""Outcomes kept: beyond that many in the window, the newest stand for all."""


class OutcomeKey(NamedTuple):
    model: str
    worker: str
    """That served; empty: none."""
    policy: str
    """Whose pick it was; empty: nobody's of this process."""


class RecentOutcomes(NamedTuple):
    of: OutcomeKey
    ok: bool
    picked: bool
    latency_s: FloatArray
    """Of each; NaN: not measured."""


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    rate_per_s: float
    errors: int
    p50_s: float | None
    """NaN (as JSON: null) where nothing was measured, as the next."""
    p99_s: float | None


class Recent:
    """A sliding window over the outcomes of inferences; probes and questions about models are no traffic."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._outcomes: deque[tuple[float, float, bool, bool, OutcomeKey]] = deque(maxlen=_MOST)

    def add(self, at_s: Sequence[float], latency_s: Sequence[float], ok: bool, picked: bool, of: OutcomeKey) -> None:
        """Take in the outcomes of inferences; without a latency (NaN) one counts towards rate and errors alone.

        `ok` is False where the worker or the gateway failed, not where an invalid request was refused.
        """
        self._outcomes.extend(zip(at_s, latency_s, repeat(ok), repeat(picked), repeat(of)))
        # Else the memory of a process that nobody looks at would grow until there is no more room.
        self._let_go(at_s[-1])

    def parts(self, now_s: float) -> tuple[float, list[RecentOutcomes]]:
        """How long the window that ends now is, in seconds, less where there were too many; its outcomes in groups."""
        self._let_go(now_s)
        outcomes = self._outcomes
        span_s = max(now_s - outcomes[0][0] if len(outcomes) == _MOST else self._window_s, 1e-9)
        groups: dict[tuple[OutcomeKey, bool, bool], list[float]] = {}
        for _, latency_s, ok, picked, of in outcomes:
            groups.setdefault((of, ok, picked), []).append(latency_s)
        return span_s, [RecentOutcomes(*alike, np.array(latencies)) for alike, latencies in groups.items()]

    def _let_go(self, now_s: float) -> None:
        outcomes = self._outcomes
        while outcomes and outcomes[0][0] < now_s - self._window_s:
            outcomes.popleft()


def summary(span_s: float, parts: Sequence[RecentOutcomes]) -> TrafficSummary:
    count = sum(len(part.latency_s) for part in parts)
    errors = sum(len(part.latency_s) for part in parts if not part.ok)
    p50_s, p99_s = _quantiles([part.latency_s for part in parts if part.ok])
    return TrafficSummary(count / span_s, errors, p50_s, p99_s)


def picked(parts: Sequence[RecentOutcomes]) -> dict[str, int]:
    """How many requests got their worker from this process, and how many Envoy placed by itself."""
    counts = [(part.picked, len(part.latency_s)) for part in parts]
    by_us = sum(count for picked, count in counts if picked)
    return {"picked": by_us, "without_pick": sum(count for _, count in counts) - by_us}


def _quantiles(latencies_s: Sequence[FloatArray]) -> tuple[float, float]:
    """p50 and p99 of what was measured, as `numpy.quantile` at a tenth of its price; NaN where nothing was."""
    measured = np.concatenate(latencies_s) if latencies_s else np.zeros(0)
    measured = measured[np.isfinite(measured)]
    if not len(measured):
        return math.nan, math.nan
    measured.sort()
    p50_s, p99_s = (_between(measured, share * (len(measured) - 1)) for share in (0.5, 0.99))
    return p50_s, p99_s


def _between(measured: FloatArray, at: float) -> float:
    low = int(at)
    below, above = float(measured[low]), float(measured[min(low + 1, len(measured) - 1)])
    return below + (at - low) * (above - below)


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


QUIET_AFTER_S = 2.0
"""Since the last request that was decided or in flight."""
MOST_PAUSE_S = 0.5
"""Between two reports of an agent."""
_LOOK_S, _QUIET_LOOK_S = 0.025, 0.25
_TICK_S, _QUIET_TICK_S = 0.05, 0.5


class Traffic:
    """Of one router, whoever decides: this process, or Envoys over the same state."""

    def __init__(self, router: AnyRouter, clock: Callable[[], float], ready: Callable[[], bool] = lambda: True) -> None:
        """`clock`: in seconds; before it is `ready`, all is done at full rate."""
        self._router, self._clock, self._ready = router, clock, ready
        self._number = self._revision = -1
        self._seen_s = math.inf
        self._is_due = self._is_quiet = False
        self._woken = asyncio.Event()

    def flows(self) -> bool:
        """Whether requests flow. A request that came and ended since the last call has left its number."""
        now_s, number = self._clock(), self._router.next_number
        if number != self._number or self._router.fleet.queue.in_flight.any() or not self._ready():
            self._number, self._seen_s = number, now_s
        was_quiet, self._is_quiet = self._is_quiet, now_s - self._seen_s >= QUIET_AFTER_S
        if was_quiet and not self._is_quiet:
            self._woken.set()
        return not self._is_quiet

    def noticing(self, may_pick: Callable[[], bool]) -> Callable[[], bool]:
        """`may_pick`, to be called at each request: so the first one after a pause is noticed at once."""

        def noticed() -> bool:
            if self._is_quiet:
                self._seen_s, self._is_quiet = self._clock(), False
                self._woken.set()
            return may_pick()

        return noticed

    def report_pause_s(self) -> float:
        """Seconds that may pass between two reports now; 0: requests flow."""
        return 0.0 if self.flows() else quiet_pause_s(self._router.settings, self._router.selector)

    def tick_soon(self) -> None:
        self._is_due = True
        self._woken.set()

    async def follow(
        self,
        stop: asyncio.Event,
        tick: Callable[[float], Awaitable[None]],
        began: Callable[[], Awaitable[None]],
        internal_errors: InternalErrors,
    ) -> None:
        """Until `stop` is set, call `tick` as time passes and workers change, `began` when requests begin to flow."""
        flows, flowed, due_s = True, True, -math.inf
        while not stop.is_set():
            try:
                now_s, fleet, flows = self._clock(), self._router.fleet, self.flows()
                if flows and not flowed:
                    await began()
                flowed = flows
                if now_s >= due_s or self._is_due or self._revision != fleet.revision:
                    due_s = now_s + (_TICK_S if flows else _QUIET_TICK_S)
                    self._is_due, self._revision = False, fleet.revision
                    await tick(now_s)
            except Exception as error:  # what fails once may well do so at each tick, and requests go on meanwhile
                internal_errors.caught("tick", error)
            if flows:
                await asyncio.sleep(_LOOK_S)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_QUIET_LOOK_S):
                        await self._woken.wait()
                self._woken.clear()


def quiet_pause_s(settings: Settings, selector: PolicySelector | None) -> float:
    """Seconds between two reports while no requests flow: nobody is to take them for old."""
    plan = None if selector is None else selector.plan
    guards = () if plan is None else (plan.guard, plan.guard_new, None if plan.rollout is None else plan.rollout.guard)
    ages_s = [guard.report_age_s / 2 for guard in guards if guard is not None]
    return min(MOST_PAUSE_S, settings.stale_after_s / 3, *ages_s)
