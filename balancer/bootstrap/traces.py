"""Envoy's own logs, as JSON lines (the access log for people, the audit log), and its traces.

A span for each request of the sampled share has the decision as attributes. Envoy sends them to a collector over OTLP,
and hands the W3C trace context on to the worker, so that Triton's own spans (queue, compute) belong to the same trace.
https://www.w3.org/TR/trace-context/
"""

import copy

from balancer.bootstrap import nodes
from balancer.bootstrap.nodes import Node
from balancer.bootstrap.sections import TracesSection
from balancer.extproc import names

_TRACE_HEADERS = (names.TRACE_HEADER, names.TRACE_STATE_HEADER)
_SERVICE = "gateway"
"""Envoy's `service.name`; an overlay may change it."""
_TIMEOUT = "1s"
_MILLION = 1_000_000
_SAMPLED = ".*-[0-9a-f][13579bdf]"
"""A `traceparent` whose flags say so."""
_TRACED_FLUSH = "1s"


def add_traces(bootstrap: Node, traces: TracesSection) -> None:
    resources = bootstrap["static_resources"]
    (listener,) = resources["listeners"]
    manager = nodes.manager_of(listener)
    manager["tracing"] = {
        "provider": {
            "name": names.TRACER,
            "typed_config": {
                "@type": names.TRACER_TYPE,
                "grpc_service": {"envoy_grpc": {"cluster_name": names.TRACES_CLUSTER}, "timeout": _TIMEOUT},
                "service_name": _SERVICE,
                "sampler": _sampler(traces.share),
            },
        },
        # The sampler decides, which knows whether there is a trace already.
        "random_sampling": {"value": 100},
        "client_sampling": {"value": 0},
        # The way to the worker, each attempt by itself.
        "spawn_upstream_span": True,
        "custom_tags": decision_tags(names.LOG_NAMESPACE, names.DESTINATION_NAMESPACE),
    }
    if not traces.follow_clients:
        nodes.mutations_of(manager)[:0] = [{"remove": header} for header in _TRACE_HEADERS]
    for log in manager["access_log"]:
        if log["name"] == names.OUTCOMES_LOG:
            # As Envoy hands it on: with its own id where it began the trace, and whether that is sampled.
            log["typed_config"]["additional_request_headers_to_log"].append(names.TRACE_HEADER)
    resources["clusters"].append(nodes.grpc_cluster(names.TRACES_CLUSTER, traces.collector))


def _sampler(share: float) -> Node:
    """What the trace that a request belongs to says, else a share of new traces, by their ids."""
    of_new = {
        "name": f"{names.TRACER}.samplers.trace_id_ratio_based",
        "typed_config": {
            "@type": f"{names.SAMPLER_TYPE}TraceIdRatioBasedSamplerConfig",
            "sampling_percentage": {"numerator": round(share * _MILLION), "denominator": "MILLION"},
        },
    }
    return {
        "name": f"{names.TRACER}.samplers.parent_based",
        "typed_config": {"@type": f"{names.SAMPLER_TYPE}ParentBasedSamplerConfig", "wrapped_sampler": of_new},
    }


def traced_logger(outcomes: Node) -> Node:
    """The log that sends the balancer sampled requests, where `outcomes`, the log of each, is not there."""
    log = copy.deepcopy(outcomes)
    sampled = {"safe_regex": {"regex": _SAMPLED}}
    log["filter"] = {"header_filter": {"header": {"name": names.TRACE_HEADER, "string_match": sampled}}}
    common = log["typed_config"]["common_config"]
    common |= {"log_name": names.TRACED_LOG, "buffer_flush_interval": _TRACED_FLUSH}
    return log


def decision_tags(policy: str, destination: str) -> list[Node]:
    """Attributes of the decision; `policy`, `destination`: the namespaces with the policy, and with the endpoints."""
    return [
        _from_metadata("balancer.policy", policy, names.POLICY_KEY),
        _from_metadata("balancer.decision", names.DECISION_NAMESPACE, names.NUMBER_KEY),
        _from_metadata("balancer.picked", destination, names.DESTINATION),
        _from_metadata("balancer.pick_us", names.DECISION_NAMESPACE, names.PICK_US_KEY),
    ]


def _from_metadata(tag: str, namespace: str, key: str) -> Node:
    return {
        "tag": tag,
        "metadata": {"kind": {"request": {}}, "metadata_key": {"key": namespace, "path": [{"key": key}]}},
    }


def access_logger(path: str) -> Node:
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
