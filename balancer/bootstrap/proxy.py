"""The bootstrap with inferences sent to the balancer, which forwards them itself: those of gRPC, and where the balancer
has a port for HTTP, `infer` of REST and completions by OpenAI's API. All else stays as it is: it goes to workers that
the balancer picks.

And the bootstrap in which the balancer answers calls that concern the fleet; while none is there, a worker does.
Changes of workers never go to a worker: without a balancer they are answered 503, UNAVAILABLE.
"""

import copy
from dataclasses import dataclass

from balancer import bounds
from balancer.balancer_tls import BalancerTls
from balancer.bootstrap import nodes
from balancer.bootstrap.native import in_lua
from balancer.bootstrap.nodes import Node
from balancer.bootstrap.tls import Secrets, balancer_socket
from balancer.extproc import names
from balancer.extproc.kserve import CHANGES, MEMORY_STATUS, METHODS, SERVICE, SETTINGS, Kind

_REST = "rest"
"""The template's name of routes by HTTP, the first of which is that of inferences."""
_STREAMS = {f"{SERVICE}{method}" for method, kind in METHODS.items() if kind is Kind.STREAM}
_MARKED = {"name": names.FORWARDED_HEADER, "string_match": {"exact": names.FORWARDED}}
_FORWARDED = {f"{SERVICE}{method}" for method, kind in METHODS.items() if kind in (Kind.INFERENCE, Kind.STREAM)}
_OF_PICKS = (names.PICKS_FILTER, names.EXTRACTION, names.KEPT_FILTER)
_INFER = r"/v2/models/[^/]+(/versions/[^/]+)?/infer"
_JSON_BYTES = "inference-header-content-length"
_BODY_BYTES = "content-length"
_MOST = 2**62
_PICKS_ROUTE_TYPE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
_PICKED_FOR = f"xds.route_name != '{names.PROXIED}'"
_LOGGED_BY_ENVOY = f"!(has(upstream.address) && xds.route_name == '{names.PROXIED}')"


def forward_by_balancer(bootstrap: Node, models: tuple[str, ...] | None) -> None:
    """Change a complete bootstrap in which Envoy asks for each request; `models`: that are forwarded, None: all.

    While the balancer is away they go to the cluster `around`, which is still to be added.
    """
    resources = bootstrap["static_resources"]
    manager = nodes.manager_of(resources["listeners"][0])
    routes = nodes.routes_of(manager)
    mine = [route for route in routes if route["match"].get("path") in _FORWARDED]
    compressed = nodes.named(routes, names.COMPRESSED_ROUTE)
    routes.remove(compressed)
    if models is None:
        # What is forwarded, gRPC inflates for the balancer. Else Envoy's script could not see which model a compressed
        # message is for: it is refused.
        routes.insert(routes.index(mine[-1]) + 1, compressed)
    if models is not None:
        _mark(manager["http_filters"], models)
        marked = [{**route, "match": {**route["match"], "headers": [_MARKED]}} for route in mine]
        for route in mine:
            route["name"] = names.FORWARDABLE
        routes[:0] = mine = marked
    clusters = resources["clusters"]
    ours = copy.deepcopy(nodes.named(clusters, names.BALANCER_CLUSTER))
    ours["name"] = ours["load_assignment"]["cluster_name"] = names.PROXY_GRPC_CLUSTER
    # Errors here are answers, those of workers and refusals: only health checks take a process out.
    del ours["outlier_detection"]
    for route in mine:
        _to_proxy(route, names.PROXY_CLUSTER, manager, ours, found_late=models is not None)
    manager["access_log"] = [
        nodes.only(log, nodes.cel_filter(_LOGGED_BY_ENVOY)) if log["name"] == names.OUTCOMES_LOG else log
        for log in manager["access_log"]
    ]
    router = manager["http_filters"][-1]["typed_config"]
    router["upstream_log"] = [nodes.only(log, nodes.cel_filter(_PICKED_FOR)) for log in router["upstream_log"]]
    clusters += [
        ours,
        _either(names.PROXY_CLUSTER, names.PROXY_GRPC_CLUSTER, names.AROUND),
    ]


def _either(name: str, ours: str, instead: str) -> Node:
    return nodes.part("either", name=name, ours=ours, instead=instead)


def _mark(filters: list[Node], models: tuple[str, ...]) -> None:
    mark = nodes.part("forwarded", models=", ".join(f"[{in_lua(name)}] = true" for name in models))
    filters.insert(filters.index(nodes.named(filters, names.PICKS_FILTER)), mark)


def _to_proxy(route: Node, cluster: str, manager: Node, ours: Node, *, found_late: bool) -> None:
    """The balancer reads the message itself, and sends again what may be. Envoy does so where no balancer took it.

    Args:
        route: That is changed.
        cluster: Where it leads.
        manager: Its connection manager, for the filters that are there.
        ours: The cluster of the balancer's processes alone.
        found_late: When filters stand already, so that one can but see by itself that it is not to ask.
    """
    route["name"] = names.PROXIED
    present = {each["name"] for each in manager["http_filters"]}
    unused = {name: nodes.off() for name in _OF_PICKS if name in present}
    if found_late:
        unused = {name: {"@type": _PICKS_ROUTE_TYPE, "disabled": True} for name in unused if name == names.PICKS_FILTER}
    route["typed_per_filter_config"] = unused
    route["request_headers_to_add"] = [nodes.header(names.COMPRESSED_HEADER, "%REQ(grpc-encoding)%")]
    action = copy.deepcopy(route["route"])
    action["cluster"] = cluster
    several = len(ours["load_assignment"]["endpoints"][0]["lb_endpoints"]) > 1
    action["retry_policy"] = nodes.part("proxied_retries", update_frequency=2 if several else 1)
    if several:
        action["retry_policy"] |= nodes.part("another_process")
    route["route"] = action


