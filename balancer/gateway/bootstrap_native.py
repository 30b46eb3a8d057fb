"""The bootstrap with the module in front, and the way to the balancer for what cannot be decided within Envoy.

What asks the balancer is the template's listener as it is, made an internal one of Envoy's (`asking`). The module's
listener has neither field extraction nor `ext_proc` nor the access log of outcomes, which Envoy would make anew for
each request; it hands over what the module does not settle.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

from balancer.gateway import names
from balancer.gateway.bootstrap_tls import Node

_ROOM_KB = 1
_ROOM_HEADERS = 16
"""For what the listener adds to a client's headers before they reach the internal one."""


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """What decides within Envoy; see balancer/native/module/README.md."""

    module: Path
    """That Envoy loads."""
    kernel: Path
    """That the module loads."""
    folder: Path
    """That the balancer shares."""


def decide_natively(bootstrap: Node, native: NativeOptions) -> None:
    """Change a complete bootstrap in which Envoy asks for each request into one in which it decides."""
    resources = bootstrap["static_resources"]
    (listener,) = resources["listeners"]
    resources["listeners"].append(_asking_listener(listener))
    resources["clusters"].append(_asking_cluster(resources["clusters"]))
    bootstrap["bootstrap_extensions"] = [
        {"name": names.INTERNAL_LISTENERS, "typed_config": {"@type": names.INTERNAL_LISTENERS_TYPE}}
    ]
    manager = _manager(listener)
    router = manager["http_filters"][-1]
    manager["http_filters"] = [_module_filter(native), router]
    manager["access_log"] = [
        _of_what_was_settled(log) for log in manager["access_log"] if log["name"] == names.FILE_LOG
    ]
    (host,) = manager["route_config"]["virtual_hosts"]
    for route in host["routes"]:
        # For filters that are not there.
        route.pop("typed_per_filter_config", None)
    host["routes"].insert(0, _ASKED_ROUTE)
    for cluster in resources["clusters"]:
        if cluster["name"] in (names.GRPC_CLUSTER, names.HTTP_CLUSTER):
            _follow_module(cluster)


def _manager(listener: Node) -> Node:
    manager: Node = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _asking_listener(listener: Node) -> Node:
    """That of the template, for connections from within this Envoy, whose requests were checked on their way in."""
    asking = copy.deepcopy(listener)
    asking["name"] = names.ASKING
    del asking["address"]
    asking["internal_listener"] = {}
    asking["ignore_global_conn_limit"] = True
    asking["filter_chains"][0].pop("transport_socket", None)
    manager = _manager(asking)
    manager["stat_prefix"] = names.ASKING
    # Who the client is, and what its request is called, stands in headers by now.
    manager["use_remote_address"] = False
    manager["generate_request_id"] = False
    del manager["early_header_mutation_extensions"]
    manager["max_request_headers_kb"] += _ROOM_KB
    manager["common_http_protocol_options"]["max_headers_count"] += _ROOM_HEADERS
    return asking


def _asking_cluster(clusters: list[Node]) -> Node:
    """To that listener; without limits and over HTTP/2, as to a process of the balancer."""
    like = next(cluster for cluster in clusters if cluster["name"] == names.process_cluster(0))
    address = {"envoy_internal_address": {"server_listener_name": names.ASKING}}
    return {
        "name": names.ASKING,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": names.ASKING,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "circuit_breakers": like["circuit_breakers"],
        "typed_extension_protocol_options": like["typed_extension_protocol_options"],
    }


_ASKED: Node = {"filter": names.DECISION_NAMESPACE, "path": [{"key": names.PROCESS_KEY}]}
_ASKED_ROUTE: Node = {
    "name": names.ASKING,
    "match": {
        "prefix": "/",
        "dynamic_metadata": [{**_ASKED, "value": {"string_match": {"exact": names.ASKING}}}],
    },
    # Limits of time and retries are the internal listener's.
    "route": {
        "cluster": names.ASKING,
        "timeout": "0s",
        "max_stream_duration": {"grpc_timeout_header_max": "0s"},
        "retry_policy": {"num_retries": 0},
    },
}


def _module_filter(native: NativeOptions) -> Node:
    text = {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": f"{native.kernel}\n{native.folder}"}
    return {
        "name": names.NATIVE_FILTER,
        "typed_config": {
            "@type": names.MODULE_TYPE,
            "dynamic_module_config": {"module": {"local": {"filename": str(native.module)}}, "do_not_close": True},
            "filter_name": names.NATIVE,
            "filter_config": text,
        },
    }


def _of_what_was_settled(log: Node) -> Node:
    """The log of requests that the internal listener does not see, so that each has one line."""
    matcher = {**_ASKED, "value": {"string_match": {"exact": names.ASKING}}, "invert": True}
    log = copy.deepcopy(log)
    fields = log["typed_config"]["log_format"]["json_format"]
    fields["triton_request_id"] = f"%DYNAMIC_METADATA({names.DECISION_NAMESPACE}:{names.TRITON_ID_KEY})%"
    return {**log, "filter": {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": True}}}


def _follow_module(cluster: Node) -> None:
    """Have a cluster of workers follow what the module names. Who served, it finds out itself."""
    source = {"metadata": {"key": names.DECISION_NAMESPACE, "path": [{"key": names.DESTINATION}]}}
    # The template has it once for both.
    cluster["load_balancing_policy"] = copy.deepcopy(cluster["load_balancing_policy"])
    (policy,) = cluster["load_balancing_policy"]["policies"]
    override = policy["typed_extension_config"]["typed_config"]
    override["override_host_sources"].insert(0, source)
    del override["selected_host_key"]
