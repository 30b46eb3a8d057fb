"""The ext_proc service: one short stream a request, its headers in and the pick out.

`read` and `write` rather than iterators, and handlers registered by hand on raw bytes where that spares a copy: this is
the hot path, and each layer left out is a tenth of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import grpc
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

from balancer.core.bounds import OutOfBoundsError
from balancer.core.router import Decision
from balancer.gateway.kserve import Call, HeaderNames, is_grpc, read_call
from balancer.gateway.names import (
    DESTINATION_NAMESPACE,
    EXTRACTION,
    HEADERS_ONLY,
    PICKS_SERVICE,
    SERVED,
    SUBSET,
    SUBSET_NAMESPACE,
)
from balancer.gateway.picker import Pick, Picker
from balancer.gateway.verdict import code

_METHOD = f"/{PICKS_SERVICE}/Process"
_NO_REQUEST = "the first message has no request_headers"
_FULL_DUPLEX = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED

UNREADABLE = object()
"""In the place of a message that protobuf cannot read."""

Stream = grpc.aio.ServicerContext[ext_proc.ProcessingRequest, bytes]


@dataclass(frozen=True, slots=True)
class Served:
    """How a request ended, for gateways that send the response headers here instead of an access log."""

    decision: Decision
    endpoint: str
    latency_s: float
    status: int
    """HTTP status; 0: the stream ended without response headers."""
    grpc_status: int = -1
    """-1: not gRPC, or not in the headers, as where the answer is no error."""


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
    """Serves `Process`. Until `ready`, picks cannot be made: streams fail and the gateway falls back."""

    def __init__(
        self, picker: Picker, listener: Listener, names: Callable[[], HeaderNames], ready: Callable[[], bool]
    ) -> None:
        self._picker = picker
        self._listener = listener
        self._names = names
        self._ready = ready

    def handler(self) -> grpc.GenericRpcHandler:
        """To be added to a server."""
        return _Handler(self)

    async def once(self, _: object, stream: Stream) -> bytes:
        """A request of a gateway that tells nothing after the headers: the answer ends the stream."""
        message = await stream.read()
        if message is UNREADABLE:
            return self._unreadable()
        if not _is_request(message):
            await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_REQUEST)
        # Our own gateway, which goes by the metadata: a header more could make a request too large that was not.
        return (await self._answer(message, stream, header=False))[1].answer

    async def process(self, _: object, stream: Stream) -> None:
        """One request of a client, from its headers to the end of what the gateway tells of it."""
        message = await stream.read()
        start_s = time.perf_counter()
        if message is UNREADABLE:
            await stream.write(self._unreadable())
            return
        if not _is_request(message):
            await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_REQUEST)
        call, pick = await self._answer(message, stream, header=True)
        await stream.write(pick.answer)
        if call is not None and pick.decision is not None:
            echo = message.protocol_config.request_body_mode == _FULL_DUPLEX
            await self._follow(stream, call, pick.decision, start_s, echo)

    def _unreadable(self) -> bytes:
        """A text in the request is none. Ended with an error, it would go on without a pick."""
        error = OutOfBoundsError("encoding", "the request", "is UTF-8 in all of its names and ids")
        self._listener.refused(error)
        return self._picker.invalid(error, grpc=True).answer

    async def _answer(
        self, message: ext_proc.ProcessingRequest, stream: Stream, header: bool
    ) -> tuple[Call | None, Pick]:
        """Understand the first message and decide.

        Nothing that is in the message may end the stream with an error: the gateway would go on without a pick, past
        limits, pins and the model table.
        """
        if not self._ready():
            await stream.abort(grpc.StatusCode.UNAVAILABLE, "the balancer does not know its workers yet")
        start_s = time.perf_counter()
        grpc_call = False
        try:
            headers = read_headers(message.request_headers)
            grpc_call = is_grpc(headers)
            call = read_call(headers, read_fields(message), self._names())
            pick = self._picker.pick(call, read_subset(message), header)
        except OutOfBoundsError as error:
            self._listener.refused(error)
            return None, self._picker.invalid(error, grpc_call)
        except Exception as error:
            self._listener.mistaken(error)
            return None, self._picker.failed(grpc_call)
        try:
            self._listener.picked(call, pick, time.perf_counter() - start_s)
        except Exception as error:
            self._listener.mistaken(error)
        return call, pick

    async def _follow(self, stream: Stream, call: Call, decision: Decision, start_s: float, echo: bool) -> None:
        """Pass the rest of the stream on unchanged, which is nothing at all with our own bootstrap."""
        response: ext_proc.ProcessingRequest | None = None
        while isinstance(message := await stream.read(), ext_proc.ProcessingRequest):
            kind = message.WhichOneof("request")
            if kind is None:
                await stream.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message of the stream is empty")
            if kind == "response_headers":
                response = message
            await stream.write(unchanged(message, kind, echo).SerializeToString())
        if response is not None:
            self._listener.served(call, read_served(response, decision, time.perf_counter() - start_s))


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
        self._process: grpc.RpcMethodHandler[ext_proc.ProcessingRequest, bytes] = grpc.stream_stream_rpc_method_handler(
            processor.process, request_deserializer=_read, response_serializer=None
        )

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[ext_proc.ProcessingRequest, bytes] | None:
        """The form for one stream."""
        if handler_call_details.method != _METHOD:
            return None
        return self._once if HEADERS_ONLY in handler_call_details.invocation_metadata else self._process


def read_fields(message: ext_proc.ProcessingRequest) -> Mapping[str, Sequence[object]]:
    """What Envoy extracted of the client's message; empty where it did not."""
    extracted = message.metadata_context.filter_metadata.get(EXTRACTION)
    return {} if extracted is None else Extracted(extracted)


