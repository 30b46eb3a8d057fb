"""Receives what relays say of their workers: the gRPC service `balancer.telemetry.v1.Relays`."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import grpc

from balancer import bounds
from balancer.bounds import OutOfBoundsError, shown
from balancer.reports import report_pb2
from balancer.reports.codec import ReportDecoder
from balancer.reports.intake import EndedError, Intake
from balancer.reports.prompts import encode_prompts, no_prompts
from balancer.reports.silence import SILENCE_S, Silence
from balancer.scheduler.events import SentPrompt

SERVICE = report_pb2.DESCRIPTOR.services_by_name["Relays"].full_name
SHARE = 0.25
"""Of this process's time that all relays' reports may take: what they bring beyond waits with them, where newer
reports take the place of older ones."""

_MESSAGE_S = 0.0001
"""What gRPC takes of the process for a message, beside what we do."""
_LEAST_SLEEP_S = 0.001

_Context = grpc.aio.ServicerContext[report_pb2.RelayedReports, report_pb2.RelayAck]


@dataclass(slots=True)
class _OfWorker:
    decoder: ReportDecoder
    number: int = 0


@dataclass(eq=False, slots=True)
class _Relay:
    """One relay's stream."""

    context: _Context
    task: asyncio.Task[object]
    workers: dict[str, _OfWorker] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why, by worker; to be told."""
    received: int = 0
    granted_pause_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """gRPC takes one message after the other."""
    silent: bool = False

    relayed: ClassVar[bool] = True

    @property
    def peer(self) -> str:
        return self.context.peer()

    def over(self, worker: str, ended: EndedError) -> None:
        if self.workers.pop(worker, None) is not None:
            self.refused[worker] = ended.why

    def give_up(self) -> None:
        self.silent = True
        self.task.cancel()


class RelayCollector:
    """Takes in what relays bring, a message at a time, in turn: no more than `SHARE` of the process's time."""

    def __init__(
        self,
        intake: Intake,
        silence_s: float = SILENCE_S,
        *,
        prompts: Callable[[str], Iterable[SentPrompt]] = no_prompts,
        knows: Callable[[str], bool] = lambda worker: True,
        pause_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """As `Collector`."""
        self.counts, self._intake = intake.counts, intake
        self._silence_s = silence_s
        self._prompts, self._knows = prompts, knows
        self._allowed_pause_s = pause_s
        self._turn = asyncio.Lock()
        self._owed_s = 0.0
        self._relays: set[_Relay] = set()
        self._waking: set[asyncio.Task[None]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service; call it before the server starts."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=report_pb2.RelayedReports.FromString,
            response_serializer=report_pb2.RelayAck.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Relay": handler}),))

    async def wake(self) -> None:
        """Tell the relays at once that requests flow."""
        for relay in [each for each in self._relays if each.granted_pause_s]:
            waking = asyncio.create_task(self._wake(relay))
            self._waking.add(waking)
            waking.add_done_callback(self._waking.discard)

    async def _wake(self, relay: _Relay) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            await self._acknowledge(relay, ())  # else it ended meanwhile, which its own task is told of

    async def _stream(self, _: object, context: _Context) -> None:
        if len(self._relays) >= bounds.MAX_RELAYS:
            why = self._intake.too_many(context.peer(), bounds.MAX_RELAYS)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        task = asyncio.current_task()
        assert task is not None  # grpc.aio runs each handler as a task
        relay = _Relay(context, task)
        self._relays.add(relay)
        self.counts.relays = len(self._relays)
        silence = Silence(self._silence_s, relay.give_up)
        try:
            await self._receive(relay, silence)
            return
        except OutOfBoundsError as error:
            ended = EndedError(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            ended.__cause__ = error
        except asyncio.CancelledError:
            if not relay.silent:
                raise
            task.uncancel()
            ended = EndedError(grpc.StatusCode.DEADLINE_EXCEEDED, f"nothing came for {self._silence_s} s")
        finally:
            silence.close()
            self._relays.discard(relay)
            self.counts.relays = len(self._relays)
            for worker in relay.workers:
                self._intake.end(worker, relay)
        self._intake.count_end("a relay", ended, context.peer())
        await context.abort(ended.code, ended.why)

    async def _receive(self, relay: _Relay, silence: Silence) -> None:
        clock = asyncio.get_running_loop().time
        while isinstance(message := await relay.context.read(), report_pb2.RelayedReports):
            silence.busy = True
            async with self._turn:
                began_s = time.perf_counter()
                self._take(relay, message)
                await self._leave_time(time.perf_counter() - began_s + _MESSAGE_S)
            silence.busy, silence.heard_s = False, clock()
            relay.received += 1
            await self._acknowledge(relay, [each.worker for each in message.reports if each.worker in relay.workers])

    async def _leave_time(self, took_s: float) -> None:
        """Leave to everybody else what is theirs, once it is as much as can be slept."""
        self._owed_s += took_s * (1.0 / SHARE - 1.0)
        if self._owed_s >= _LEAST_SLEEP_S:
            await asyncio.sleep(self._owed_s)
            self._owed_s = 0.0

    def _take(self, relay: _Relay, message: report_pb2.RelayedReports) -> None:
        bounds.at_most("reports", len(message.reports), bounds.MAX_RELAYED)
        self.counts.bytes += message.ByteSize()
        for worker in message.lost:
            if relay.workers.pop(worker, None) is not None:
                self._intake.end(worker, relay)
        for report in message.reports:
            try:
                self._take_report(relay, report)
            except EndedError as ended:
                relay.over(report.worker, ended)
                self._intake.end(report.worker, relay)
                self._intake.count_end(f"worker {shown(report.worker)}", ended, relay.peer)

    def _take_report(self, relay: _Relay, message: report_pb2.WorkerReport) -> None:
        of = relay.workers.get(message.worker)
        if of is None:
            if not message.all_models:
                return  # sent before the relay heard that nothing more is taken of it
            known = sum(len(each.workers) for each in self._relays)
            bounds.at_most("workers", known + 1, bounds.MAX_RELAYED_WORKERS)
            of = relay.workers[message.worker] = _OfWorker(ReportDecoder())
        try:
            report = of.decoder.decode(message, of.number)
        except OutOfBoundsError as error:
            raise EndedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        if not of.number:
            of.number = self._intake.begin(report.worker, relay)
            report = replace(report, stream=of.number)
        self._intake.take(report)

    async def _acknowledge(self, relay: _Relay, workers: Iterable[str]) -> None:
        """Acknowledge all that was received; `workers`: those of the last message that the relay speaks for. Whoever
        merely names a worker gets nothing of what was kept for its agent."""
        async with relay.lock:
            relay.granted_pause_s = min(self._allowed_pause_s(), self._silence_s / 3)
            told: list[report_pb2.WorkerPrompts] = []
            for worker in workers:
                if sum(len(each.prompts) for each in told) >= bounds.MAX_PROMPTS_TOLD:
                    break  # the others' at their next report
                if prompts := list(encode_prompts(self._prompts(worker))):
                    told.append(report_pb2.WorkerPrompts(worker=worker, prompts=prompts))
            refused, relay.refused = relay.refused, {}
            await relay.context.write(
                report_pb2.RelayAck(
                    received=relay.received,
                    quiet_period_s=relay.granted_pause_s or None,
                    refused=[report_pb2.WorkerRefused(worker=worker, why=why) for worker, why in refused.items()],
                    unlisted=[worker for worker in workers if not self._knows(worker)],
                    prompts=told,
                )
            )
