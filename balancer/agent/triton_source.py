"""What one Triton says of itself, put together from its `/metrics` page and three calls of its gRPC service.

Readiness comes from RepositoryIndex, and not from the health calls: ServerReady is false while any model loads, unloads
or is broken, though the others serve, and over HTTP it stays true while the server shuts down, when RepositoryIndex
fails at once. No HTTP connection is kept to Triton's inference port: an idle one delays the server's exit.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from balancer.agent.batch_totals import Batches, BatchTotals
from balancer.agent.metrics_page import (
    MetricsError,
    MetricsPage,
    MetricsParser,
    MetricsUnavailableError,
    ModelKey,
    ModelMetrics,
    memory_tokens,
)
from balancer.agent.server_state import ProblemLog, ServerState, next_incarnation
from balancer.balancer_tls import BalancerTls, credentials
from balancer.scheduler.events import ModelReport

_MIN_WINDOW_S = 0.15
_MAX_WINDOW_S = 2.0
_RARE_S = 0.06
"""Between two looks: more than at 20 a second."""
_SERVICE_TIMES = 4.0
"""Service times that the window spans: the counter moves only when a request ends, so a shorter one sees jumps."""


class ExecutingEstimate:
    """Mean number of requests of one model executing over the last 0.15 to 2 s (four service times)."""

    def __init__(self) -> None:
        # (seconds, microseconds of compute, requests), oldest first.
        self._samples: deque[tuple[float, float, float]] = deque()
        self._window_s = _MIN_WINDOW_S

    def observe(self, now_s: float, compute_us: float, succeeded: float, at_most: float) -> float:
        """Take in the counters, and return the estimate.

        Args:
            now_s: When they were read, on any clock that only grows.
            compute_us: Microseconds of compute in all, of every request (a batch of 8 counts 8 times).
            succeeded: Requests that this was the compute of.
            at_most: Requests that can execute at once.
        """
        samples = self._samples
        samples.append((now_s, compute_us, succeeded))
        while len(samples) > 2 and samples[1][0] <= now_s - self._window_s:
            samples.popleft()
        start_s, start_us, start_succeeded = samples[0]
        busy_s = (compute_us - start_us) * 1e-6
        if now_s <= start_s or busy_s <= 0.0:
            return 0.0
        if samples[1][1:] == samples[0][1:] and samples[1][0] - start_s > _RARE_S:
            # Looked at rarely while nothing happened: the window begins in between, where the counters were the same.
            start_s = max(start_s, now_s - self._window_s)
        if succeeded > start_succeeded:
            service_s = busy_s / (succeeded - start_succeeded)
            self._window_s = min(max(_SERVICE_TIMES * service_s, _MIN_WINDOW_S), _MAX_WINDOW_S)
        return min(busy_s / (now_s - start_s), at_most)


logger = logging.getLogger(__name__)

_INDEX_PERIOD_S = 0.2
_STATISTICS_SHARE = 0.05
"""Of the time in which a call for the statistics is under way: with many models and batch sizes it takes long."""
_STATISTICS_PAUSE_S = (0.02, 0.25)
"""At least and at most, between two calls. Where models share a device, who ended since the last call tells what of the
time was spent waiting for it; after a long pause that is guesswork, and service times are taken to be too long."""
_METRICS_TIMEOUT_S = 0.5
_CALL_TIMEOUT_S = 1.0
_CHANNEL_OPTIONS = (
    # A restarted Triton should be found within a second; gRPC's own back-off would grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Statistics of many models and batch sizes.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)


@dataclass(frozen=True, slots=True)
class _Shape:
    max_batch_rows: int
    instances: int


class TritonSource:
    """Reads one Triton. `watch` must run beside it; `read` is called for every report.

    The incarnation is the wall clock's milliseconds when it began, so it grows over restarts of the agent too, as long
    as the clock is not set back.
    """

    def __init__(
        self,
        grpc_address: str,
        metrics_address: str,
        tls: BalancerTls | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Addresses are `host:port`; `tls`: of the gRPC port, None where it has none; `pause`: waits between two calls
        for the index. Nothing is opened yet."""
        self._pause = pause
        self._page = MetricsPage(metrics_address, _METRICS_TIMEOUT_S)
        self._parser = MetricsParser()
        self._grpc_address = grpc_address
        self._tls = tls
        self._incarnation = next_incarnation(0)
        self._index: dict[ModelKey, bool] = {}
        self._index_answered = False
        self.looked = asyncio.Event()
        """Set when the first call for the index has ended, with or without an answer. Before that no model is known."""
        self._shapes: dict[ModelKey, _Shape] = {}
        self._metrics: dict[ModelKey, ModelMetrics] = {}
        self._executing: dict[ModelKey, ExecutingEstimate] = {}
        self._batches = BatchTotals()
        self._finished = -1.0
        self._statistics_due = asyncio.Event()
        self._statistics_due.set()
        self._gone = False
        self._problems = ProblemLog(logger, "Triton")

    async def watch(self) -> None:
        async with await self._channel() as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch_index(stub))
                group.create_task(self._watch_statistics(stub))

    async def _channel(self) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(self._grpc_address, options=_CHANNEL_OPTIONS)
        name = ("grpc.ssl_target_name_override", self._tls.server_name)
        trusted = await asyncio.to_thread(credentials, self._tls)
        return grpc.aio.secure_channel(self._grpc_address, trusted, options=(*_CHANNEL_OPTIONS, name))

    async def read(self) -> ServerState:
        """Fetch the metrics page and return all that is known; not ready where Triton does not answer."""
        try:
            metrics = self._parser.parse(await self._page.fetch())
        except (MetricsUnavailableError, MetricsError) as error:
            self._problems.note("metrics", str(error))
            if isinstance(error, MetricsUnavailableError) and error.gone:
                # Whatever answers next is another process, ready once its own index says so.
                self._gone = True
                self._index_answered = False
                self._shapes.clear()
            return ServerState(False, self._incarnation, (), reached=False, gone=self._gone)
        self._problems.note("metrics", "")
        if self._gone or _fell(self._metrics, metrics):
            self._gone = False
            self._renew()
        self._metrics = metrics
        finished = sum(model.succeeded + model.failed for model in metrics.values())
        if finished != self._finished:
            self._finished = finished
            self._statistics_due.set()
        now_s = time.monotonic()
        memory = memory_tokens(metrics)
        models = tuple(self._model(key, loaded, memory, now_s) for key, loaded in self._index.items())
        return ServerState(ready=self._index_answered, incarnation=self._incarnation, models=models)

    def close(self) -> None:
        self._page.close()

    def _model(self, key: ModelKey, loaded: bool, memory: tuple[int, int], now_s: float) -> ModelReport:
        metrics = self._metrics.get(key) or ModelMetrics()
        shape = self._shapes.get(key)
        at_most = shape.max_batch_rows * shape.instances if shape else 1
        estimate = self._executing.get(key)
        if estimate is None:
            estimate = self._executing[key] = ExecutingEstimate()
        return ModelReport(
            model=key[0],
            version=key[1],
            ready=loaded and shape is not None,
            pending=max(metrics.pending, 0.0),
            executing=estimate.observe(now_s, metrics.compute_us, metrics.succeeded, at_most),
            succeeded=int(metrics.succeeded),
            failed=int(metrics.failed),
            max_batch_rows=shape.max_batch_rows if shape else 1,
            instances=shape.instances if shape else 1,
            batches=self._batches.of(key),
            memory_tokens=memory[0],
            held_tokens=memory[1],
        )

    def _renew(self) -> None:
        """Counters start anew: begin the next incarnation, and forget what the last one measured."""
        self._incarnation = next_incarnation(self._incarnation)
        self._statistics_due.set()
        self._executing.clear()
        self._batches.clear()
        logger.info("Triton's counters started anew: incarnation %d", self._incarnation)

    async def _watch_index(self, stub: Any) -> None:
        while True:
            try:
                await self._read_index(stub)
                self._problems.note("index", "")
            except grpc.aio.AioRpcError as error:
                self._index_answered = False
                self._problems.note("index", f"{self._grpc_address}: {error.code().name} {error.details()}")
            self.looked.set()
            await self._pause(_INDEX_PERIOD_S)

    async def _read_index(self, stub: Any) -> None:
        response = await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=_CALL_TIMEOUT_S)
        # Models that were never loaded are listed without a version.
        index = {(entry.name, entry.version): entry.state == "READY" for entry in response.models if entry.version}
        for key, loaded in index.items():
            if not loaded:
                # It may come back with another configuration, and will with new statistics.
                self._shapes.pop(key, None)
                self._batches.ended(key)
            elif key not in self._shapes:
                await self._read_shape(stub, key)
        for key in self._executing.keys() - index.keys():
            del self._executing[key]
            self._batches.ended(key)
        if index != self._index:
            self._statistics_due.set()
        self._index, self._index_answered = index, True

    async def _read_shape(self, stub: Any, key: ModelKey) -> None:
        request = service_pb2.ModelConfigRequest(name=key[0], version=key[1])
        try:
            config = (await stub.ModelConfig(request, timeout=_CALL_TIMEOUT_S)).config
        except grpc.aio.AioRpcError as error:
            # Unloaded since, say. The model is not ready without its configuration, but the others may be.
            logger.info("no configuration of model %s version %s: %s", *key, error.details())
            return
        # An instance group on GPUs has `count` instances on each; an ensemble has no groups.
        instances = sum(group.count * max(len(group.gpus), 1) for group in config.instance_group)
        self._shapes[key] = _Shape(max(config.max_batch_size, 1), max(instances, 1))

    async def _watch_statistics(self, stub: Any) -> None:
        while True:
            await self._statistics_due.wait()
            self._statistics_due.clear()
            began_s = time.monotonic()
            try:
                await self._read_statistics(stub)
                pause_s = statistics_pause_s(time.monotonic() - began_s)
            except grpc.aio.AioRpcError as error:
                # Whether Triton is ready is the index's to say.
                self._statistics_due.set()
                pause_s = _STATISTICS_PAUSE_S[1]
                logger.debug("no statistics from %s: %s", self._grpc_address, error.details())
            await asyncio.sleep(pause_s)

    async def _read_statistics(self, stub: Any) -> None:
        incarnation = self._incarnation
        response = await stub.ModelStatistics(service_pb2.ModelStatisticsRequest(), timeout=_CALL_TIMEOUT_S)
        if incarnation != self._incarnation:
            # Of the Triton before; the new incarnation has made them due again.
            return
        for model in response.model_stats:
            key = (model.name, model.version)
            # An answer may have been under way while the index said that the model is being unloaded.
            if self._index.get(key):
                self._batches.update(key, _batches(model))


def statistics_pause_s(took_s: float) -> float:
    """Seconds until the statistics may be read again, after a call that took so long."""
    least_s, most_s = _STATISTICS_PAUSE_S
    return min(max(took_s * (1 / _STATISTICS_SHARE - 1), least_s), most_s)


def _fell(before: dict[ModelKey, ModelMetrics], now: dict[ModelKey, ModelMetrics]) -> bool:
    for key, new in now.items():
        old = before.get(key)
        if old is not None and (
            new.succeeded < old.succeeded or new.failed < old.failed or new.compute_us < old.compute_us
        ):
            return True
    return False


def _batches(model: Any) -> Batches:
    """Of one entry of ModelStatistics; durations there are nanoseconds in all, of executions and not of requests."""
    return tuple(
        (
            int(batch.batch_size),
            int(batch.compute_infer.count),
            (batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns) * 1e-9,
        )
        for batch in model.batch_stats
    )
