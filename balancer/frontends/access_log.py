"""Hears from Envoy how every request ended: the server side of the access log service (ALS).

This is on the hot path, once a request, so it reads each field of an entry once and makes one tuple of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote

import grpc
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf import struct_pb2
from google.protobuf.duration_pb2 import Duration

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
NUMBER_KEY = "number"
"""Of dynamic metadata `balancer`: the number of the decision, in decimal; empty for a refusal."""
NOT_PICKED = -1
REFUSED = -2
_BALANCER_NAMESPACE = "balancer"
_FIELDS_NAMESPACE = "envoy.filters.http.grpc_field_extraction"

# Envoy's own abbreviations (%RESPONSE_FLAGS%) for the fields of its ResponseFlags message.
_FLAGS = {
    "failed_local_healthcheck": "LH",
    "no_healthy_upstream": "UH",
    "upstream_request_timeout": "UT",
    "local_reset": "LR",
    "upstream_remote_reset": "UR",
    "upstream_connection_failure": "UF",
    "upstream_connection_termination": "UC",
    "upstream_overflow": "UO",
    "no_route_found": "NR",
    "delay_injected": "DI",
    "fault_injected": "FI",
    "rate_limited": "RL",
    "unauthorized_details": "UAEX",
    "rate_limit_service_error": "RLSE",
    "downstream_connection_termination": "DC",
    "upstream_retry_limit_exceeded": "URX",
    "stream_idle_timeout": "SI",
    "invalid_envoy_request_headers": "IH",
    "downstream_protocol_error": "DPE",
    "upstream_max_stream_duration_reached": "UMSDR",
    "response_from_cache_filter": "RFCF",
    "no_filter_config_found": "NFCF",
    "duration_timeout": "DT",
    "upstream_protocol_error": "UPE",
    "no_cluster_found": "NC",
    "overload_manager": "OM",
    "dns_resolution_failure": "DF",
    "downstream_remote_reset": "DR",
}
_CLIENT_LEFT = frozenset({"DC", "DR", "DPE"})
_WAY_TO_WORKER_FAILED = frozenset({"UF", "UC", "UR", "UPE", "LR"})
# UNKNOWN, INTERNAL, UNAVAILABLE, DATA_LOSS.
_GRPC_FAULTS = frozenset({2, 13, 14, 15})
_HTTP_FAULTS = frozenset({500, 502, 503})


class Outcome(NamedTuple):
    """How a request ended, as Envoy saw it. After a retry, what concerns the worker is of the last attempt."""

    number: int
    """Of the decision; `NOT_PICKED` where no balancer decided, `REFUSED` where it decided to refuse."""
    upstream: str
    """`ip:port` of the worker that was last tried; empty: none was."""
    latency_s: float
    """From the first byte sent to the worker to the last received from it; without a worker or an answer: of all."""
    first_byte_s: float
    """From the first byte sent to the worker to the first received from it; NaN: none was."""
    duration_s: float
    """From the first byte of the request to the last of the response, the pick and slow clients included."""
    http_status: int
    """0: the client left before there was one."""
    grpc_status: int
    """-1: not gRPC, or ended without one."""
    flags: tuple[str, ...]
    """Envoy's response flags, abbreviated as in its documentation, e.g. `UF`, `DC`, `URX`."""
    bytes_in: int
    """Body of the request."""
    bytes_out: int
    """Body of the response."""
    request_id: str
    """x-request-id."""
    path: str
    model: str
    """Empty: the request is about no model."""
    attempts: int
    """1 + retries; 0: no worker was tried."""


