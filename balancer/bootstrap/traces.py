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
_MILLION = 1_000_000
_TRACED_FLUSH = "1s"


def add_traces(bootstrap: Node, traces: TracesSection) -> None:
    resources = bootstrap["static_resources"]
    (listener,) = resources["listeners"]
    manager = nodes.manager_of(listener)
    tags = decision_tags(names.LOG_NAMESPACE, names.DESTINATION_NAMESPACE)
    manager["tracing"] = nodes.part("tracing", millionths=round(traces.share * _MILLION), tags=tags)
    if not traces.follow_clients:
        nodes.mutations_of(manager)[:0] = [{"remove": header} for header in _TRACE_HEADERS]
    for log in manager["access_log"]:
        if log["name"] == names.OUTCOMES_LOG:
            # As Envoy hands it on: with its own id where it began the trace, and whether that is sampled.
            log["typed_config"]["additional_request_headers_to_log"].append(names.TRACE_HEADER)
    resources["clusters"].append(nodes.grpc_cluster(names.TRACES_CLUSTER, traces.collector))


def traced_logger(outcomes: Node) -> Node:
    """The log that sends the balancer sampled requests, where `outcomes`, the log of each, is not there."""
    log = copy.deepcopy(outcomes)
    log["filter"] = nodes.part("sampled")
    common = log["typed_config"]["common_config"]
    common |= {"log_name": names.TRACED_LOG, "buffer_flush_interval": _TRACED_FLUSH}
    return log


def decision_tags(policy: str, destination: str) -> list[Node]:
    """Attributes of the decision; `policy`, `destination`: the namespaces with the policy, and with the endpoints."""
    return nodes.parts("decision_tags", policy=policy, destination=destination)
