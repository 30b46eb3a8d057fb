"""The bootstrap with inferences sent to the balancer, which forwards them itself: those of gRPC, and `infer` of REST
where the balancer has a port for HTTP. All else stays as it is: it goes to workers that the balancer picks.
"""

from __future__ import annotations

import copy

from balancer.core import bounds
from balancer.gateway import names
from balancer.gateway.bootstrap_addresses import either
from balancer.gateway.bootstrap_tls import Node
from balancer.gateway.kserve import METHODS, SERVICE, Kind

_REST = "rest"
"""The template's name of routes by HTTP, the first of which is that of inferences."""
_FORWARDED = {f"{SERVICE}{method}" for method, kind in METHODS.items() if kind in (Kind.INFERENCE, Kind.STREAM)}
_INFER = r"/v2/models/[^/]+(/versions/[^/]+)?/infer"
_JSON_BYTES = "inference-header-content-length"
_BODY_BYTES = "content-length"
_MOST = 2**62
_TOLD_BY_ENVOY = f"!(has(upstream.address) && xds.route_name == '{names.PROXIED}')"


def forward_by_balancer(bootstrap: Node) -> None:
    """Change a complete bootstrap in which Envoy asks for each request."""
    resources = bootstrap["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    for route in host["routes"]:
        if route["match"].get("path") in _FORWARDED:
            _to_proxy(route, names.PROXY_CLUSTER)
    for log in manager["access_log"]:
        if log["name"] == names.OUTCOMES_LOG:
            log["filter"] = {"and_filter": {"filters": [log["filter"], _cel(_TOLD_BY_ENVOY)]}}
    resources["clusters"].append(either(names.PROXY_CLUSTER, names.BALANCER_CLUSTER, names.GRPC_CLUSTER))


def _to_proxy(route: Node, cluster: str) -> None:
    """The balancer reads the message itself, and sends again what may be. Envoy does so where no balancer took it."""
    off = {"@type": names.FILTER_OFF_TYPE, "disabled": True}
    route["name"] = names.PROXIED
    route["typed_per_filter_config"] = {names.PICKS_FILTER: off, names.EXTRACTION: off}
    action = copy.deepcopy(route["route"])
    action["cluster"] = cluster
    action["retry_policy"] = {
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": 2,
        # Where the balancer cannot be reached, the workers are next.
        "retry_priority": {
            "name": names.PREVIOUS_PRIORITIES,
            "typed_config": {"@type": names.PREVIOUS_PRIORITIES_TYPE, "update_frequency": 1},
        },
        "retry_back_off": {"base_interval": "0.001s", "max_interval": "0.010s"},
    }
    route["route"] = action


def forward_rest_by_balancer(bootstrap: Node, most_bytes: int) -> None:
    """Change such a bootstrap, in which the balancer answers calls about the fleet by HTTP too; `most_bytes`: of a body
    that it takes."""
    resources = bootstrap["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    routes = host["routes"]
    at = next(place for place, route in enumerate(routes) if route["name"] == _REST)
    forwarded = _rest_route(routes[at], ())
    _to_proxy(forwarded, f"{names.PROXY_REST_CLUSTER}{names.OR_WORKER}")
    routes[at:at] = [*(_rest_route(routes[at], headers) for headers in _as_picked(most_bytes)), forwarded]
    clusters = resources["clusters"]
    ours = copy.deepcopy(next(cluster for cluster in clusters if cluster["name"] == names.FLEET_REST_CLUSTER))
    ours["name"] = ours["load_assignment"]["cluster_name"] = names.PROXY_REST_CLUSTER
    ours["health_checks"][0]["http_health_check"] = {"path": names.PROXY_HEALTH_PATH}
    clusters += [ours, either(f"{ours['name']}{names.OR_WORKER}", ours["name"], names.HTTP_CLUSTER)]


def _as_picked(most_bytes: int) -> tuple[tuple[Node, ...], ...]:
    """By their headers, requests that the balancer does not convert: a raw tensor without JSON, whose name and type
    only the model knows; bodies and JSON that are too large."""
    return (
        ({"name": _JSON_BYTES, "string_match": {"safe_regex": {"regex": "0+"}}},),
        (_larger(most_bytes),),
        ({"name": _JSON_BYTES, "present_match": True, "invert_match": True}, _larger(bounds.MAX_JSON_BYTES)),
    )


def _larger(size_bytes: int) -> Node:
    return {"name": _BODY_BYTES, "range_match": {"start": size_bytes + 1, "end": _MOST}}


def _rest_route(like: Node, headers: tuple[Node, ...]) -> Node:
    route = copy.deepcopy(like)
    route["match"] = {"safe_regex": {"regex": _INFER}, **({"headers": list(headers)} if headers else {})}
    return route


def _cel(expression: str) -> Node:
    typed = {"@type": names.CEL_FILTER_TYPE, "expression": expression}
    return {"extension_filter": {"name": names.CEL_FILTER, "typed_config": typed}}
