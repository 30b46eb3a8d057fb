"""Envoy's own logs, as files of JSON lines: the access log for people, and the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from balancer.gateway import names
from balancer.gateway.bootstrap_tls import Node

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class AuditLog:
    """Who asked for what, whence, and who served it."""

    file: str
    """Or /dev/stdout."""
    share: float = 1.0


def access_logger(path: str) -> Node:
    """One line for each request, with all that tells where its time went."""
    return _logger(
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


def audit_logger(log: AuditLog) -> Node:
    """One line for each request of a share. Neither query nor any header that may carry a secret stands in it.

    The share is drawn by Envoy: by the request's id, as its logs draw otherwise, clients could choose to be left out.
    """
    logger = _logger(
        log.file,
        {
            "time": "%START_TIME%",
            "request_id": f"%REQ({names.REQUEST_ID_HEADER.upper()})%",
            "source": "%DOWNSTREAM_REMOTE_ADDRESS%",
            "principal": f"%REQ({names.PRINCIPAL_HEADER.upper()})%",
            "method": "%REQ(:METHOD)%",
            "path": "%PATH(NQ)%",
            "model": f"%DYNAMIC_METADATA({names.TOLD_NAMESPACE}:{names.MODEL_KEY})%",
            "policy": f"%DYNAMIC_METADATA({names.TOLD_NAMESPACE}:{names.POLICY_KEY})%",
            "worker": "%UPSTREAM_HOST_NAME_WITHOUT_PORT%",
            "served": "%UPSTREAM_HOST%",
            "status": "%RESPONSE_CODE%",
            "grpc_status": "%GRPC_STATUS_NUMBER%",
            "details": "%RESPONSE_CODE_DETAILS%",
        },
    )
    if log.share < 1:
        percent = {"numerator": round(log.share * _MILLION), "denominator": "MILLION"}
        sampled = {
            "runtime_key": "balancer.audit_share",
            "percent_sampled": percent,
            "use_independent_randomness": True,
        }
        logger["filter"] = {"runtime_filter": sampled}
    return logger


def _logger(path: str, fields: Node) -> Node:
    return {
        "name": names.FILE_LOG,
        "typed_config": {"@type": names.FILE_LOG_TYPE, "path": path, "log_format": {"json_format": fields}},
    }
