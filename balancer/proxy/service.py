"""The gRPC service: KServe v2's inferences, forwarded as the bytes that they are."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import grpc

from balancer.core.bounds import OutOfBoundsError, shown
from balancer.core.errors import NoEligibleWorker
from balancer.core.trials.split import Splits
from balancer.gateway.kserve import HeaderNames, read_call
from balancer.gateway.names import GATEWAY_REQUEST_ID_HEADER
from balancer.gateway.verdict import By, of_version
from balancer.proxy.attempts import Attempts, Clocks, Witness
from balancer.proxy.cascading import Cascades, Step
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
    Answer,
    Arrived,
    Metadata,
    passed_on,
    pushback,
    refusal,
)
from balancer.proxy.rules.budget import Tenants
from balancer.proxy.rules.reading import read, with_version
from balancer.proxy.rules.settings import ProxySettings
from balancer.proxy.sharing import Unary
from balancer.proxy.streams import Relay
from policies.hashing import key_of

_NOT_READY = "the balancer does not know its workers yet"
_EMPTY_STREAM = "the stream has no message"
_UNTIL_ASKED_S = 0.5
"""Two of Envoy's health checks."""
_LAST_REQUESTS_S, _LOOK_S = 3.0, 0.02
"""How long requests that are under way may take when the process stops, and how often that is looked at."""
REPEATABLE_HEADER = "x-repeatable"
"""Of a request that may be executed twice without harm: `true`."""

Context = grpc.aio.ServicerContext[bytes, bytes]


class Listener(Witness, Protocol):
    """Who is told what the service did."""

    def answered(self, arrived: Arrived, answer: Answer, sent_bytes: int, stream: bool) -> None:
        """A request ended; `sent_bytes`: of its client's messages."""

    def over_limit(self) -> None:
        """A request was refused because its tenant sends too many."""

    def refused(self, error: OutOfBoundsError) -> None:
        """A request was refused because a field of it was out of bounds."""


