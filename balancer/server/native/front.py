"""Keeps what is shared with Envoys alive: signs of life, what they are told, and what they tell."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric

from balancer.config.config import Config
from balancer.discovery.workers import WorkerSpec, endpoints_by_port
from balancer.extproc.kserve import HeaderNames
from balancer.kernel.compiled.library import Compiled, Library, LibraryError
from balancer.native.envoy_module import Module, ModuleError
from balancer.native.router import SharedRouter
from balancer.native.state import Folder, FolderError
from balancer.scheduler.any_router import AnyRouter
from balancer.scheduler.router import Router
from balancer.server.metrics import Metrics
from balancer.server.metrics.scraped import counter, gauge
from balancer.server.native.outcomes import NativeOutcomes
from balancer.server.native.recording import NativeRecording
from balancer.server.recorder import Recorder

logger = logging.getLogger(__name__)

_BEAT_S, _QUIET_BEAT_S = 0.02, 0.05
"""Well within `STALE_AFTER_S`."""
_QUIET_S = 0.25
_OUTCOMES_EVERY_S = 0.1
"""For what people see: many outcomes at once cost half as much each. The ring holds as many as 160,000 a second."""
_GIVE_UP_EVERY_S = 1.0
_LOOK_EVERY_S = 0.1
"""For requests whose clients keep their workers waiting."""


def router_of(config: Config, seed: int) -> AnyRouter:
    """By the compiled kernel where there is one that fits, and shared with Envoys where that is wanted."""
    policy, settings, folder = config.policy.built, config.settings(), config.shared_folder
    try:
        library = Library()
    except LibraryError as error:
        logger.warning("decisions are made in Python, several times as slowly: %s", error)
        return Router(policy, settings, seed)
    if folder is not None:
        try:
            return SharedRouter(policy, settings, seed, library, Module(library), Folder(folder))
        except (ModuleError, FolderError, OSError) as error:
            logger.warning("envoy.frontend: Envoy will ask the balancer for each request: %s", error)
    return Router(policy, settings, seed, Compiled(library))


_LOST = ("outcomes_lost", "lines_lost", "canary_events_lost", "prompts_lost")


def native_metrics(router: SharedRouter) -> Iterator[Metric]:
    counts = router.state.counts()
    requests = {name: count for name, count in counts.items() if name not in _LOST}
    says = "Requests that Envoy's module saw, by what became of them"
    yield counter("balancer_native_requests", says, requests, "result")
    lost = {name.removesuffix("_lost"): counts[name] for name in _LOST}
    yield counter("balancer_native_lost", "What the module did not tell, since too much of it waited", lost, "what")
    yield gauge("balancer_native_in_flight", "Requests that the module counted in", router.state.in_flight)
    yield counter("balancer_native_states", "States given up since somebody kept the lock", router.replaced)


class NativeFront:
    def __init__(self, router: SharedRouter, metrics: Metrics, recorder: Recorder) -> None:
        self._router, self._internal_errors = router, recorder.internal_errors
        self._outcomes = NativeOutcomes(
            router, recorder.tally, recorder.decision_lines, recorder.compare, recorder.take_answer
        )
        router.directory.share_splits(recorder.splits)
        router.directory.tokens = recorder.shares
        metrics.register(lambda: native_metrics(router))
        metrics.catch_up = self.catch_up
        self._warned_of = ""
        self._worked_s = self._given_up_s = self._outcomes_s = self._looked_s = 0.0

    def workers(self, workers: Iterable[WorkerSpec]) -> None:
        self._router.list_endpoints(endpoints_by_port(workers))

    def configure(self, names: HeaderNames, lines_share: float, limits_tenants: bool = False) -> None:
        """Headers that may say what a body does not, the share of decisions that the log tells of, and whether tenants
        are limited of whom the balancer forwards requests."""
        self._router.state.log_lines(lines_share)
        self._router.read_headers(names, limits_tenants)

    async def run(
        self,
        stop: asyncio.Event,
        clock: Callable[[], float],
        may_pick: Callable[[], bool],
        flows: Callable[[], bool],
    ) -> None:
        """Until `stop` is set. Where no requests flow, as `flows` says, all but the sign of life is given rarely."""
        while not stop.is_set():
            more, pause_s = False, _BEAT_S
            try:
                self._router.state.beat()
                now_s, flowing = clock(), flows()
                pause_s = _BEAT_S if flowing else _QUIET_BEAT_S
                if flowing or now_s - self._worked_s >= _QUIET_S:
                    self._worked_s = now_s
                    more = self._once(now_s, may_pick())
            except Exception as error:  # Envoys would take the balancer for dead
                self._internal_errors.caught("native", error)
            await asyncio.sleep(0 if more else pause_s)

    def catch_up(self) -> None:
        try:
            self._take_outcomes()
        except Exception as error:  # what can be seen is better than nothing
            self._internal_errors.caught("native", error)

    def _take_outcomes(self) -> None:
        for batch in self._router.state.outcomes():
            self._outcomes.take(batch)

    def _once(self, now_s: float, may_pick: bool) -> bool:
        state = self._router.state
        self._router.serve(may_pick)
        why = self._router.not_deciding_because
        if why and why != self._warned_of:
            logger.warning("Envoy asks the balancer for each request, and does not decide itself: %s", why)
        self._warned_of = why
        self._router.learn()
        if now_s - self._outcomes_s >= _OUTCOMES_EVERY_S:
            self._outcomes_s = now_s
            self._take_outcomes()
        for batch in state.lines():
            self._outcomes.lines(batch)
        if now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            self._router.give_up_waiting(now_s)
        if now_s - self._given_up_s >= _GIVE_UP_EVERY_S:
            self._given_up_s = now_s
            self._router.give_up(now_s)
        recording = self._router.observer
        return isinstance(recording, NativeRecording) and recording.drain()