class AccessLog:
    """The ALS servicer: hands the outcomes of each message of Envoy to `on_outcomes`, on the event loop."""

    def __init__(self, on_outcomes: Callable[[list[Outcome]], None]) -> None:
        self._on_outcomes = on_outcomes

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it there."""
        handler = grpc.stream_unary_rpc_method_handler(
            self._serve,
            request_deserializer=als_pb2.StreamAccessLogsMessage.FromString,
            response_serializer=als_pb2.StreamAccessLogsResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"StreamAccessLogs": handler}),))

    async def _serve(
        self,
        _: object,
        context: grpc.aio.ServicerContext[als_pb2.StreamAccessLogsMessage, als_pb2.StreamAccessLogsResponse],
    ) -> als_pb2.StreamAccessLogsResponse:
        """Serve one worker thread of one Envoy until it leaves."""
        on_outcomes = self._on_outcomes
        while isinstance(message := await context.read(), als_pb2.StreamAccessLogsMessage):
            entries = message.http_logs.log_entry
            if entries:
                on_outcomes([outcome_of(entry) for entry in entries])
        return als_pb2.StreamAccessLogsResponse()


def outcome_of(entry: accesslog_pb2.HTTPAccessLogEntry) -> Outcome:
    """Read an entry of Envoy's HTTP access log."""
    common = entry.common_properties
    request = entry.request
    response = entry.response
    metadata = common.metadata.filter_metadata
    path = request.path
    duration_s = _seconds(common.duration)
    latency_s, first_byte_s = duration_s, float("nan")
    if common.HasField("time_to_last_upstream_rx_byte"):
        sent_s = _seconds(common.time_to_first_upstream_tx_byte)
        latency_s = _seconds(common.time_to_last_upstream_rx_byte) - sent_s
        first_byte_s = _seconds(common.time_to_first_upstream_rx_byte) - sent_s
    # A successful answer has its status in the trailers, an immediate error in the headers.
    grpc_status = response.response_trailers.get("grpc-status") or response.response_headers.get("grpc-status")
    return Outcome(
        number=_number(metadata[_BALANCER_NAMESPACE]) if _BALANCER_NAMESPACE in metadata else NOT_PICKED,
        upstream=_upstream(common),
        latency_s=latency_s,
        first_byte_s=first_byte_s,
        duration_s=duration_s,
        http_status=response.response_code.value,
        grpc_status=int(grpc_status) if grpc_status and grpc_status.isdecimal() else -1,
        flags=tuple([_FLAGS.get(field.name, field.name) for field, _ in common.response_flags.ListFields()]),
        bytes_in=request.request_body_bytes,
        bytes_out=response.response_body_bytes,
        request_id=request.request_id,
        path=path,
        model=_extracted_model(metadata[_FIELDS_NAMESPACE]) if _FIELDS_NAMESPACE in metadata else _model_in_path(path),
        attempts=common.upstream_request_attempt_count,
    )


def worker_fault(outcome: Outcome) -> bool:
    """Whether the outcome speaks against the worker, rather than against the request, the client or nobody.

    Against it speak: no connection, a reset or broken protocol; and of its answers UNAVAILABLE, INTERNAL, UNKNOWN and
    DATA_LOSS, in REST 500, 502 and 503. UNAVAILABLE is also what Triton says when its queue is full. That counts too:
    it is a fast answer, and a worker that refuses must not look better for it than one that serves.

    Not against it: what the client got wrong (INVALID_ARGUMENT, NOT_FOUND, and so on), a client that left, a deadline
    that passed (its latency already speaks), and whatever Envoy or the balancer answered without asking a worker.
    """
    if not outcome.upstream:
        return False
    if outcome.flags:
        if not _CLIENT_LEFT.isdisjoint(outcome.flags):
            return False
        if not _WAY_TO_WORKER_FAILED.isdisjoint(outcome.flags):
            return True
    if outcome.grpc_status >= 0:
        return outcome.grpc_status in _GRPC_FAULTS
    return outcome.http_status in _HTTP_FAULTS


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos * 1e-9


def _upstream(common: accesslog_pb2.AccessLogCommon) -> str:
    """As Envoy writes addresses and picks are given: brackets around IPv6."""
    address = common.upstream_remote_address.socket_address
    host = address.address
    if not host:
        return ""
    return f"[{host}]:{address.port_value}" if ":" in host else f"{host}:{address.port_value}"


def _number(balancer: struct_pb2.Struct) -> int:
    number = balancer.fields[NUMBER_KEY].string_value if NUMBER_KEY in balancer.fields else ""
    return int(number) if number.isdecimal() else REFUSED


def _extracted_model(extracted: struct_pb2.Struct) -> str:
    fields = extracted.fields
    for key in ("model_name", "name"):
        if key in fields:
            values = fields[key].list_value.values
            if values:
                return str(values[0].string_value)
    return ""


def _model_in_path(path: str) -> str:
    """`/v2/models/NAME/...` in REST."""
    parts = path.partition("?")[0].split("/", 4)
    return unquote(parts[3]) if len(parts) > 3 and parts[1:3] == ["v2", "models"] else ""
