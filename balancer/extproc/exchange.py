"""What a gateway other than our own Envoy sends after a request's headers, and what it is answered.

Bodies and trailers pass as they are, but that the start of a gRPC request whose model is split gets a version. How that
is said differs by the mode in which a body is sent
(https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from balancer.core.router import Decision
from balancer.core.trials.split import Lot
from balancer.gateway.messages import read_headers
from balancer.gateway.names import DESTINATION_NAMESPACE, SERVED
from balancer.gateway.verdict import code
from balancer.gateway.versions import LeftError, framed_with_version

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
    """-1: not gRPC, or told neither in the headers nor in trailers."""
    lot: Lot | None = None
    """By which the request got its version; None: by none."""


class Exchange:
    """One request, from its pick to the end of what the gateway tells of it."""

    def __init__(
        self,
        first: ext_proc.ProcessingRequest,
        decision: Decision,
        start_s: float,
        lot: Lot | None = None,
        in_body: bool = True,
    ) -> None:
        """
        Args:
            first: The message with the request's headers, which names the modes.
            decision: What was decided.
            start_s: When it came.
            lot: By which the request is to get a version.
            in_body: The version is to stand in the body; else it stands in the path already.
        """
        self._decision = decision
        self._lot = None if in_body else lot
        self._to_write = lot if in_body else None
        self._start_s = start_s
        self._sent_back = sent_back(first)
        self._endpoint = ""
        self._status = 0
        self._grpc_status = -1
        self.answered = False
        """Whether response headers came."""
        self.left = ""
        """Why the request got no version, though it was to: a label."""

    def answer(self, message: ext_proc.ProcessingRequest, kind: str) -> bytes:
        """The answer to one message, whose oneof is `kind`; takes in what it says of the response."""
        if kind == "response_headers":
            self._read_response(message)
        elif kind == "response_trailers":
            self._read_status(read_headers(message.response_trailers))
        body = self._with_version(message.request_body) if kind == "request_body" else None
        return passed(message, kind, self._sent_back.get(kind, False), body)

    def ended(self, now_s: float) -> Served:
        """How it ended, as far as it was told."""
        took_s = now_s - self._start_s
        return Served(self._decision, self._endpoint, took_s, self._status, self._grpc_status, self._lot)

    def _with_version(self, body: ext_proc.HttpBody) -> bytes | None:
        """The start of the body with the version that the request is to get; None: it stays as it is."""
        lot = self._to_write
        if lot is None or not body.body:
            return None
        self._to_write = None
        try:
            written = framed_with_version(body.body, lot.version)
        except LeftError as error:
            self.left = error.why
            return None
        self._lot = lot
        return written

    def _read_response(self, message: ext_proc.ProcessingRequest) -> None:
        self.answered = True
        headers = read_headers(message.response_headers)
        served = message.metadata_context.filter_metadata.get(DESTINATION_NAMESPACE)
        told = served.fields[SERVED].string_value if served is not None and SERVED in served.fields else ""
        self._endpoint = told or headers.get(SERVED, "")
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
