"""The ext_proc service: one short stream a request, its headers in and the pick out.

`read` and `write` rather than iterators, and handlers registered by hand on raw bytes where that spares a copy: this is
the hot path, and each layer left out is a tenth of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeGuard

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf.message import DecodeError

from balancer.core.bounds import OutOfBoundsError
from balancer.gateway.exchange import Exchange, Served, hands_over
from balancer.gateway.kserve import Call, HeaderNames, Objectives, declared_bytes, is_grpc, read_call
from balancer.gateway.messages import read_fields, read_headers, read_subset
from balancer.gateway.names import HEADERS_ONLY, PICKS_SERVICE
from balancer.gateway.picker import Later, Pick, Picker
from balancer.gateway.responses import wait

_METHOD = f"/{PICKS_SERVICE}/Process"
_NO_REQUEST = "the first message has no request_headers"
_NOT_READY = "the balancer does not know its workers yet"
_MOST_CONNECTIONS = 1024

UNREADABLE = object()
"""In the place of a message that protobuf cannot read."""

Stream = grpc.aio.ServicerContext[ext_proc.ProcessingRequest, bytes]


class Listener(Protocol):
    """Who is told what the service did."""

    def picked(self, call: Call, pick: Pick, seconds: float) -> None:
        """A call was answered, in that many seconds of this process."""

    def served(self, call: Call, served: Served) -> None:
        """A gateway said how a request ended."""

    def refused(self, error: OutOfBoundsError) -> None:
        """A request was refused because a field of it was out of bounds."""

    def mistaken(self, error: Exception) -> None:
        """A mistake of ours: the request at hand was answered by an error."""


class ExternalProcessor:
    """Serves `Process`. Until `ready`, picks cannot be made: our own Envoy's streams fail, so that it falls back, and
    other gateways are told 503, as the protocol has it."""

    def __init__(
        self,
        picker: Picker,
        listener: Listener,
        names: Callable[[], HeaderNames],
        ready: Callable[[], bool],
        objectives: Callable[[], Objectives] = dict,
    ) -> None:
        """`names` and `objectives`, as of `read_call`, are asked for with each request."""
        self._picker = picker
        self._listener = listener
        self._names = names
        self._ready = ready
        self._objectives = objectives
        self._telling: dict[str, None] = {}
        """Connections by which response headers came, oldest first."""

    def may_wait(self) -> bool:
        """Whether a request may be held: then an answer may take two messages."""
        return self._picker.holding.is_on

    def add_to(self, server: grpc.aio.Server) -> None:
        """Have the server serve it."""
        server.add_generic_rpc_handlers((self.handler(),))

    def handler(self) -> grpc.GenericRpcHandler:
        """To be added to a server."""
        return _Handler(self)

    async def once(self, _: object, stream: Stream) -> bytes:
        """A request of our own Envoy, which tells nothing after the headers: the answer ends the stream."""
        message = await stream.read()
        if message is UNREADABLE:
            return self._unreadable()
        if not _is_request(message):
            await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_REQUEST)
        if not self._ready():
            await stream.abort(grpc.StatusCode.UNAVAILABLE, _NOT_READY)
        pick = self._answer(message, own=True)[1]
        assert isinstance(pick, Pick)  # nobody waits here
        return pick.answer

    async def wait(self, _: object, stream: Stream) -> None:
        """As `once`, where the request may wait until a worker has room: then Envoy is told so first.

        A client that leaves has Envoy end the stream, which cancels what waits here.
        """
        message = await stream.read()
        if message is UNREADABLE:
            await stream.write(self._unreadable())
            return
        if not _is_request(message):
            await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_REQUEST)
        if not self._ready():
            await stream.abort(grpc.StatusCode.UNAVAILABLE, _NOT_READY)
        start_s = time.perf_counter()
        found = self._answer(message, own=True, may_wait=True)[1]
        if isinstance(found, Later):
            seconds = time.perf_counter() - start_s
            if not found.outcome.done():
                await stream.write(wait(found.longest_answer_s))
                await found.outcome
            pick = self._tell(found.call, self._picker.later(found), seconds)
            await stream.write(pick.answer)
        else:
            await stream.write(found.answer)

    async def process(self, _: object, stream: Stream) -> None:
        """One request of another gateway's client, from its headers to the end of what the gateway tells of it."""
        message = await stream.read()
        start_s = time.perf_counter()
        if message is UNREADABLE:
            await stream.write(self._unreadable())
            return
        if not _is_request(message):
            await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_REQUEST)
        call, pick = self._answer(message, own=False)
        assert isinstance(pick, Pick)  # what other gateways ask never waits
        await stream.write(pick.answer)
        if call is not None and pick.decision is not None:
            await self._follow(stream, call, Exchange(message, pick.decision, start_s, pick.lot, call.grpc))

    def _unreadable(self) -> bytes:
        """A text in the request is none. Ended with an error, it would go on without a pick."""
        error = OutOfBoundsError("encoding", "the request", "is UTF-8 in all of its names and ids")
        self._listener.refused(error)
        return self._picker.invalid(error, grpc=True).answer

    def _answer(
        self, message: ext_proc.ProcessingRequest, own: bool, may_wait: bool = False
    ) -> tuple[Call | None, Pick | Later]:
        """Understand the first message and decide; `own`: it is our own Envoy's. Only if it `may_wait`, it may.

        Nothing that is in the message may end the stream with an error: the gateway would go on without a pick, past
        limits, pins and the model table.
        """
        start_s = time.perf_counter()
        grpc_call = False
        try:
            headers = read_headers(message.request_headers)
            grpc_call = is_grpc(headers)
            if not self._ready():
                return None, self._picker.unready(_NOT_READY, grpc_call)
            call = read_call(headers, read_fields(message), self._names(), None if own else self._objectives())
            if may_wait and self._picker.holds(call):
                return call, self._picker.hold(call, read_subset(message), declared_bytes(headers))
            pick = self._picker.pick(call, read_subset(message), own, own or hands_over(message))
        except OutOfBoundsError as error:
            self._listener.refused(error)
            return None, self._picker.invalid(error, grpc_call)
        except Exception as error:
            self._listener.mistaken(error)
            return None, self._picker.failed(grpc_call)
        return call, self._tell(call, pick, time.perf_counter() - start_s)

    def _tell(self, call: Call, pick: Pick, seconds: float) -> Pick:
        """The pick; the listener is told of it, after so many seconds of work."""
        try:
            self._listener.picked(call, pick, seconds)
        except Exception as error:
            self._listener.mistaken(error)
        return pick

    async def _follow(self, stream: Stream, call: Call, exchange: Exchange) -> None:
        """Pass the rest of the stream on unchanged, and tell how the request ended.

        A stream that ends without response headers is a client that left, where the gateway sends them. One that never
        sends any may end the stream as soon as it has its pick.
        """
        connection = stream.peer()
        try:
            while isinstance(message := await stream.read(), ext_proc.ProcessingRequest):
                kind = message.WhichOneof("request")
                if kind is None:
                    await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message of the stream is empty")
                await stream.write(exchange.answer(message, kind))
                if exchange.answered and connection not in self._telling:
                    self._remember(connection)
        finally:
            if exchange.left:
                self._picker.splits.left[call.request.model, exchange.left] += 1
            # A client that leaves may have the stream cancelled.
            if exchange.answered or connection in self._telling:
                self._listener.served(call, exchange.ended(time.perf_counter()))

    def _remember(self, connection: str) -> None:
        self._telling[connection] = None
        if len(self._telling) > _MOST_CONNECTIONS:
            del self._telling[next(iter(self._telling))]


