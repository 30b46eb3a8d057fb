"""Keeps what is shared with Envoys alive: signs of life, what they are told, and what they tell."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from balancer.discovery.workers import WorkerSpec
from balancer.front.router import SharedRouter
from balancer.front.tables import PERIOD_S
from balancer.gateway.kserve import HeaderNames
from balancer.operate.metrics import Metrics
from balancer.operate.native_counts import NativeCounts
from balancer.operate.native_outcomes import NativeOutcomes
from balancer.operate.native_recording import NativeRecording
from balancer.operate.recorder import Recorder

logger = logging.getLogger(__name__)

_BEAT_S = 0.02
_TELL_EVERY_S = 0.1
"""For what people see: many outcomes at once cost half as much each. The ring holds as many as 160,000 a second."""
_GIVE_UP_EVERY_S = 1.0


class NativeFront:
    """The balancer's side of the front end `native`."""

    def __init__(self, router: SharedRouter, metrics: Metrics, recorder: Recorder) -> None:
        self._router, self._mistakes = router, recorder.mistakes
        self._outcomes = NativeOutcomes(router, recorder.tally, recorder.decision_lines, recorder.compare)
        router.share_splits(recorder.splits)
        metrics.registry.register(NativeCounts(router))
        metrics.catch_up = self.catch_up
        self._said = ""
        self._given_up_s = self._told_s = 0.0

    def workers(self, workers: Iterable[WorkerSpec]) -> None:
        """Where each is."""
        listed = list(workers)
        self._router.tell(
            {worker.name: worker.grpc_endpoint for worker in listed},
            {worker.name: worker.http_endpoint for worker in listed},
        )

    def configure(self, names: HeaderNames, lines_share: float) -> None:
        """Headers that may say what a body does not, and the share of decisions that the log tells of."""
        self._router.state.tell_lines(lines_share)
        self._router.read_headers(names)

    async def run(self, stop: asyncio.Event, clock: Callable[[], float], may_pick: Callable[[], bool]) -> None:
        """Until `stop` is set."""
        while not stop.is_set():
            try:
                more = self._once(clock(), may_pick())
            except Exception as error:  # Envoys would take the balancer for dead
                self._mistakes.caught("native", error)
                more = False
            await asyncio.sleep(0 if more else _BEAT_S)

    async def publish(self, stop: asyncio.Event, clock: Callable[[], float]) -> None:
        """Until `stop` is set: have Envoys decide by the answers of a policy that is not compiled."""
        while not stop.is_set():
            wait_s = PERIOD_S
            try:
                wait_s = self._router.publish_tables(clock())
            except Exception as error:  # what is not published is asked for
                self._mistakes.caught("native", error)
            await asyncio.sleep(wait_s)

    def catch_up(self) -> None:
        """Count what ended so far, for whoever looks now."""
        try:
            self._take_outcomes()
        except Exception as error:  # what can be seen is better than nothing
            self._mistakes.caught("native", error)

    def _take_outcomes(self) -> None:
        for batch in self._router.state.outcomes():
            self._outcomes.take(batch)

    def _once(self, now_s: float, may_pick: bool) -> bool:
        """Whether there is more to be read at once."""
        state = self._router.state
        state.beat()
        self._router.serve(may_pick)
        why = self._router.asked_because
        if why and why != self._said:
            logger.warning("Envoy asks the balancer for each request, and does not decide itself: %s", why)
        self._said = why
        self._router.learn()
        if now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            self._take_outcomes()
        for batch in state.lines():
            self._outcomes.lines(batch)
        if now_s - self._given_up_s >= _GIVE_UP_EVERY_S:
            self._given_up_s = now_s
            self._router.give_up(now_s)
        recording = self._router.witness
        return isinstance(recording, NativeRecording) and recording.drain()
