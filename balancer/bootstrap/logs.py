"""Envoy's own logs, as files of JSON lines: the access log for people, and the audit log."""

from __future__ import annotations

from balancer.bootstrap.nodes import Node
from balancer.extproc import names


def access_logger(path: str) -> Node:
    """One line for each request, with all that tells where its time went."""
    return _logger(
        names.FILE_LOG,
        path,
        {
            "time": "%START_TIME%",
            "request_id": f"%REQ({names.REQUEST_ID_HEADER.upper()})%",
            "gateway_request_id": f"%REQ({names.GATEWAY_REQUEST_ID_HEADER.upper()})%",
            "triton_request_id": f"%CEL(metadata.filter_metadata['{names.EXTRACTION}']['id'][0])%",
            "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
            "method": "%REQ(:METHOD)%",
            "path": "%REQ(:PATH)%",
            "status": "%RESPONSE_CODE%",
            "grpc_status": "%GRPC_STATUS_NUMBER%",
            "flags": "%RESPONSE_FLAGS%",
            "details": "%RESPONSE_CODE_DETAILS%",
            "duration_ms": "%DURATION%",
            "received_ms": "%COMMON_DURATION(DS_RX_BEG:DS_RX_END:ms)%",
            "pick_us": f"%FILTER_STATE({names.PICKS_FILTER}:FIELD:request_header_latency_us)%",
            "worker_first_byte_ms": "%COMMON_DURATION(US_TX_BEG:US_RX_BEG:ms)%",
            "worker_ms": "%COMMON_DURATION(US_TX_BEG:US_RX_END:ms)%",
            "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
            "picked": f"%DYNAMIC_METADATA({names.DESTINATION_NAMESPACE}:{names.DESTINATION})%",
            "picked_in_envoy": f"%DYNAMIC_METADATA({names.DECISION_NAMESPACE}:{names.DESTINATION})%",
            "worker": "%UPSTREAM_HOST_NAME_WITHOUT_PORT%",
            "served": "%UPSTREAM_HOST%",
            "request_bytes": "%BYTES_RECEIVED%",
            "response_bytes": "%BYTES_SENT%",
        },
    )


def audit_logger(path: str) -> Node:
    """One line for each request: who asked for what, whence, and who served it, without the query and any header that
    may carry a secret."""
    return _logger(
        names.AUDIT_LOG,
        path,
        {
            "time": "%START_TIME%",
            "request_id": f"%REQ({names.REQUEST_ID_HEADER.upper()})%",
            "source": "%DOWNSTREAM_REMOTE_ADDRESS%",
            "principal": f"%REQ({names.PRINCIPAL_HEADER.upper()})%",
            "method": "%REQ(:METHOD)%",
            "path": "%PATH(NQ)%",
            "model": f"%DYNAMIC_METADATA({names.LOG_NAMESPACE}:{names.MODEL_KEY})%",
            "policy": f"%DYNAMIC_METADATA({names.LOG_NAMESPACE}:{names.POLICY_KEY})%",
            "worker": "%UPSTREAM_HOST_NAME_WITHOUT_PORT%",
            "served": "%UPSTREAM_HOST%",
            "status": "%RESPONSE_CODE%",
            "grpc_status": "%GRPC_STATUS_NUMBER%",
            "details": "%RESPONSE_CODE_DETAILS%",
        },
    )


def _logger(name: str, path: str, fields: Node) -> Node:
    return {
        "name": name,
        "typed_config": {"@type": names.FILE_LOG_TYPE, "path": path, "log_format": {"json_format": fields}},
    }