def _read(data: bytes) -> object:
    try:
        return ext_proc.ProcessingRequest.FromString(data)
    except DecodeError:
        return UNREADABLE


def _is_request(message: object) -> TypeGuard[ext_proc.ProcessingRequest]:
    return isinstance(message, ext_proc.ProcessingRequest) and message.HasField("request_headers")


class _Handler(grpc.GenericRpcHandler):
    """The method `Process` in two forms, which are the same on the wire.

    Where the gateway says that the headers are all it sends, the answer goes out together with the end of the stream:
    that saves a quarter of what gRPC costs here.
    """

    def __init__(self, processor: ExternalProcessor) -> None:
        self._once: grpc.RpcMethodHandler[ext_proc.ProcessingRequest, bytes] = grpc.stream_unary_rpc_method_handler(
            processor.once, request_deserializer=_read, response_serializer=None
        )
        self._wait: grpc.RpcMethodHandler[ext_proc.ProcessingRequest, bytes] = grpc.stream_stream_rpc_method_handler(
            processor.wait, request_deserializer=_read, response_serializer=None
        )
        self._may_wait = processor.may_wait
        self._process: grpc.RpcMethodHandler[ext_proc.ProcessingRequest, bytes] = grpc.stream_stream_rpc_method_handler(
            processor.process, request_deserializer=_read, response_serializer=None
        )

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[ext_proc.ProcessingRequest, bytes] | None:
        """The form for one stream."""
        if handler_call_details.method != _METHOD:
            return None
        if HEADERS_ONLY not in handler_call_details.invocation_metadata:
            return self._process
        return self._wait if self._may_wait() else self._once