class RefusedError(Exception):
    """A request goes to no worker; `answer` is its client's."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.details)
        self.answer = answer


class Proxy:
    """Serves `ModelInfer` and `ModelStreamInfer`, and whoever reads other protocols."""

    def __init__(
        self,
        attempts: Attempts,
        unary: Unary,
        listener: Listener,
        clocks: Clocks,
        names: Callable[[], HeaderNames],
        ready: Callable[[], bool],
        splits: Splits,
    ) -> None:
        """`names` as of `read_call`, asked for with each request; `ready`: whether workers are known."""
        self._unary, self._listener, self._clocks = unary, listener, clocks
        self._names, self._ready = names, ready
        self._relay = Relay(attempts, clocks)
        self._cascades = Cascades(attempts.expected_s, clocks, attempts.counts)
        self._settings = ProxySettings()
        self._tenants = Tenants()
        self._splits = splits
        self._under_way = 0
        self.leaving = False
        """Whether the process is about to stop."""

    @property
    def ready(self) -> bool:
        """Whether inferences are to be sent here."""
        return self._ready() and not self.leaving

    def configure(self, settings: ProxySettings) -> None:
        """From now on."""
        self._settings = settings
        self._cascades.configure(settings)

    async def finish(self) -> None:
        """Return once all that came is answered, or has had its time.

        The health service says already that this process stops. Until Envoy has asked it, requests come, and are taken.
        """
        self.leaving = True
        await asyncio.sleep(_UNTIL_ASKED_S)
        until_s = self._clocks.now() + _LAST_REQUESTS_S
        while self._under_way and self._clocks.now() < until_s:
            await asyncio.sleep(_LOOK_S)

    def handler(self) -> grpc.GenericRpcHandler:
        """To be added to a server."""
        return _Handler(self)

    async def infer(self, data: bytes, context: Context) -> bytes:
        """One inference by gRPC."""
        step = Step(await self._understood(data, context, INFER))
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

    async def answer(self, step: Step) -> Answer:
        """The answer to one inference, by whatever protocol it came; `step` says afterwards which model's."""
        sent_bytes = len(step.arrived.data)
        answer = Answer(INTERNAL)
        self._under_way += 1
        try:
            answer = self._over_limit(step.arrived) or await self._chosen(step)
        except asyncio.CancelledError:
            answer = self._given_up(step.arrived)
            raise
        finally:
            self._under_way -= 1
            self._listener.answered(step.arrived, answer, sent_bytes, stream=False)
        return answer

    async def _chosen(self, step: Step) -> Answer:
        """The answer by the model that is asked for, or by one of those that serve the name."""
        if self._cascades.has(step.arrived.call.request.model):
            return await self._cascades.infer(step, self._execute)
        return await self._execute(step.arrived)

    async def _execute(self, arrived: Arrived) -> Answer:
        """The answer by one model, by one of two versions where it is split."""
        arrived = self._of_a_version(arrived)
        answer = Answer(INTERNAL)
        try:
            answer = await self._unary.infer(arrived)
        except asyncio.CancelledError:
            answer = self._given_up(arrived)
            raise
        finally:
            self._compare(arrived, answer)
        return answer

    async def stream(self, _: object, context: Context) -> None:
        """A stream of inferences: its first message decides, and all of it goes to one worker."""
        first = await context.read()
        if not isinstance(first, bytes):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _EMPTY_STREAM)
        arrived = await self._understood(first, context, STREAM)
        answer, sent_bytes = Answer(INTERNAL), len(first)
        relayed = self._relay.of(arrived, context)
        self._under_way += 1
        try:
            answer = self._over_limit(arrived) or await relayed.run()
        except (asyncio.CancelledError, grpc.aio.InternalError):  # the latter where the client cannot be written to
            answer = self._given_up(arrived)
            raise
        finally:
            self._under_way -= 1
            self._listener.answered(arrived, answer, sent_bytes + relayed.received_bytes, stream=True)
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

    def understand(self, data: bytes, metadata: Metadata, left_s: float | None, path: str = INFER) -> Arrived:
        """Read what routing needs of a message; `left_s`: until its client waits no longer, None: it always does.

        Raises:
            RefusedError: it cannot go on.
        """
        headers = {name: value for name, value in metadata if isinstance(value, str)}
        headers |= {":path": path, "content-type": "application/grpc"}
        # How a request ended is known here: nobody will tell of it under an id.
        headers.pop(GATEWAY_REQUEST_ID_HEADER, None)
        try:
            found = read(data)
            call = read_call(headers, found.fields, self._names())
        except OutOfBoundsError as error:
            self.refuse(error)
        if not self._ready():
            raise RefusedError(refusal(NoEligibleWorker(_NOT_READY)))
        if left_s is not None and left_s < call.request.deadline_s:
            call = replace(call, request=replace(call.request, deadline_s=max(left_s, 1e-9)))
        model = self._settings.of(call.request.model)
        return Arrived(
            call,
            data,
            passed_on(metadata),
            math.inf if left_s is None else self._clocks.now() + left_s,
            model.repeatable or headers.get(REPEATABLE_HEADER, "") == "true",
            model.hedge,
            found.id_spans,
        )

    def refuse(self, error: OutOfBoundsError) -> NoReturn:
        """Refuse a request of which a field is out of bounds, and count it."""
        self._listener.refused(error)
        raise RefusedError(Answer(INVALID_ARGUMENT, str(error))) from error

    def _of_a_version(self, arrived: Arrived) -> Arrived:
        """The same for one of two versions, where its model is split and it names none."""
        call = arrived.call
        name = call.triton_request_id
        # Sent again, it must be the same request.
        key = key_of(name) if name and self._settings.of(call.request.model).once_s else None
        lot = self._splits.draw(call.request, key=key)
        if lot is None:
            return arrived
        call = replace(call, request=replace(call.request, version=lot.version))
        return replace(arrived, call=call, data=with_version(arrived.data, lot.version), lot=lot)

    def _compare(self, arrived: Arrived, answer: Answer) -> None:
        """Tell a split what became of a request, where that says something of its version."""
        if arrived.lot is None or (answer.code == OK and not answer.worker):
            return
        good = of_version(answer.code, 0)
        if good is not None:
            self._splits.ended(arrived.lot, answer.latency_s, good, self._clocks.now())

    def _over_limit(self, arrived: Arrived) -> Answer | None:
        """The answer to a tenant that has sent more than it may; None: it may send this."""
        request, settings = arrived.call.request, self._settings
        limits = settings.tenant_limits.get(request.tenant, settings.tenants)
        rows = max(request.rows, arrived.call.message_rows)  # no header makes it fewer
        wait_s = self._tenants.refused_for_s(request.tenant, float(rows), limits, self._clocks.now())
        if not wait_s:
            return None
        self._listener.over_limit()
        words = f"tenant {shown(request.tenant)} sends more than it may each second; retry later"
        return pushback(Answer(RESOURCE_EXHAUSTED, words, unexecuted=True), wait_s)

    def _given_up(self, arrived: Arrived) -> Answer:
        """Of a request whose client is gone, or waits no longer."""
        late = self._clocks.now() >= arrived.deadline_s
        by: By = "deadline" if late else "client"
        return Answer(DEADLINE_EXCEEDED if late else CANCELLED, by=by)


async def _abort(context: Context, answer: Answer) -> NoReturn:
    if answer.initial:
        await context.send_initial_metadata(answer.initial)
    await context.abort(CODE_OF[answer.code], answer.details, answer.trailing)


class _Handler(grpc.GenericRpcHandler):
    """Messages stay bytes in both directions."""

    def __init__(self, proxy: Proxy) -> None:
        infer: Any = grpc.unary_unary_rpc_method_handler(proxy.infer, None, None)
        stream: Any = grpc.stream_stream_rpc_method_handler(proxy.stream, None, None)
        self._methods = {INFER: infer, STREAM: stream}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """The method of a call."""
        return self._methods.get(handler_call_details.method)