def forward_rest_by_balancer(bootstrap: Node, most_bytes: int, models: tuple[str, ...] | None) -> None:
    """Change such a bootstrap, in which the balancer answers calls about the fleet by HTTP too; `most_bytes`: of a body
    that it takes. Where a listener within Envoy asks, it forwards as well."""
    resources = bootstrap["static_resources"]
    clusters = resources["clusters"]
    ours = copy.deepcopy(nodes.named(clusters, names.FLEET_REST_CLUSTER))
    ours["name"] = ours["load_assignment"]["cluster_name"] = names.PROXY_REST_CLUSTER
    ours["health_checks"][0]["http_health_check"] = {"path": names.PROXY_HEALTH_PATH}
    clusters += [ours, _either(f"{ours['name']}{names.OR_WORKER}", ours["name"], names.AROUND)]
    for listener in resources["listeners"]:
        manager = nodes.manager_of(listener)
        _forward_rest(manager, ours, most_bytes, some=models is not None)
        if models is None:
            # Else Envoy's script could not see which model a prompt is for: it asks.
            route = nodes.named(nodes.routes_of(manager), names.PROMPTS_ROUTE)
            _to_proxy(route, f"{names.PROXY_REST_CLUSTER}{names.OR_WORKER}", manager, ours, found_late=False)
            # The balancer keeps room for each that it reads, as of what is compressed.
            route["typed_per_filter_config"][names.BUFFER_FILTER] = nodes.part(
                "whole", most_bytes=bounds.MAX_PROMPT_BYTES
            )


def _forward_rest(manager: Node, ours: Node, most_bytes: int, *, some: bool) -> None:
    routes = nodes.routes_of(manager)
    at = routes.index(nodes.named(routes, _REST))
    as_picked = [_rest_route(routes[at], headers) for headers in _as_picked(most_bytes)]
    forwarded = _rest_route(routes[at], (_MARKED,) if some else ())
    _to_proxy(forwarded, f"{names.PROXY_REST_CLUSTER}{names.OR_WORKER}", manager, ours, found_late=some)
    forwardable = [{**_rest_route(routes[at], ()), "name": names.FORWARDABLE}] if some else []
    routes[at:at] = [*as_picked, forwarded, *forwardable]


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


def hold_compressed(bootstrap: Node, most_bytes: int) -> None:
    """Have Envoy keep compressed requests that are forwarded until they are whole. The balancer keeps room for each
    that it reads, so nobody is to send one slowly. But no stream, which has no end."""
    for listener in bootstrap["static_resources"]["listeners"]:
        manager = nodes.manager_of(listener)
        routes = nodes.routes_of(manager)
        forwarded = [route for route in routes if route["name"] == names.PROXIED]
        whole = [route for route in forwarded if route["match"].get("path") not in _STREAMS]
        for route in whole:
            routes.insert(routes.index(route), _held(route, most_bytes))
        if whole:
            manager["http_filters"].insert(-1, nodes.part("kept_whole", most_bytes=most_bytes))


def _held(route: Node, most_bytes: int) -> Node:
    held = copy.deepcopy(route)
    encoding = "grpc-encoding" if "path" in route["match"] else "content-encoding"
    compressed = {"name": encoding, "string_match": {"safe_regex": {"regex": "(?i)gzip|deflate"}}}
    held["match"]["headers"] = [*held["match"].get("headers", ()), compressed]
    on = nodes.part("whole", most_bytes=most_bytes)
    held["typed_per_filter_config"] = {**held.get("typed_per_filter_config", {}), names.BUFFER_FILTER: on}
    return held


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
    resources = bootstrap["static_resources"]
    listeners = resources["listeners"]
    manager = nodes.manager_of(listeners[0])
    routes = nodes.routes_of(manager)
    undecided = _deciders_off(manager)
    routes[:] = [_answered(route, undecided) if _path(route) in _QUESTIONS else route for route in routes]
    methods = (*SETTINGS, *MEMORY_STATUS, *(CHANGES if fleet.changes else ()))
    _insert(routes, _REFUSED, [_fleet_route("grpc", undecided, path=f"{SERVICE}{method}") for method in methods])
    rest = (_READ_REST, *((_CHANGED_REST,) if fleet.changes else ()))
    _insert(routes, _REFUSED_REST, [_fleet_route("rest", undecided, pattern=pattern) for pattern in rest])
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
    clusters += [_either(f"{ours}{names.OR_WORKER}", ours, workers) for ours, workers in pairs]


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


def _fleet_route(protocol: str, undecided: Node, **what: str) -> Node:
    return {**nodes.part(f"fleet_{protocol}_route", **what), **_marked(undecided)}


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
    cluster["typed_extension_protocol_options"] = nodes.part("fleet_rest_options")
    return cluster


def _cluster(like: Node, name: str, addresses: tuple[str, ...]) -> Node:
    cluster = copy.deepcopy(like)
    cluster.pop("transport_socket", None)
    # Errors here are answers: Triton's, or to callers who may not.
    del cluster["outlier_detection"]
    nodes.lead_to(cluster, name, addresses)
    return cluster
