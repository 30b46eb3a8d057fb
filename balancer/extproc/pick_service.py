"""The ext_proc service: one short stream a request, its headers in and the pick out.

`read` and `write` rather than iterators, and handlers registered by hand on raw bytes where that spares a copy: this is
the hot path, and each layer left out is a tenth of it.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf.message import DecodeError

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.discovery.workers import PortName
from balancer.extproc.compressed import CompressedMessage
from balancer.extproc.exchange import (
    Exchange,
    Served,
    hands_over,
    passed,
    read_fields,
    read_headers,
    read_subset,
    sent_back,
)
from balancer.extproc.kserve import SERVICE, Call, declared_bytes, port_of, read_call
from balancer.extproc.names import HEADERS_ONLY, MAY_BE_COMPRESSED, MODELS, PICKS_SERVICE, WITH_PROMPT
from balancer.extproc.picker import Later, Pick, Picker
from balancer.extproc.prompts import may_have_prompt
from balancer.extproc.responses import immediate, list_of_models, wait
from balancer.scheduler.after_decision import Decision

_METHOD = f"/{PICKS_SERVICE}/Process"
_NOT_READY = "the balancer does not know its workers yet"
_MOST_CONNECTIONS = 1024

_INFERENCES = (f"{SERVICE}ModelInfer", f"{SERVICE}ModelStreamInfer")
_TOO_MANY = "too many compressed messages are being read; retry later, or send it uncompressed"
_EXHAUSTED_CODES = (429, 8)

UNREADABLE = object()
_BODY_PASSES = passed(ext_proc.ProcessingRequest(), "request_body", back=False)
"""Behind another answer: that one is to the message with the body."""

Stream = grpc.aio.ServicerContext[ext_proc.ProcessingRequest, bytes]


class TurnedAway(NamedTuple):
    words: str
    wait_s: float


class PickListener(Protocol):
    def picked(self, call: Call, pick: Pick, seconds: float) -> None:
        """A call was answered, in that many seconds of this process."""

    def served(self, call: Call, served: Served) -> None: ...

    def first_token(self, call: Call, decision: Decision) -> None: ...

    def refused(self, error: OutOfBoundsError) -> None: ...

    def failed_internally(self, error: Exception) -> None: ...


class ExternalProcessor:
    """Serves `Process`. Until `ready`, picks cannot be made: our own Envoy's streams fail, so that it falls back, and
    other gateways get a 503, as the protocol has it."""

    def __init__(
        self,
        picker: Picker,
        listener: PickListener,
        ready: Callable[[], bool],
        turned_away: Callable[[Call, bool], TurnedAway | None] = lambda call, counted: None,
    ) -> None:
        """`turned_away` is called for each request, with whether all of its rows are known: it may count it, and raise
        OutOfBoundsError to refuse it."""
        self._picker = picker
        self._listener = listener
        self._ready = ready
        self._turned_away = turned_away
        self._inflating = 0
        self._reporting: dict[str, None] = {}
        """Connections by which response headers came, oldest first."""

    def may_wait(self) -> bool:
        return self._picker.holding.is_on

    def add_to(self, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((self.handler(),))

    def handler(self) -> grpc.GenericRpcHandler:
        return _Handler(self)

    async def once(self, _: object, stream: Stream) -> bytes:
        """A request of our own Envoy, which tells nothing after the headers: the answer ends the stream."""
        message = await self._ours(stream)
        if isinstance(message, bytes):
            return message
        pick = self._answer(message, own=True)[1]
        assert isinstance(pick, Pick)  # nobody waits here
        return pick.answer

    async def wait(self, _: object, stream: Stream) -> None:
        """As `once`, where the request may wait until a worker has room. A client that leaves ends the stream, which
        cancels what waits here."""
        message = await self._ours(stream)
        if isinstance(message, bytes):
            await stream.write(message)
            return
        start_s = time.perf_counter()
        found = self._answer(message, own=True, may_wait=True)[1]
        await stream.write((await self._settled(found, stream, start_s)).answer)

    async def _settled(self, found: Pick | Later, stream: Stream, start_s: float) -> Pick:
        """The pick; where the request waits, once there is room, and Envoy is told so first."""
        if isinstance(found, Pick):
            return found
        seconds = time.perf_counter() - start_s
        if not found.outcome.done():
            await stream.write(wait(found.longest_answer_s))
            await found.outcome
        return self._report(found.call, self._picker.later(found), seconds)

    async def inflate(self, _: object, stream: Stream) -> None:
        """A request of our own Envoy whose messages may be compressed: its body is read here, and passes as it is."""
        first = await self._first(stream)
        if isinstance(first, bytes):
            await stream.write(first)
            return
        if self._inflating >= bounds.MAX_INFLATING:
            await stream.write(immediate(*_EXHAUSTED_CODES, _TOO_MANY, "grpc", wait_s=1.0))
            return
        self._inflating += 1
        try:
            await self._inflate(first, stream)
        except OutOfBoundsError as error:
            self._listener.refused(error)
            await stream.write(self._picker.invalid(error, "grpc").answer)
        finally:
            self._inflating -= 1

    async def _inflate(self, first: ext_proc.ProcessingRequest, stream: Stream) -> None:
        headers = read_headers(first.request_headers)
        read = CompressedMessage(inference=headers.get(":path", "").partition("?")[0] in _INFERENCES)
        held = []
        ended = first.request_headers.end_of_stream
        while not read.is_decided and not ended:
            message = await stream.read()
            if not isinstance(message, ext_proc.ProcessingRequest):
                return  # its client left
            held.append(message)
            await read.feed(message.request_body.body)
            ended = message.request_body.end_of_stream or message.HasField("request_trailers")
        if held:
            read.end()
        fields = read.fields()
        call, found = self._answer(
            first, own=True, may_wait=True, read=lambda headers: read_call(headers, fields, self._picker.names)
        )
        if isinstance(found, Later):
            await found.outcome
            found = self._report(found.call, self._picker.later(found), 0.0)
        await stream.write(found.answer)
        if call is None or found.decision is None:
            return
        for message in held:
            await stream.write(_passed(message))
        while isinstance(message := await stream.read(), ext_proc.ProcessingRequest):
            await read.feed(message.request_body.body)
            await stream.write(_passed(message))

    async def prompt(self, _: object, stream: Stream) -> None:
        """A request of our own Envoy that may have a prompt. Its body is read here, and passes as it is; a stream's
        first token is told too, after which this stream ends and Envoy goes on alone."""
        first = await self._ours(stream, "openai")
        if isinstance(first, bytes):
            await stream.write(first)
            return
        if await self._lists_models(first, stream):
            return
        await stream.write(passed(first, "request_headers", back=False))
        body = b""
        if not first.request_headers.end_of_stream:
            message: object = await stream.read()
            if not isinstance(message, ext_proc.ProcessingRequest):
                return  # its client left
            body = message.request_body.body
            del message
        start_s = time.perf_counter()
        call, found = self._answer_prompt(first, body, own=True)
        del body  # which may be megabytes, and the answer may last
        pick = await self._settled(found, stream, start_s)
        picked = pick.decision is not None
        await stream.write(pick.answer + _BODY_PASSES if picked else pick.answer)
        if call is None or pick.decision is None or not call.streams_tokens:
            return
        while isinstance(message := await stream.read(), ext_proc.ProcessingRequest):
            kind = message.WhichOneof("request") or "response_body"
            await stream.write(passed(message, kind, back=False))
            if kind == "response_body":
                self._listener.first_token(call, pick.decision)
                return
            if read_headers(message.response_headers).get(":status") != "200":
                return

    async def process(self, _: object, stream: Stream) -> None:
        """One request of another gateway's client, from its headers to the end of what the gateway tells of it."""
        message = await self._first(stream)
        start_s = time.perf_counter()
        if isinstance(message, bytes):
            await stream.write(message)
            return
        if await self._lists_models(message, stream):
            return
        if may_have_prompt(read_headers(message.request_headers)) and sent_back(message)["request_body"]:
            await self._process_prompt(message, stream, start_s)
            return
        call, pick = self._answer(message, own=False)
        assert isinstance(pick, Pick)  # what other gateways ask never waits
        await stream.write(pick.answer)
        if call is not None and pick.decision is not None:
            in_body = pick.version if call.grpc else ""
            await self._follow(stream, call, Exchange(message, pick.decision, start_s, pick.draw, in_body))

    async def _process_prompt(self, first: ext_proc.ProcessingRequest, stream: Stream, start_s: float) -> None:
        """As `prompt`, of a gateway that sends all of a request before it is answered."""
        held, body = [], bytearray()
        ended = first.request_headers.end_of_stream
        while not ended and len(body) <= bounds.MAX_PROMPT_BYTES:
            message = await stream.read()
            if not isinstance(message, ext_proc.ProcessingRequest):
                return  # its client left
            held.append(_passed(message))
            body += message.request_body.body
            ended = message.request_body.end_of_stream or message.HasField("request_trailers")
            del message
        size_bytes = len(body)
        call, pick = self._answer_prompt(first, bytes(body), own=False)
        del body  # as above
        assert isinstance(pick, Pick)  # as above
        await stream.write(pick.answer)
        if call is None or pick.decision is None:
            return
        while held:
            await stream.write(held.pop(0))
        await self._follow(stream, call, Exchange(first, pick.decision, start_s, pick.draw, "", size_bytes))

    async def _lists_models(self, first: ext_proc.ProcessingRequest, stream: Stream) -> bool:
        """Whether the request was for OpenAI's list of models, which is answered here."""
        if read_headers(first.request_headers).get(":path", "").partition("?")[0] != MODELS:
            return False
        await stream.write(list_of_models(self._picker.openai_models()))
        return True

    def _answer_prompt(
        self, first: ext_proc.ProcessingRequest, body: bytes, own: bool
    ) -> tuple[Call | None, Pick | Later]:
        """As `_answer`, of a request whose body is here; our own Envoy's may wait."""
        return self._answer(first, own, own, lambda headers: self._picker.read_body(headers, body))

    async def _ours(self, stream: Stream, port: PortName = "grpc") -> ext_proc.ProcessingRequest | bytes:
        """As `_first`, of our own Envoy, which does without a pick until there can be one."""
        message = await self._first(stream, port)
        if not self._ready():
            await stream.abort(grpc.StatusCode.UNAVAILABLE, _NOT_READY)
        return message

    async def _first(self, stream: Stream, port: PortName = "grpc") -> ext_proc.ProcessingRequest | bytes:
        """The message with the request's headers; or the answer to one that contains text that is not UTF-8: if the
        stream failed instead, Envoy would forward the request without a pick."""
        message: object = await stream.read()
        if message is UNREADABLE:
            error = OutOfBoundsError("encoding", "the request", "is UTF-8 in all of its names and ids")
            self._listener.refused(error)
            return self._picker.invalid(error, port).answer
        if not (isinstance(message, ext_proc.ProcessingRequest) and message.HasField("request_headers")):
            await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message has no request_headers")
        return message

    def _answer(
        self,
        message: ext_proc.ProcessingRequest,
        own: bool,
        may_wait: bool = False,
        read: Callable[[Mapping[str, str]], Call] | None = None,
    ) -> tuple[Call | None, Pick | Later]:
        """Understand the first message and decide; `own`: it is our own Envoy's. Only if it `may_wait`, it may.
        `read`: reads a call whose body is here, from its headers; None: Envoy extracted the fields of the body.

        Nothing that is in the message may end the stream with an error: the gateway would go on without a pick, past
        limits, pins and the model table.
        """
        start_s = time.perf_counter()
        port: PortName = "http"
        try:
            headers = read_headers(message.request_headers)
            port = port_of(headers)
            if not self._ready():
                return None, self._picker.unready(_NOT_READY, port)
            if read is not None:
                call = read(headers)
            else:
                objectives = None if own else self._picker.objectives
                call = read_call(headers, read_fields(message), self._picker.names, objectives)
            if (away := self._turned_away(call, own and call.grpc)) is not None:
                return None, self._picker.over_limit(away.words, away.wait_s, port)
            if may_wait and self._picker.holds(call):
                return call, self._picker.hold(call, read_subset(message), declared_bytes(headers))
            pick = self._picker.pick(call, read_subset(message), own, own or hands_over(message))
        except OutOfBoundsError as error:
            self._listener.refused(error)
            return None, self._picker.invalid(error, port)
        except Exception as error:
            self._listener.failed_internally(error)
            return None, self._picker.failed(port)
        return call, self._report(call, pick, time.perf_counter() - start_s)

    def _report(self, call: Call, pick: Pick, seconds: float) -> Pick:
        """The pick; reported to the listener, after so many seconds of work."""
        try:
            self._listener.picked(call, pick, seconds)
        except Exception as error:
            self._listener.failed_internally(error)
        return pick

    async def _follow(self, stream: Stream, call: Call, exchange: Exchange) -> None:
        """Pass the rest of the stream on unchanged, and tell how the request ended; of a language model's stream also
        when its answer begins.

        A stream that ends without response headers is a client that left, where the gateway sends them. One that never
        sends any may end the stream as soon as it has its pick.
        """
        connection = stream.peer()
        awaits_first_token = call.streams_tokens
        try:
            while isinstance(message := await stream.read(), ext_proc.ProcessingRequest):
                kind = message.WhichOneof("request")
                if kind is None:
                    await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message of the stream is empty")
                await stream.write(exchange.answer(message, kind))
                if kind == "response_body" and awaits_first_token and exchange.succeeds:
                    awaits_first_token = False
                    self._listener.first_token(call, exchange.decision)
                if exchange.answered and connection not in self._reporting:
                    self._remember(connection)
        finally:
            if exchange.left:
                self._picker.splits.left[call.request.model, exchange.left] += 1
            # A client that leaves may have the stream cancelled.
            if exchange.answered or connection in self._reporting:
                self._listener.served(call, exchange.ended(time.perf_counter()))

    def _remember(self, connection: str) -> None:
        self._reporting[connection] = None
        if len(self._reporting) > _MOST_CONNECTIONS:
            del self._reporting[next(iter(self._reporting))]


