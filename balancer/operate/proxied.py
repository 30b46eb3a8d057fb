"""Takes what the proxy did to the router, the metrics and the logs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from balancer.core.bounds import OutOfBoundsError
from balancer.core.errors import RoutingError
from balancer.core.events import Finished, Void
from balancer.core.router import Decision
from balancer.gateway.picker import Pick
from balancer.gateway.verdict import OF_ABORTED, verdict
from balancer.operate.recorder import Recorder
from balancer.operate.tally import Ended, Measured
from balancer.proxy.messages import Answer, Arrived

_HTTP_OK = 200
"""That every answer of gRPC has."""


class Proxied:
    """Listens to the proxy."""

    def __init__(self, recorder: Recorder, clock: Callable[[], float]) -> None:
        self._recorder, self._clock = recorder, clock

    def placed(self, arrived: Arrived, decision: Decision | None, error: RoutingError | None, seconds: float) -> None:
        """A worker was picked, or none."""
        self._recorder.picked(arrived.call, Pick(b"", decision, error), seconds)

    def attempted(self, decision: Decision, latency_s: float | None, ok: bool, void: str) -> None:
        """An attempt ended."""
        finished = Finished(decision.number, decision.worker, latency_s, ok, cast(Void, void))
        self._recorder.observe(finished, self._clock())

    def answered(self, arrived: Arrived, answer: Answer, sent_bytes: int, stream: bool) -> None:
        """A request ended: counted once, whatever was tried for it."""
        ok, void = OF_ABORTED[answer.by] if answer.by else verdict(answer.code, 0)
        ended = Ended(
            model=arrived.call.request.model,
            worker=answer.worker,
            grpc_status=answer.code,
            http_status=_HTTP_OK,
            inference=not stream,
            picked=True,
            ok=ok,
            void=void,
            by=answer.by,
            policy=answer.policy,
        )
        at_s = (self._clock(),)
        if not answer.worker:
            self._recorder.tally.unserved(ended, at_s)
            return
        measured = Measured(at_s, (answer.latency_s,), (math.nan,), sent_bytes, answer.received_bytes)
        self._recorder.tally.served(ended, measured)

    def over_limit(self) -> None:
        """A tenant sends too many."""
        self._recorder.metrics.refusals.labels("tenant").inc()

    def refused(self, error: OutOfBoundsError) -> None:
        """A request was out of bounds."""
        self._recorder.refused(error)
