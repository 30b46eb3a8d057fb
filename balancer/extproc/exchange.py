"""What the messages of ext_proc say, and the answers to those that other gateways send after a request's headers.

Bodies and trailers pass as they are, but that the start of a gRPC request whose model is split gets a version. How that
is said differs by the mode in which a body is sent
(https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import struct_pb2

from balancer.extproc.inference_bytes import LeftError, framed_with_version
from balancer.extproc.names import DESTINATION_NAMESPACE, EXTRACTION, SERVED, SUBSET, SUBSET_NAMESPACE
from balancer.extproc.prompts import AnswerReader, Usage
from balancer.extproc.responses import code
from balancer.scheduler.after_decision import Decision
from balancer.scheduler.canary.split import VersionDraw

_SENT_BACK = (
    processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED,
    processing_mode_pb2.ProcessingMode.GRPC,
)
"""Modes in which a body passes only if it is sent back; in the others an answer without a mutation lets it pass."""
_KEPT = (processing_mode_pb2.ProcessingMode.NONE, processing_mode_pb2.ProcessingMode.GRPC)
"""Modes in which the body of a request cannot be changed."""
_BODIES = ("request_body", "response_body")


@dataclass(frozen=True, slots=True)
class Served:
    """How a request ended, for gateways that send the response headers here instead of an access log."""

    decision: Decision
    endpoint: str
    latency_s: float
    status: int
    """HTTP status; 0: the stream ended without response headers: the client left."""
    grpc_status: int = -1
    """-1: not gRPC, or neither in the headers nor in trailers."""
    draw: VersionDraw | None = None
    """By which the request got its version; None: by none."""
    usage: Usage | None = None
    """The tokens that the answer told of, where the request had a prompt."""
    request_bytes: int = 0
    """Size of that request's body."""


class Exchange:
    """One request, from its pick to the end of what the gateway tells of it."""

    def __init__(
        self,
        first: ext_proc.ProcessingRequest,
        decision: Decision,
        start_s: float,
        draw: VersionDraw | None = None,
        version: str = "",
        prompt_bytes: int = 0,
    ) -> None:
        """
        Args:
            first: The message with the request's headers, which names the modes.
            decision: What was decided.
            start_s: When it came.
            draw: By which the request is to get a version.
            version: To be written into the body; empty: it stands in the path already, or there is none.
            prompt_bytes: Of a request to a language model, that were read; 0: it is none.
        """
        self.decision = decision
        self._draw = None if version else draw
        self._to_write, self._drawn = version, draw
        self._start_s = start_s
        self._sent_back = sent_back(first)
        self._endpoint = ""
        self._status = 0
        self._grpc_status = -1
        self._answer = AnswerReader() if prompt_bytes else None
        self._prompt_bytes = prompt_bytes
        self.answered = False
        self.left = ""
        """Why the request got no version, though it was to: a label."""

    def answer(self, message: ext_proc.ProcessingRequest, kind: str) -> bytes:
        """The answer to one message, whose oneof is `kind`; takes in what it says of the response."""
        if kind == "response_headers":
            self._read_response(message)
        elif kind == "response_trailers":
            self._read_status(read_headers(message.response_trailers))
        elif kind == "response_body" and self._answer is not None:
            self._answer.feed(message.response_body.body)
        body = self._with_version(message.request_body) if kind == "request_body" else None
        return passed(message, kind, self._sent_back.get(kind, False), body)

    @property
    def succeeds(self) -> bool:
        """As far as the answer's headers say."""
        return self._status == HTTPStatus.OK

    def ended(self, now_s: float) -> Served:
        took_s = now_s - self._start_s
        usage = None if self._answer is None else self._answer.usage()
        seen = self._endpoint, took_s, self._status, self._grpc_status
        return Served(self.decision, *seen, self._draw, usage, self._prompt_bytes)

    def _with_version(self, body: ext_proc.HttpBody) -> bytes | None:
        """The start of the body with the version that the request is to get; None: it stays as it is."""
        version = self._to_write
        if not version or not body.body:
            return None
        self._to_write = ""
        try:
            written = framed_with_version(body.body, version)
        except LeftError as error:
            self.left = error.why
            return None
        self._draw = self._drawn
        return written

    def _read_response(self, message: ext_proc.ProcessingRequest) -> None:
        self.answered = True
        headers = read_headers(message.response_headers)
        served = message.metadata_context.filter_metadata.get(DESTINATION_NAMESPACE)
        endpoint = served.fields[SERVED].string_value if served is not None and SERVED in served.fields else ""
        self._endpoint = endpoint or headers.get(SERVED, "")
        self._status = code(headers.get(":status", ""), 0)
        self._read_status(headers)

    def _read_status(self, headers: Mapping[str, str]) -> None:
        """gRPC's, which stands in the headers where the answer is an error alone, and else in the trailers."""
        self._grpc_status = code(headers.get("grpc-status", ""), self._grpc_status)


def sent_back(first: ext_proc.ProcessingRequest) -> dict[str, bool]:
    """For each kind of body, whether it has to be sent back to pass.

    A gateway that does not tell its modes is taken to send both ways in full duplex, as the Endpoint Picker Protocol
    has it.
    """
    if not first.HasField("protocol_config"):
        return dict.fromkeys(_BODIES, True)
    modes = first.protocol_config
    return {body: getattr(modes, f"{body}_mode") in _SENT_BACK for body in _BODIES}


def hands_over(first: ext_proc.ProcessingRequest) -> bool:
    """Whether the gateway takes another body in the place of the request's; where it does not tell, as in `sent_back`.

    In the mode `GRPC`, Envoy (1.40) sends on what came, whatever is answered.
    """
    modes = first.protocol_config
    return not first.HasField("protocol_config") or modes.request_body_mode not in _KEPT


def passed(message: ext_proc.ProcessingRequest, kind: str, back: bool, written: bytes | None = None) -> bytes:
    """The answer that lets a message pass.

    Args:
        message: Which the gateway sent.
        kind: Its oneof.
        back: A body has to be sent back.
        written: The body that goes on in its place; None: it goes on as it is.
    """
    response = ext_proc.ProcessingResponse()
    part = getattr(response, kind)
    part.SetInParent()
    if not back and written is not None:
        part.response.body_mutation.body = written
    if back:
        body = getattr(message, kind)
        streamed = part.response.body_mutation.streamed_response
        streamed.body = body.body if written is None else written
        streamed.end_of_stream = body.end_of_stream
        streamed.end_of_stream_without_message = body.end_of_stream_without_message
        streamed.grpc_message_compressed = body.grpc_message_compressed
    serialised: bytes = response.SerializeToString()
    return serialised


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


class Extracted(Mapping[str, Sequence[object]]):
    """The fields that Envoy extracted, each read when it is asked for: most requests use a few of them."""

    def __init__(self, extracted: struct_pb2.Struct) -> None:
        self._fields = extracted.fields

    def __getitem__(self, path: str) -> Sequence[object]:
        if path not in self._fields:  # protobuf would add it
            raise KeyError(path)
        return flatten(self._fields[path])

    def get(self, path: str, default: Any = ()) -> Any:  # the inherited one takes an exception for every field not sent
        return flatten(self._fields[path]) if path in self._fields else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def read_headers(headers: ext_proc.HttpHeaders | ext_proc.HttpTrailers) -> Mapping[str, str]:
    """Names, in lower case as HTTP/2 has them, to values; the last of a repeated header counts."""
    values = headers.trailers if isinstance(headers, ext_proc.HttpTrailers) else headers.headers
    return {h.key: h.raw_value.decode("latin-1") or h.value for h in values.headers}


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
