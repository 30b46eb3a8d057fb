"""Receives from Envoy how every request ended: the server side of the access log service (ALS).

This is on the hot path, once a request, so it reads each field of an entry once and makes one tuple of it.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf import struct_pb2
from google.protobuf.duration_pb2 import Duration

from balancer.bounds import MAX_LATENCY_S, MAX_TEXT_BYTES
from balancer.extproc.kserve import is_openai
from balancer.extproc.names import (
    ANSWERS_LOG,
    DECISION_NAMESPACE,
    EXTRACTION,
    GATEWAY_REQUEST_ID_HEADER,
    LOG_NAMESPACE,
    MODEL_KEY,
    NUMBER_KEY,
    OUTCOMES_SERVICE,
    RUN_SEPARATOR,
    TRACE_HEADER,
    TRACED_LOG,
    USAGE_NAMESPACE,
)
from balancer.extproc.prompts import USAGE_KEYS, Usage, usage_of
from balancer.extproc.responses import OF_ABORTED, By, Verdict, code, verdict
from balancer.extproc.wire import read_message

NOT_PICKED = -1
REFUSED = -2
OF_ANOTHER_RUN = -3

_ABORTED: tuple[tuple[By, frozenset[str]], ...] = (
    (
        "client",
        frozenset(("downstream_connection_termination", "downstream_remote_reset", "downstream_protocol_error")),
    ),
    ("gateway", frozenset(("overload_manager", "upstream_overflow"))),
    (
        "deadline",
        frozenset(("upstream_request_timeout", "duration_timeout", "upstream_max_stream_duration_reached")),
    ),
    (
        "worker",
        frozenset(
            (
                *("upstream_connection_failure", "upstream_connection_termination", "upstream_remote_reset"),
                *("upstream_protocol_error", "local_reset"),
            )
        ),
    ),
)
"""By Envoy's response flags who ended a request, the first that one speaks of: against the worker speak no connection,
a reset, and broken protocol."""
# As `responses.decision` writes it.
_NUMBER = re.compile(rf"(?P<run>[0-9a-z]{{1,32}}){re.escape(RUN_SEPARATOR)}(?P<number>[0-9]{{1,19}})")


# Of version 00; the last bit of the flags says that it is sampled. https://www.w3.org/TR/trace-context/#traceparent-header
_SAMPLED = re.compile(r"00-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f][13579bdf]")
_MOST_TRACED = 4
Entry: TypeAlias = accesslog_pb2.HTTPAccessLogEntry
Read = TypeVar("Read")


class Outcome(NamedTuple):
    """How a request ended, as Envoy saw it. After a retry, what concerns the worker is of the last attempt."""

    number: int
    """The decision's number; `NOT_PICKED` where no balancer decided, `REFUSED` where it decided to refuse,
    `OF_ANOTHER_RUN` where a process that is gone decided."""
    upstream: str
    """`ip:port` of the worker that was last tried; empty: none was."""
    latency_s: float
    """From the first byte sent to the worker to the last received from it; without a worker or an answer: of all. NaN:
    out of bounds."""
    first_byte_s: float
    """From the first byte sent to the worker to the first received from it; NaN: none was."""
    http_status: int
    """0: the client left before there was one."""
    grpc_status: int
    """-1: not gRPC, or ended without one."""
    by: By
    bytes_in: int
    bytes_out: int
    gateway_id: str
    """`GATEWAY_REQUEST_ID_HEADER`; empty where the gateway is not ours."""
    path: str
    model: str
    """Empty: the request is about no model."""
    attempts: int
    """1 + retries; 0: no worker was tried."""
    usage: Usage | None = None
    trace: str = ""
    """Id of its trace, 32 hexadecimal digits; empty: it was not sampled, or Envoy makes no traces."""


class UpstreamAnswer(NamedTuple):
    """What Envoy says of an attempt before the client has all of its answer. The outcome follows."""

    gateway_id: str
    path: str
    upstream: str
    latency_s: float
    http_status: int
    """0: the worker waits for the rest of the request, and counts as free until then."""
    grpc_status: int


class OutcomeListener(Protocol):
    def outcomes(self, outcomes: list[Outcome]) -> None: ...

    def answered(self, answers: list[UpstreamAnswer]) -> None:
        """Workers are done with these, though their clients may not be."""

    def traced(self, outcomes: list[Outcome]) -> None:
        """So these ended, some of the traced requests that Envoy's module tells of, and which are counted there."""

    def out_of_bounds(self, field: str) -> None:
        """A value of an outcome was refused; the rest of it counts."""

    def failed_internally(self, error: Exception) -> None: ...