def _read(data: bytes) -> object:
    try:
        return ext_proc.ProcessingRequest.FromString(data)
    except DecodeError:
        return UNREADABLE


def _passed(message: ext_proc.ProcessingRequest) -> bytes:
    kind = message.WhichOneof("request") or "request_body"
    return passed(message, kind, back=kind == "request_body")


class _Handler(grpc.GenericRpcHandler):
    """The method `Process`, by one of five handlers that are the same on the wire: the stream's metadata says which.

    With `once` the answer goes out together with the end of the stream: that saves a quarter of what gRPC costs here.
    """

    def __init__(self, processor: ExternalProcessor) -> None:
        self._may_wait = processor.may_wait
        self._once: Any = grpc.stream_unary_rpc_method_handler(processor.once, request_deserializer=_read)
        self._wait: Any = grpc.stream_stream_rpc_method_handler(processor.wait, request_deserializer=_read)
        self._inflate: Any = grpc.stream_stream_rpc_method_handler(processor.inflate, request_deserializer=_read)
        self._prompt: Any = grpc.stream_stream_rpc_method_handler(processor.prompt, request_deserializer=_read)
        self._process: Any = grpc.stream_stream_rpc_method_handler(processor.process, request_deserializer=_read)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != _METHOD:
            return None
        if MAY_BE_COMPRESSED in handler_call_details.invocation_metadata:
            return self._inflate
        if WITH_PROMPT in handler_call_details.invocation_metadata:
            return self._prompt
        if HEADERS_ONLY not in handler_call_details.invocation_metadata:
            return self._process
        return self._wait if self._may_wait() else self._once
