"""The bootstrap in which the balancer answers calls that concern the fleet; while none is there, a worker does.

Changes of workers never go to a worker: without a balancer they are answered 503, UNAVAILABLE.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from balancer.balancer_tls import BalancerTls
from balancer.bootstrap import nodes
from balancer.bootstrap.nodes import Node
from balancer.bootstrap.tls import Secrets, balancer_socket
from balancer.extproc import names
from balancer.extproc.kserve import CHANGES, MEMORY_STATUS, METHODS, SERVICE, SETTINGS, Kind

_QUESTIONS = {
    *(f"{SERVICE}{method}" for method, kind in METHODS.items() if kind in (Kind.SERVER, Kind.MODEL)),
    *("/grpc.health.v1.Health/Check", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/repository/index"),
    r"/v2/models/[^/]+(/versions/[^/]+)?(/(ready|config|stats))?",
}
"""Routes of the template that a worker answers where the balancer does not."""
# What the template has Envoy refuse, by how Envoy matches it. Reading settings and changing them is one path.
_READ_REST = r"/v2((/models/[^/]+)?/trace/setting|/logging|/(system|cuda)sharedmemory(/region/[^/]+)?/status)"
_CHANGED_REST = r"/v2/(repository/models/[^/]+/(load|unload)|(system|cuda)sharedmemory(/region/[^/]+)?/(un)?register)"
_REFUSED, _REFUSED_REST = "grpc_per_server", "rest_per_server"


@dataclass(frozen=True, slots=True)
class FleetOptions:
    grpc: tuple[str, ...]
    rest: tuple[str, ...]
    changes: bool = False
    """Whether some callers may change workers; where none may, Envoy refuses changes itself."""


def ask_the_balancer(bootstrap: Node, fleet: FleetOptions, tls: BalancerTls | None, secrets: Secrets) -> None:
    """Change a complete bootstrap, its first listener."""
    resources = bootstrap["static_resources"]
    listeners = resources["listeners"]
    manager = nodes.manager_of(listeners[0])
    routes = nodes.routes_of(manager)
    undecided = _deciders_off(manager)
    routes[:] = [_answered(route, undecided) if _path(route) in _QUESTIONS else route for route in routes]
    methods = (*SETTINGS, *MEMORY_STATUS, *(CHANGES if fleet.changes else ()))
    _insert(routes, _REFUSED, [_to_grpc(f"{SERVICE}{method}", undecided) for method in methods])
    rest = (_READ_REST, *((_CHANGED_REST,) if fleet.changes else ()))
    _insert(routes, _REFUSED_REST, [_to_rest(pattern, undecided) for pattern in rest])
    # No worker serves these calls, so none has an outcome.
    manager["access_log"] = [
        nodes.only(log, nodes.without_header(names.FLEET_HEADER)) if log["name"] == names.OUTCOMES_LOG else log
        for log in manager["access_log"]
    ]
    clusters = resources["clusters"]
    like = nodes.named(clusters, names.BALANCER_CLUSTER)
    ours = [_grpc_cluster(like, fleet.grpc), _rest_cluster(like, fleet.rest)]
    if tls is not None:
        for cluster, protocol in zip(ours, ("h2", "http/1.1"), strict=True):
            # The same files as towards `listen.envoy`.
            cluster["transport_socket"] = balancer_socket(tls, secrets, protocol)
    clusters += ours
    pairs = ((names.FLEET_GRPC_CLUSTER, names.GRPC_CLUSTER), (names.FLEET_REST_CLUSTER, names.HTTP_CLUSTER))
    clusters += [nodes.either(f"{ours}{names.OR_WORKER}", ours, workers) for ours, workers in pairs]


def nobody_names_himself(bootstrap: Node) -> None:
    """Take the header that names callers out of what clients send, where no filter does: the balancer goes by it."""
    manager = nodes.manager_of(bootstrap["static_resources"]["listeners"][0])
    nodes.mutations_of(manager).insert(0, {"remove": names.PRINCIPAL_HEADER})


def _path(route: Node) -> str:
    match = route["match"]
    return str(match.get("path") or match.get("safe_regex", {}).get("regex", ""))


def _deciders_off(manager: Node) -> Node:
    present = {each["name"] for each in manager["http_filters"]}
    return {name: nodes.off() for name in (names.PICKS_FILTER, names.NATIVE_FILTER) if name in present}


def _answered(route: Node, undecided: Node) -> Node:
    grpc = "grpc" in route["match"]
    cluster = f"{names.FLEET_GRPC_CLUSTER if grpc else names.FLEET_REST_CLUSTER}{names.OR_WORKER}"
    return {**_marked(undecided), **route, "route": {**route["route"], "cluster": cluster}}


def _marked(undecided: Node) -> Node:
    return {
        "request_headers_to_add": [nodes.header(names.FLEET_HEADER, "true")],
        "typed_per_filter_config": copy.deepcopy(undecided),
    }


def _to_grpc(path: str, undecided: Node) -> Node:
    route = {
        "cluster": names.FLEET_GRPC_CLUSTER,
        "timeout": "0s",
        "max_stream_duration": {"grpc_timeout_header_max": "0s"},
        "retry_policy": {"num_retries": 0},
    }
    return {"name": "grpc_fleet", "match": {"path": path, "grpc": {}}, "route": route, **_marked(undecided)}


def _to_rest(pattern: str, undecided: Node) -> Node:
    route = {"cluster": names.FLEET_REST_CLUSTER, "timeout": "0s", "retry_policy": {"num_retries": 0}}
    return {"name": "rest_fleet", "match": {"safe_regex": {"regex": pattern}}, "route": route, **_marked(undecided)}


def _insert(routes: list[Node], before: str, new: list[Node]) -> None:
    at = routes.index(nodes.named(routes, before))
    routes[at:at] = new


def _grpc_cluster(like: Node, addresses: tuple[str, ...]) -> Node:
    cluster = _cluster(like, names.FLEET_GRPC_CLUSTER, addresses)
    cluster["health_checks"][0]["grpc_health_check"] = {"service_name": names.FLEET_SERVICE}
    return cluster


def _rest_cluster(like: Node, addresses: tuple[str, ...]) -> Node:
    cluster = _cluster(like, names.FLEET_REST_CLUSTER, addresses)
    check = cluster["health_checks"][0]
    del check["grpc_health_check"]
    check["http_health_check"] = {"path": names.FLEET_HEALTH_PATH}
    cluster["typed_extension_protocol_options"] = {
        names.HTTP_OPTIONS: {
            "@type": names.HTTP_OPTIONS_TYPE,
            # Less than the balancer's own, so that no request goes out on a connection that ends.
            "common_http_protocol_options": {"idle_timeout": "30s"},
            "explicit_http_config": {"http_protocol_options": {}},
        }
    }
    return cluster


def _cluster(like: Node, name: str, addresses: tuple[str, ...]) -> Node:
    cluster = copy.deepcopy(like)
    cluster.pop("transport_socket", None)
    # Errors here are answers: Triton's, or to callers who may not.
    del cluster["outlier_detection"]
    nodes.lead_to(cluster, name, addresses)
    return cluster
