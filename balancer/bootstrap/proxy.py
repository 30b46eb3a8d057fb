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
_MARK = """\
local models = {%(models)s}
local function decoded(digits) return string.char(tonumber(digits, 16)) end
function envoy_on_request(request)
  local fields = request:streamInfo():dynamicMetadata():get("%(extraction)s")
  local path = request:headers():get(":path"):match("^[^?]*")
  local named = path:match("^/v2/models/([^/]+)/infer$") or path:match("^/v2/models/([^/]+)/versions/[^/]+/infer$")
  local names = fields and fields["model_name"]
  if names and models[names[1]] or named and models[(named:gsub("%%%%(%%x%%x)", decoded))] then
    request:headers():replace("%(header)s", "%(mark)s")
    request:clearRouteCache()
  end
end
"""
"""What finds the route anew once the model is known."""
_MARKED = {"name": names.FORWARDED_HEADER, "string_match": {"exact": names.FORWARDED}}
_FORWARDED = {f"{SERVICE}{method}" for method, kind in METHODS.items() if kind in (Kind.INFERENCE, Kind.STREAM)}
_INFER = r"/v2/models/[^/]+(/versions/[^/]+)?/infer"
_JSON_BYTES = "inference-header-content-length"
_BODY_BYTES = "content-length"
_MOST = 2**62
_UNASKED_TYPE = f"{names.HTTP_FILTERS_TYPE}ext_proc.v3.ExtProcPerRoute"
_TOLD_BY_ENVOY = f"!(has(upstream.address) && xds.route_name == '{names.PROXIED}')"


def forward_by_balancer(bootstrap: Node, models: tuple[str, ...] | None) -> None:
    """Change a complete bootstrap in which Envoy asks for each request; `models`: that are forwarded, None: all."""
    resources = bootstrap["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    mine = [route for route in host["routes"] if route["match"].get("path") in _FORWARDED]
    if models is not None:
        _mark(manager["http_filters"], models)
        marked = [{**route, "match": {**route["match"], "headers": [_MARKED]}} for route in mine]
        for route in mine:
            route["name"] = names.FORWARDABLE
        host["routes"][:0] = mine = marked
    for route in mine:
        _to_proxy(route, names.PROXY_CLUSTER, found_late=models is not None)
    for log in manager["access_log"]:
        if log["name"] == names.OUTCOMES_LOG:
            log["filter"] = {"and_filter": {"filters": [log["filter"], _cel(_TOLD_BY_ENVOY)]}}
    resources["clusters"].append(either(names.PROXY_CLUSTER, names.BALANCER_CLUSTER, names.GRPC_CLUSTER))


def _mark(filters: list[Node], models: tuple[str, ...]) -> None:
    """Have Envoy mark requests for some models, just before it would ask about them."""
    code = _MARK % {
        "models": ", ".join(f"[{_in_lua(name)}] = true" for name in models),
        **{"extraction": names.EXTRACTION, "header": names.FORWARDED_HEADER, "mark": names.FORWARDED},
    }
    typed = {"@type": names.LUA_TYPE, "default_source_code": {"inline_string": code}}
    at = next(place for place, each in enumerate(filters) if each["name"] == names.PICKS_FILTER)
    filters.insert(at, {"name": names.FORWARDED_FILTER, "typed_config": typed})


def _in_lua(text: str) -> str:
    """A text as Lua reads it, byte by byte, whatever is in it."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'


def _to_proxy(route: Node, cluster: str, *, found_late: bool = False) -> None:
    """The balancer reads the message itself, and sends again what may be. Envoy does so where no balancer took it.
    `found_late`: when filters stand already, so that one can but see by itself that it is not to ask."""
    off = {"@type": names.FILTER_OFF_TYPE, "disabled": True}
    route["name"] = names.PROXIED
    route["typed_per_filter_config"] = (
        {names.PICKS_FILTER: {"@type": _UNASKED_TYPE, "disabled": True}}
        if found_late
        else {names.PICKS_FILTER: off, names.EXTRACTION: off}
    )
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


def forward_rest_by_balancer(bootstrap: Node, most_bytes: int, models: tuple[str, ...] | None) -> None:
    """Change such a bootstrap, in which the balancer answers calls about the fleet by HTTP too; `most_bytes`: of a body
    that it takes. Where a listener within Envoy asks, it forwards as well."""
    resources = bootstrap["static_resources"]
    for listener in resources["listeners"]:
        _forward_rest(listener["filter_chains"][0]["filters"][0]["typed_config"], most_bytes, some=models is not None)
    clusters = resources["clusters"]
    ours = copy.deepcopy(next(cluster for cluster in clusters if cluster["name"] == names.FLEET_REST_CLUSTER))
    ours["name"] = ours["load_assignment"]["cluster_name"] = names.PROXY_REST_CLUSTER
    ours["health_checks"][0]["http_health_check"] = {"path": names.PROXY_HEALTH_PATH}
    clusters += [ours, either(f"{ours['name']}{names.OR_WORKER}", ours["name"], names.HTTP_CLUSTER)]


def _forward_rest(manager: Node, most_bytes: int, *, some: bool) -> None:
    """`some`: not all models are forwarded."""
    (host,) = manager["route_config"]["virtual_hosts"]
    routes = host["routes"]
    at = next(place for place, route in enumerate(routes) if route["name"] == _REST)
    as_picked = [_rest_route(routes[at], headers) for headers in _as_picked(most_bytes)]
    forwarded = _rest_route(routes[at], (_MARKED,) if some else ())
    _to_proxy(forwarded, f"{names.PROXY_REST_CLUSTER}{names.OR_WORKER}", found_late=some)
    present = {each["name"] for each in manager["http_filters"]}
    off = forwarded["typed_per_filter_config"]
    forwarded["typed_per_filter_config"] = {name: config for name, config in off.items() if name in present}
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


def _cel(expression: str) -> Node:
    typed = {"@type": names.CEL_FILTER_TYPE, "expression": expression}
    return {"extension_filter": {"name": names.CEL_FILTER, "typed_config": typed}}
