"""The gRPC service: KServe v2's inferences, forwarded as the bytes that they are."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import grpc

from balancer.bounds import OutOfBoundsError
from balancer.extproc.inference_bytes import read, with_version
from balancer.extproc.kserve import Call, read_call
from balancer.extproc.names import GATEWAY_REQUEST_ID_HEADER
from balancer.extproc.prompts import TokenShares, with_prompt_of
from balancer.extproc.responses import By, of_version
from balancer.proxy.attempts import AttemptObserver, Attempts, Clocks
from balancer.proxy.cascading import Cascades, CascadeStep
from balancer.proxy.inflating import Inflating, NoRoomError, is_compressed
from balancer.proxy.messages import (
    CANCELLED,
    CODE_OF,
    DEADLINE_EXCEEDED,
    INFER,
    INTERNAL,
    INVALID_ARGUMENT,
    OK,
    RESOURCE_EXHAUSTED,
    SERVED_MODEL,
    STREAM,
    Arrived,
    Context,
    Metadata,
    ProxyAnswer,
    passed_on,
    pushback,
    refusal,
)
from balancer.proxy.settings import ProxySettings
from balancer.proxy.sharing import Unary
from balancer.proxy.streams import RelayedStream
from balancer.proxy.tenants import TenantLimits
from balancer.scheduler.canary.split import Splits, VersionDraw
from balancer.scheduler.errors import NoEligibleWorker
from policies.hashing import key_of

_NOT_READY = "the balancer does not know its workers yet"
_EMPTY_STREAM = "the stream has no message"
_NO_MESSAGE = "the request has no message"
_LONGEST_READ_S = 5.0
"""Of a compressed message, which keeps room for as long as it comes."""
_SLOW = f"the compressed message did not come within {_LONGEST_READ_S:.0f} s; send it uncompressed"
_UNTIL_CHECKED_S = 0.5
"""Two of Envoy's health checks."""
_LAST_REQUESTS_S, _LOOK_S = 3.0, 0.02
"""How long requests that are under way may take when the process stops, and how often that is looked at."""
REPEATABLE_HEADER = "x-repeatable"
"""Of a request that may be executed twice without harm: `true`."""


class ProxyListener(AttemptObserver, Protocol):
    def answered(self, arrived: Arrived, answer: ProxyAnswer, sent_bytes: int, stream: bool) -> None:
        """A request ended; `sent_bytes`: of its client's messages."""

    def over_limit(self) -> None: ...

    def refused(self, error: OutOfBoundsError) -> None: ...


class RefusedError(Exception):
    """A request goes to no worker; `answer` is its client's."""

    def __init__(self, answer: ProxyAnswer) -> None:
        super().__init__(answer.details)
        self.answer = answer


