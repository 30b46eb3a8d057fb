"""Nodes of Envoy's bootstrap: where the template's are, and those of which several parts add one."""

import functools
import importlib.resources
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import yaml

from balancer.errors import OperatorError
from balancer.files.schema import UNIX, split_address

Node = dict[str, Any]
"""A mapping of the bootstrap, as YAML gives it."""
_PLACE = re.compile(r"\$\{(\w+)\}")


def manager_of(listener: Node) -> Node:
    """The listener's HTTP connection manager: its routes, filters and logs."""
    manager: Node = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def routes_of(manager: Node) -> list[Node]:
    (host,) = manager["route_config"]["virtual_hosts"]
    routes: list[Node] = host["routes"]
    return routes


def mutations_of(manager: Node) -> list[Node]:
    """What is done to a request's headers before anything else."""
    (extension,) = manager["early_header_mutation_extensions"]
    mutations: list[Node] = extension["typed_config"]["mutations"]
    return mutations


def named(nodes: Iterable[Node], name: str) -> Node:
    return next(node for node in nodes if node["name"] == name)


def off() -> Node:
    """The configuration of a filter that a route does without."""
    return {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}


def header(name: str, value: str, action: str = "OVERWRITE_IF_EXISTS_OR_ADD") -> Node:
    return {"header": {"key": name, "value": value}, "append_action": action}


def cel_filter(expression: str) -> Node:
    """A log's filter: this expression must be true."""
    return part("cel", expression=expression)


def all_of(*filters: Node) -> Node:
    return filters[0] if len(filters) == 1 else {"and_filter": {"filters": list(filters)}}


def without_header(name: str) -> Node:
    return {"header_filter": {"header": {"name": name, "present_match": True, "invert_match": True}}}


def only(log: Node, *filters: Node) -> Node:
    """The log with these filters before its own: it writes the requests that pass all of them."""
    before = [log["filter"]] if "filter" in log else []
    return {**log, "filter": all_of(*filters, *before)}


def check_balancers(balancers: tuple[str, ...]) -> None:
    """Whether Envoy can reach these addresses.

    Raises:
        ValueError: it cannot; the message names the address and the remedy.
    """
    lead_to({}, "", balancers)


def lead_to(cluster: Node, name: str, addresses: tuple[str, ...]) -> None:
    """Give a cluster its name, and these addresses as its servers; ValueError as `check_balancers`."""
    endpoints = [{"endpoint": {"address": _address_of(address)}} for address in addresses]
    cluster["name"], cluster["type"] = name, _discovery_type(addresses)
    cluster["load_assignment"] = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _address_of(balancer: str) -> Node:
    if balancer.startswith(UNIX):
        path = balancer.removeprefix(UNIX)
        if not path.startswith("/"):
            raise ValueError(f"{balancer!r} has no absolute path; write unix:/run/balancer/0.sock")
        return {"pipe": {"path": path}}
    try:
        host, port = split_address(balancer)
    except ValueError as error:
        raise ValueError(f"{balancer!r} is no address; {error}, or unix:/path") from error
    if port == 0:
        raise ValueError(f"{balancer!r} has port 0; give the port that the balancer listens on")
    return {"socket_address": {"address": host, "port_value": port}}


def _discovery_type(balancers: tuple[str, ...]) -> str:
    """How Envoy finds these: it resolves names, or takes Unix sockets, but not both in one cluster."""
    if not any(balancer.startswith(UNIX) for balancer in balancers):
        return "STRICT_DNS"
    for balancer in balancers:
        if not (balancer.startswith(UNIX) or _is_ip(split_address(balancer)[0])):
            raise ValueError(f"{balancer!r} is a name, which cannot stand beside a Unix socket; give its IP address")
    return "STATIC"


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def cluster_of(name: str, server: str) -> Node:
    """A cluster of one server beside workers and balancers; OperatorError where Envoy cannot reach such an address."""
    try:
        cluster = part("further_cluster", name=name, address=_address_of(server))
    except ValueError as error:
        raise OperatorError(f"{name}: {error}") from error
    if not server.startswith(UNIX):
        # A name may have addresses of both families, as localhost has, where the server or the network has one. With
        # this type Envoy tries all in turn; by default it would take those of IPv6 alone.
        cluster |= {"type": "LOGICAL_DNS", "dns_lookup_family": "ALL"}
    return cluster


def grpc_cluster(name: str, server: str) -> Node:
    """The same, by HTTP/2."""
    return cluster_of(name, server) | {"typed_extension_protocol_options": part("http2")}


def part(kind: str, /, **values: object) -> Node:
    """The mapping that parts.yaml has under this name, with these values filled in."""
    return cast(Node, _filled(_parts()[kind], values))


def parts(kind: str, /, **values: object) -> list[Node]:
    """A list, likewise."""
    return cast("list[Node]", _filled(_parts()[kind], values))


@functools.cache
def _parts() -> Node:
    text = importlib.resources.files("balancer.bootstrap").joinpath("parts.yaml").read_text(encoding="utf-8")
    return cast(Node, yaml.safe_load(text))


def _filled(node: Any, values: Mapping[str, object]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(each, values) for key, each in node.items()}
    if isinstance(node, list):
        return [_filled(each, values) for each in node]
    if isinstance(node, str) and node.startswith("$"):
        return values[node[1:]]
    return _PLACE.sub(lambda found: str(values[found[1]]), node) if isinstance(node, str) else node