def read_subset(message: ext_proc.ProcessingRequest) -> list[str] | None:
    """The endpoints that the gateway allows; None: all."""
    hint = message.metadata_context.filter_metadata.get(SUBSET_NAMESPACE)
    if hint is None or SUBSET not in hint.fields:
        return None
    values = flatten(hint.fields[SUBSET])
    return [part.strip() for value in values for part in str(value).split(",") if part.strip()]


def read_served(message: ext_proc.ProcessingRequest, decision: Decision, latency_s: float) -> Served:
    """What the response's headers say; a status that is none counts as no answer."""
    headers = read_headers(message.response_headers)
    served = message.metadata_context.filter_metadata.get(DESTINATION_NAMESPACE)
    endpoint = _string(served, SERVED) or headers.get(SERVED, "")
    return Served(
        decision, endpoint, latency_s, code(headers.get(":status", ""), 0), code(headers.get("grpc-status", ""))
    )


class Extracted(Mapping[str, Sequence[object]]):
    """The fields that Envoy extracted, each read when it is asked for: most requests use a few of them."""

    def __init__(self, extracted: struct_pb2.Struct) -> None:
        self._fields = extracted.fields

    def __getitem__(self, path: str) -> Sequence[object]:
        if path not in self._fields:  # protobuf would add it
            raise KeyError(path)
        return flatten(self._fields[path])

    def get(self, path: str, default: Any = ()) -> Any:  # the inherited one takes an exception for every field not sent
        """The leaves of a field, in order."""
        return flatten(self._fields[path]) if path in self._fields else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def read_headers(headers: ext_proc.HttpHeaders) -> Mapping[str, str]:
    """Names, in lower case as HTTP/2 has them, to values; the last of a repeated header counts."""
    return {h.key: h.raw_value.decode("latin-1") or h.value for h in headers.headers.headers}


def flatten(value: struct_pb2.Value) -> list[object]:
    """The leaves of a metadata value, in order: Envoy nests lists where fields repeat within fields that repeat."""
    match value.WhichOneof("kind"):
        case "list_value":
            return [leaf for item in value.list_value.values for leaf in flatten(item)]
        case "string_value":
            return [value.string_value]
        case "number_value":
            return [value.number_value]
        case "bool_value":
            return [value.bool_value]
    return []


def _string(metadata: struct_pb2.Struct | None, key: str) -> str:
    return metadata.fields[key].string_value if metadata is not None and key in metadata.fields else ""


def unchanged(message: ext_proc.ProcessingRequest, kind: str, echo: bool) -> ext_proc.ProcessingResponse:
    """The answer that changes nothing; a body in full-duplex mode has to be sent back to be passed on."""
    response = ext_proc.ProcessingResponse()
    part = getattr(response, kind)
    part.SetInParent()
    if kind.endswith("_body") and echo:
        body = getattr(message, kind)
        part.response.body_mutation.streamed_response.body = body.body
        part.response.body_mutation.streamed_response.end_of_stream = body.end_of_stream
    return response