class Proxy:
    """Serves `ModelInfer` and `ModelStreamInfer`, and whoever reads other protocols."""

    def __init__(
        self,
        attempts: Attempts,
        unary: Unary,
        listener: ProxyListener,
        clocks: Clocks,
        ready: Callable[[], bool],
        splits: Splits,
        inflating: Inflating,
        version_of: Callable[[str], str],
        shares: TokenShares,
    ) -> None:
        """`ready`: whether workers are known; `version_of`: a model's, where a request names none and is not split."""
        self._shares = shares
        self.inflating = inflating
        self._attempts, self._unary, self._listener, self._clocks = attempts, unary, listener, clocks
        self._ready = ready
        self._cascades = Cascades(attempts.expected_s, clocks, attempts.counts)
        self._settings = ProxySettings()
        self.tenants = TenantLimits(clocks.now, listener.over_limit)
        self._splits, self._version_of = splits, version_of
        self._under_way = 0
        self.leaving = False

    @property
    def ready(self) -> bool:
        return self._ready() and not self.leaving

    def configure(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._cascades.configure(settings)
        self.tenants.configure(settings)

    async def finish(self) -> None:
        """Return once all that came is answered, or has had its time.

        The health service says already that this process stops. Until Envoy has asked it, requests come, and are taken.
        """
        self.leaving = True
        await asyncio.sleep(_UNTIL_CHECKED_S)
        until_s = self._clocks.now() + _LAST_REQUESTS_S
        while self._under_way and self._clocks.now() < until_s:
            await asyncio.sleep(_LOOK_S)

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """A request is, which `finish` waits for."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def check_ready(self) -> None:
        """Raises RefusedError until workers are known."""
        if not self._ready():
            raise RefusedError(refusal(NoEligibleWorker(_NOT_READY)))

    def handler(self) -> grpc.GenericRpcHandler:
        return _Handler(self)

    async def infer(self, data: bytes, context: Context) -> bytes:
        step = CascadeStep(await self._understood(data, context, INFER))
        answer = await self.answer(step)
        if answer.code != OK:
            await _abort(context, answer)
        # In both: not every client shows its caller the headers, nor the trailers.
        served = ((SERVED_MODEL, step.arrived.call.request.model),) if step.arrived.cascaded else ()
        if initial := (*answer.initial, *served):
            await context.send_initial_metadata(initial)
        if trailing := (*answer.trailing, *served):
            context.set_trailing_metadata(trailing)
        return answer.data

    async def infer_compressed(self, _: object, context: Context) -> bytes:
        """The same of a message that is inflated as it is read, which is when there is room."""
        try:
            async with self.inflating.room() as room:
                try:
                    data = await asyncio.wait_for(context.read(), _LONGEST_READ_S)
                except TimeoutError:
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, _SLOW)
                if not isinstance(data, bytes):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_MESSAGE)
                room.shrink(len(data))
                return await self.infer(data, context)
        except NoRoomError as error:
            await _abort(context, error.answer)

    async def stream_compressed(self, _: object, context: Context) -> None:
        """A stream of such messages: any of them may come at any time, so there is room for one all the while."""
        try:
            async with self.inflating.room_of_stream():
                await self.stream(_, context)
        except NoRoomError as error:
            await _abort(context, error.answer)

    async def answer(self, step: CascadeStep) -> ProxyAnswer:
        """The answer to one inference, by whatever protocol it came; `step` says afterwards which model's."""
        sent_bytes = len(step.arrived.data)
        answer = ProxyAnswer(INTERNAL)
        try:
            with self.under_way():
                answer = self.over_limit(step.arrived) or await self._chosen(step)
        except asyncio.CancelledError:
            answer = self._given_up(step.arrived)
            raise
        finally:
            self._listener.answered(step.arrived, answer, sent_bytes, stream=False)
        return answer

    async def _chosen(self, step: CascadeStep) -> ProxyAnswer:
        if self._cascades.has(step.arrived.call.request.model):
            return await self._cascades.infer(step, self._execute)
        return await self._execute(step.arrived)

    async def _execute(self, arrived: Arrived) -> ProxyAnswer:
        arrived = self._of_a_version(arrived)
        answer = ProxyAnswer(INTERNAL)
        try:
            answer = await self._unary.infer(arrived)
        except asyncio.CancelledError:
            answer = self._given_up(arrived)
            raise
        finally:
            if answer.worker or answer.code != OK:
                self.compare(arrived.draw, answer.latency_s, of_version(answer.code, 0))
        return answer

    async def stream(self, _: object, context: Context) -> None:
        """A stream of inferences: its first message decides, and all of it goes to one worker."""
        first = await context.read()
        if not isinstance(first, bytes):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _EMPTY_STREAM)
        arrived = await self._understood(first, context, STREAM)
        answer, away, sent_bytes = ProxyAnswer(INTERNAL), None, len(first)
        relayed = RelayedStream(self._attempts, self._clocks, self.tenants, arrived, context)
        try:
            with self.under_way():
                away = self.over_limit(arrived)
                answer = away or await relayed.run()
        except (asyncio.CancelledError, grpc.aio.InternalError):  # the latter where the client cannot be written to
            answer = self._given_up(arrived)
            raise
        finally:
            self._listener.answered(arrived, answer, sent_bytes + relayed.received_bytes, stream=True)
            if arrived.call.has_prompt and away is None:
                answered, left = answer.code == OK, answer.by == "client"
                self.tenants.settle(arrived.call, 0.0, relayed.messages, answered=answered, left=left)
        if answer.code != OK:
            await _abort(context, answer)
        if answer.trailing:
            context.set_trailing_metadata(answer.trailing)

    async def _understood(self, data: bytes, context: Context, path: str) -> Arrived:
        """A message of gRPC; ends the call where it cannot go on."""
        try:
            return self.understand(data, tuple(context.invocation_metadata() or ()), context.time_remaining(), path)
        except RefusedError as error:
            await _abort(context, error.answer)

    def understand(
        self,
        data: bytes,
        metadata: Metadata,
        left_s: float | None,
        path: str = INFER,
        raw_headers: Metadata | None = None,
    ) -> Arrived:
        """Read what routing needs of a message; `left_s`: until its client waits no longer, None: it always does;
        `raw_headers`: the client's headers, where not all of them can go on as metadata.

        Raises:
            RefusedError: it cannot go on.
        """
        headers = {name: value for name, value in raw_headers or metadata if isinstance(value, str)}
        headers |= {":path": path, "content-type": "application/grpc"}
        # How a request ended is known here: nobody will tell of it under an id.
        headers.pop(GATEWAY_REQUEST_ID_HEADER, None)
        try:
            found = read(data)
            call = read_call(headers, found.fields, self._settings.names)
            if path == STREAM:
                call = with_prompt_of(call, data, self._shares)
        except OutOfBoundsError as error:
            self.refuse(error)
        self.check_ready()
        if left_s is not None and left_s < call.request.deadline_s:
            call = replace(call, request=replace(call.request, deadline_s=max(left_s, 1e-9)))
        model = self._settings.of(call.request.model)
        return Arrived(
            call,
            data,
            passed_on(metadata),
            math.inf if left_s is None else self._clocks.now() + left_s,
            (model.repeatable or headers.get(REPEATABLE_HEADER, "") == "true") and not found.in_memory,
            model.hedge,
            found.id_spans,
            found.in_memory,
        )

    def refuse(self, error: OutOfBoundsError) -> NoReturn:
        self._listener.refused(error)
        raise RefusedError(ProxyAnswer(INVALID_ARGUMENT, str(error))) from error

    def versioned(self, call: Call) -> tuple[Call, VersionDraw | None]:
        """The same for the version that it gets, where it names none and its model is split or pinned."""
        name = call.triton_request_id
        # Sent again, it must be the same request.
        key = key_of(name) if name and self._settings.of(call.request.model).once_s else None
        draw = self._splits.draw(call.request, key=key)
        version = "" if call.request.version else self._version_of(call.request.model) if draw is None else draw.version
        return (replace(call, request=replace(call.request, version=version)) if version else call), draw

    def compare(self, draw: VersionDraw | None, latency_s: float, good: bool | None) -> None:
        """Tell a split what became of a request; `good`: None where that says nothing of its version."""
        if draw is not None and good is not None:
            self._splits.ended(draw, latency_s, good, self._clocks.now())

    def _of_a_version(self, arrived: Arrived) -> Arrived:
        call, draw = self.versioned(arrived.call)
        if call is arrived.call:
            return arrived
        return replace(arrived, call=call, data=with_version(arrived.data, call.request.version), draw=draw)

    def over_limit(self, arrived: Arrived) -> ProxyAnswer | None:
        away = self.tenants.turned_away(arrived.call)
        return (
            None
            if away is None
            else pushback(ProxyAnswer(RESOURCE_EXHAUSTED, away.words, unexecuted=True), away.wait_s)
        )

    def _given_up(self, arrived: Arrived) -> ProxyAnswer:
        late = self._clocks.now() >= arrived.deadline_s
        by: By = "deadline" if late else "client"
        return ProxyAnswer(DEADLINE_EXCEEDED if late else CANCELLED, by=by)


async def _abort(context: Context, answer: ProxyAnswer) -> NoReturn:
    if answer.initial:
        await context.send_initial_metadata(answer.initial)
    await context.abort(CODE_OF[answer.code], answer.details, answer.trailing)


class _Handler(grpc.GenericRpcHandler):
    """Messages stay bytes in both directions."""

    def __init__(self, proxy: Proxy) -> None:
        infer: Any = grpc.unary_unary_rpc_method_handler(proxy.infer, None, None)
        stream: Any = grpc.stream_stream_rpc_method_handler(proxy.stream, None, None)
        self._methods = {INFER: infer, STREAM: stream}
        infer = grpc.stream_unary_rpc_method_handler(proxy.infer_compressed, None, None)
        stream = grpc.stream_stream_rpc_method_handler(proxy.stream_compressed, None, None)
        self._of_compressed = {INFER: infer, STREAM: stream}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        compressed = is_compressed(handler_call_details.invocation_metadata)
        return (self._of_compressed if compressed else self._methods).get(handler_call_details.method)
