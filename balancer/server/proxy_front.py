"""The front end `proxy` of one process: its parts, wired."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import grpc
from prometheus_client.core import Metric

from balancer.bounds import OutOfBoundsError
from balancer.channels.channels import Links
from balancer.config.config import Config
from balancer.discovery.workers import WorkerSpec
from balancer.extproc.inference_bytes import pinned_version
from balancer.extproc.kserve import Call, Kind
from balancer.extproc.pick_service import TurnedAway
from balancer.extproc.picker import Pick, Picker
from balancer.extproc.prompts import Usage
from balancer.extproc.responses import OF_ABORTED, verdict
from balancer.proxy.attempts import Attempts, Clocks
from balancer.proxy.batching import Batching
from balancer.proxy.inflating import Inflating
from balancer.proxy.messages import Arrived, ProxyAnswer
from balancer.proxy.prompts.forwarded import Means, PromptEnd
from balancer.proxy.prompts.service import Prompts
from balancer.proxy.rest.service import Rest
from balancer.proxy.service import Proxy
from balancer.proxy.settings import ProxySettings
from balancer.proxy.sharing import Callers, Sharing
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.errors import RoutingError
from balancer.scheduler.events import Finished
from balancer.server.metrics.scraped import counter, gauge
from balancer.server.recorder import Recorder
from balancer.server.tally import Ended, Measured

_COUNTED = {
    "retries": "Further attempts at a request that failed, by what became of the wish",
    "hedges": "Second copies of slow requests, by what became of them",
    "once": "Requests of models that execute an id once, by whether the id was new",
    "cache": "Requests of models whose answers are kept, by whether one served",
    "cascades": "Requests for a name that several models may serve, by the model that answered",
    "confidence": "Answers that a more accurate model may follow, by how sure they were, and why none followed",
    "compressed": "Compressed requests, by whether there was room to inflate them",
    "prompts": "Requests of OpenAI's API that were refused, as others took all the room for bodies",
    "resumed": "Streams of language models whose worker died, by what became of the rest",
    "batches": "Joined requests that were sent, what was joined in them, and those that had to be sent apart",
}
_HTTP_OK = 200
"""That every answer of gRPC has."""


class ProxyFront:
    """Forwards inferences for Envoy. With another front end it has all parts, and serves nothing."""

    def __init__(
        self,
        config: Config,
        recorder: Recorder,
        clock: Callable[[], float],
        ready: Callable[[], bool],
        links: Links,
        picker: Picker,
    ) -> None:
        self._forwards = config.forwards
        self._models = None if config.envoy.frontend == "proxy" else frozenset(config.envoy.forwarded)
        clocks, listener = Clocks(clock, time.perf_counter), _Outcomes(recorder, clock)
        self.attempts = Attempts(
            recorder.router,
            links.channels,
            listener,
            clocks,
            picker.holding,
            picker.that_have,
        )
        counts = self.attempts.counts
        fleet = recorder.router.fleet
        self._callers = Callers()
        self._batching = Batching(
            self.attempts,
            lambda model, version: int(fleet.eligible(model, version, clock()).sum()),
            clocks,
            self.attempts.latencies,
            counts,
            self._callers,
        )
        self.sharing = Sharing(self._batching, clocks, counts, self._callers)
        inflating = Inflating(int(config.envoy.request_buffer_limit_bytes), counts)
        version_of = partial(pinned_version, fleet)
        self.proxy = Proxy(
            self.attempts,
            self.sharing,
            listener,
            clocks,
            ready,
            recorder.splits,
            inflating,
            version_of,
            picker.shares,
        )
        failed = partial(recorder.internal_errors.caught, "proxy")
        self.rest = Rest(self.proxy, failed, serves=self._forwards)
        self.prompts = Prompts(
            self.proxy,
            Means(self.attempts, links.openai, links.rest, listener, clocks, self.proxy.compare, self.proxy.tenants),
            picker.shares,
            failed,
            serves=config.envoy.frontend == "proxy",
        )
        self.by_http = self.rest, self.prompts
        if self._forwards:
            recorder.metrics.register(lambda: _metrics(self.attempts, self.sharing))

    def configure(self, settings: ProxySettings) -> None:
        self.attempts.configure(settings)
        self._callers.configure(settings)
        self._batching.configure(settings)
        self.sharing.configure(settings)
        self.proxy.configure(settings)
        self.prompts.configure(settings)

    def workers(self, workers: Sequence[WorkerSpec]) -> None:
        self.attempts.breakers.keep(frozenset(worker.name for worker in workers))

    def turned_away(self, call: Call, counted: bool) -> TurnedAway | None:
        """As of `TenantLimits`, of a request that Envoy asks about, since it could not be forwarded."""
        if not self._forwards or call.kind not in (Kind.INFERENCE, Kind.STREAM):
            return None
        forwarded = self._models is None or call.request.model in self._models
        return self.proxy.tenants.turned_away(call, counted) if forwarded else None

    async def finish(self) -> None:
        if self._forwards:
            await self.proxy.finish()

    def add_to(self, server: grpc.aio.Server) -> None:
        if self._forwards:
            server.add_generic_rpc_handlers((self.proxy.handler(),))


def _metrics(attempts: Attempts, sharing: Sharing) -> Iterator[Metric]:
    for name, says in _COUNTED.items():
        counts = {result: count for (what, result), count in attempts.counts.items() if what == name}
        yield counter(f"balancer_proxy_{name}", says, counts, "result")
    breakers = attempts.breakers
    yield counter("balancer_proxy_breakers_opened", "Times that a breaker opened", breakers.opened)
    states = {of: 1.0 if state == "open" else 0.5 for of, state in breakers.states().items()}
    says = "Breakers that are not closed; 1: no request goes there, 0.5: one tries"
    yield gauge("balancer_proxy_breaker_open", says, states, "model", "worker")
    yield gauge("balancer_proxy_cache_bytes", "Answers that serve equal requests", sharing.cache.kept_bytes)
    yield gauge("balancer_proxy_once_bytes", "Answers that are kept for ids", sharing.once.kept_bytes)
    yield gauge("balancer_proxy_once_entries", "Ids that are remembered", len(sharing.once))


class _Outcomes:
    """Listens to the proxy (`ProxyListener`): takes what it did to the recorder, and so to router, metrics and logs."""

    def __init__(self, recorder: Recorder, clock: Callable[[], float]) -> None:
        self._recorder, self._clock = recorder, clock

    def placed(self, arrived: Arrived, decision: Decision | None, error: RoutingError | None, seconds: float) -> None:
        self._recorder.picked(arrived.call, Pick(b"", decision, error), seconds)

    def attempted(self, finished: Finished) -> None:
        self._recorder.observe(finished, self._clock())

    def answered(self, arrived: Arrived, answer: ProxyAnswer, sent_bytes: int, stream: bool) -> None:
        """A request ended: counted once, however many attempts it took."""
        if arrived.call.streams_tokens and answer.worker and answer.messages:
            usage, model = Usage(0.0, 0.0, float(answer.messages)), arrived.call.request.model
            self._recorder.take_answer(model, answer.worker, usage, sent_bytes, math.nan, answer.answering_s)
        self._count(arrived, answer, (answer.code, _HTTP_OK), sent_bytes, inference=not stream)

    def first_token(self, call: Call, decision: Decision) -> None:
        self._recorder.first_token(call, decision)

    def answered_prompt(self, arrived: Arrived, end: PromptEnd) -> None:
        """As `answered`."""
        if end.usage is not None:
            model = arrived.call.request.model
            self._recorder.take_answer(model, end.worker, end.usage, end.sent_bytes, math.nan, end.answering_s)
        self._count(arrived, end, (-1, end.http_status), end.sent_bytes, inference=True)

    def _count(
        self,
        arrived: Arrived,
        answer: ProxyAnswer | PromptEnd,
        statuses: tuple[int, int],
        sent_bytes: int,
        *,
        inference: bool,
    ) -> None:
        """`statuses`: of gRPC, -1 where it was not by that, and of HTTP."""
        grpc_status, http_status = statuses
        ok, void = OF_ABORTED[answer.by] if answer.by else verdict(grpc_status, http_status)
        ended = Ended(
            model=arrived.call.request.model,
            worker=answer.worker,
            grpc_status=grpc_status,
            http_status=http_status,
            inference=inference,
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
        self._recorder.metrics.refusals.labels("tenant").inc()

    def refused(self, error: OutOfBoundsError) -> None:
        self._recorder.refused(error)