class AccessLog:
    def __init__(self, listener: OutcomeListener, run: str = "0") -> None:
        self._listener = listener
        self._run = run

    def add_to(self, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((self.handler(),))

    def handler(self) -> grpc.GenericRpcHandler:
        handler = grpc.stream_unary_rpc_method_handler(
            self._serve,
            request_deserializer=read_message,
            response_serializer=als_pb2.StreamAccessLogsResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(OUTCOMES_SERVICE, {"StreamAccessLogs": handler})

    async def _serve(
        self,
        _: object,
        context: grpc.aio.ServicerContext[als_pb2.StreamAccessLogsMessage, als_pb2.StreamAccessLogsResponse],
    ) -> als_pb2.StreamAccessLogsResponse:
        log_name = ""
        while isinstance(message := await context.read(), als_pb2.StreamAccessLogsMessage):
            # The first message of a stream has it.
            log_name = message.identifier.log_name or log_name
            if log_name == ANSWERS_LOG:
                self._take_answers(message.http_logs.log_entry)
            elif log_name == TRACED_LOG:
                self._take_traced(message.http_logs.log_entry)
            else:
                self._take(message.http_logs.log_entry)
        return als_pb2.StreamAccessLogsResponse()

    def _take(self, entries: Iterable[Entry]) -> None:
        """Nothing that is in one entry may cost the others: requests would count in flight for ever."""
        outcomes = list(self._each(entries, lambda entry: outcome_of(entry, self._run)))
        for outcome in outcomes:
            if outcome.latency_s != outcome.latency_s:  # NaN
                self._listener.out_of_bounds("latency_s")
        if outcomes:
            self._listener.outcomes(outcomes)

    def _take_answers(self, entries: Iterable[Entry]) -> None:
        if answers := list(self._each(entries, answer_of)):
            self._listener.answered(answers)

    def _take_traced(self, entries: Sequence[Entry]) -> None:
        """Some of them are enough: one is shown of each bucket. So it costs little where clients have all traced."""
        if traced := list(self._each(entries[-_MOST_TRACED:], self._traced)):
            self._listener.traced(traced)

    def _traced(self, entry: Entry) -> Outcome | None:
        outcome = outcome_of(entry, self._run)
        fields = entry.common_properties.metadata.filter_metadata[DECISION_NAMESPACE].fields
        model = fields[MODEL_KEY].string_value if MODEL_KEY in fields else outcome.model
        return outcome._replace(model=model) if outcome.trace and len(model) <= MAX_TEXT_BYTES else None

    def _each(self, entries: Iterable[Entry], read: Callable[[Entry], Read | None]) -> Iterator[Read]:
        for entry in entries:
            try:
                found = read(entry)
            except Exception as error:
                self._listener.failed_internally(error)
                continue
            if found is not None:
                yield found


def outcome_of(entry: Entry, run: str = "0") -> Outcome:
    """Read an entry of Envoy's HTTP access log; the gate for all that it says.

    `run`: of this process, as in `responses.decision`: only its own numbers count.
    """
    common = entry.common_properties
    request = entry.request
    response = entry.response
    metadata = common.metadata.filter_metadata
    path = request.path
    latency_s, first_byte_s = _seconds(common.duration), math.nan
    if common.HasField("time_to_last_upstream_rx_byte"):
        sent_s = _seconds(common.time_to_first_upstream_tx_byte)
        latency_s = _seconds(common.time_to_last_upstream_rx_byte) - sent_s
        first_byte_s = _seconds(common.time_to_first_upstream_rx_byte) - sent_s
    # A successful answer has its status in the trailers, an immediate error in the headers.
    grpc_status = response.response_trailers.get("grpc-status") or response.response_headers.get("grpc-status")
    model = _extracted_model(metadata[EXTRACTION]) if EXTRACTION in metadata else _model_in_path(path)
    if not model and is_openai(path) and LOG_NAMESPACE in metadata:
        model = metadata[LOG_NAMESPACE].fields[MODEL_KEY].string_value
    return Outcome(
        number=_field_number(metadata[DECISION_NAMESPACE], run) if DECISION_NAMESPACE in metadata else NOT_PICKED,
        upstream=_upstream(common),
        latency_s=latency_s if 0.0 <= latency_s <= MAX_LATENCY_S else math.nan,
        first_byte_s=first_byte_s if 0.0 <= first_byte_s <= MAX_LATENCY_S else math.nan,
        http_status=response.response_code.value,
        grpc_status=code(grpc_status) if grpc_status else -1,
        by=_aborted_by(common.response_flags) if common.response_flags.ByteSize() else "",
        bytes_in=request.request_body_bytes,
        bytes_out=response.response_body_bytes,
        gateway_id=request.request_headers.get(GATEWAY_REQUEST_ID_HEADER, "")[:MAX_TEXT_BYTES],
        path=path,
        model=model if len(model) <= MAX_TEXT_BYTES else "",
        attempts=common.upstream_request_attempt_count,
        usage=_usage(metadata[USAGE_NAMESPACE]) if USAGE_NAMESPACE in metadata else None,
        trace=sampled_trace(parent) if (parent := request.request_headers.get(TRACE_HEADER)) else "",
    )


def answer_of(entry: Entry) -> UpstreamAnswer | None:
    """Read an entry of the router's log; None: the worker is not done, or the request may go to another one."""
    common, request, response = entry.common_properties, entry.request, entry.response
    # An error of gRPC that is headers alone may be tried again. It needs no window, so no client can leave it unread.
    if common.response_flags.ByteSize() or "grpc-status" in response.response_headers:
        return None
    begun = common.HasField("time_to_first_upstream_rx_byte")
    if common.HasField("time_to_last_upstream_rx_byte"):
        until_s = _seconds(common.time_to_last_upstream_rx_byte)
    elif _is_periodic(common) and begun:
        # What is unread of an answer to one request was there when it began.
        until_s = _seconds(common.time_to_first_upstream_rx_byte)
    elif _is_periodic(common) and not common.HasField("time_to_last_upstream_tx_byte"):
        until_s = math.nan
    else:
        return None
    grpc_status = response.response_trailers.get("grpc-status")
    latency_s = until_s - _seconds(common.time_to_first_upstream_tx_byte)
    return UpstreamAnswer(
        request.request_headers.get(GATEWAY_REQUEST_ID_HEADER, "")[:MAX_TEXT_BYTES],
        request.path,
        _upstream(common),
        latency_s if 0.0 <= latency_s <= MAX_LATENCY_S else math.nan,
        response.response_code.value if begun else 0,
        code(grpc_status) if grpc_status else -1,
    )


def _is_periodic(common: accesslog_pb2.AccessLogCommon) -> bool:
    return bool(common.access_log_type == accesslog_pb2.UpstreamPeriodic)


def sampled_trace(parent: str) -> str:
    """The id of the trace in a header `traceparent`; empty where it is not sampled.

    Envoy writes the header, but leaves a client's as it came where it cannot read it.
    """
    match = _SAMPLED.fullmatch(parent)
    return match["trace"] if match and match["trace"].strip("0") and match["span"].strip("0") else ""


def _aborted_by(flags: accesslog_pb2.ResponseFlags) -> By:
    found = {field.name for field, _ in flags.ListFields()}
    return next((by for by, names in _ABORTED if not names.isdisjoint(found)), "")


def verdict_of(outcome: Outcome) -> Verdict:
    """`verdict` with Envoy's own account of how the request ended. One that got no worker says nothing of any."""
    if not outcome.upstream:
        return False, "client"
    return OF_ABORTED[outcome.by] if outcome.by else verdict(outcome.grpc_status, outcome.http_status)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos * 1e-9


def _upstream(common: accesslog_pb2.AccessLogCommon) -> str:
    """As Envoy writes addresses and picks are given: brackets around IPv6."""
    address = common.upstream_remote_address.socket_address
    host = address.address
    if not host:
        return ""
    return f"[{host}]:{address.port_value}" if ":" in host else f"{host}:{address.port_value}"


def _field_number(balancer: struct_pb2.Struct, run: str) -> int:
    match = _NUMBER.fullmatch(balancer.fields[NUMBER_KEY].string_value) if NUMBER_KEY in balancer.fields else None
    if match is None:
        return REFUSED
    return int(match["number"]) if match["run"] == run else OF_ANOTHER_RUN


def _usage(read: struct_pb2.Struct) -> Usage:
    return usage_of({key: read.fields[key].number_value for key in USAGE_KEYS if key in read.fields})


def _extracted_model(extracted: struct_pb2.Struct) -> str:
    fields = extracted.fields
    for key in ("model_name", "name"):
        if key in fields:
            values = fields[key].list_value.values
            if values:
                return str(values[0].string_value)
    return ""


def _model_in_path(path: str) -> str:
    parts = path.partition("?")[0].split("/", 4)
    return unquote(parts[3]) if len(parts) > 3 and parts[1:3] == ["v2", "models"] else ""
