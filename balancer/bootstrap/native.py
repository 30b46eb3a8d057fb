"""The bootstrap with the module in front, and the way to the balancer for what cannot be decided within Envoy.

What asks the balancer is the template's listener as it is, made an internal one of Envoy's (`asking`). The module's
listener has neither field extraction nor `ext_proc` nor the access log of outcomes, which Envoy would make anew for
each request; it hands over what the module does not settle.

While no balancer answers, Envoy sends requests to a worker of its own choice. Where that would break what the config
promises, it refuses instead (503, UNAVAILABLE), model by model. Where the balancer forwards, only who reads the message
knows its model, so requests go around by a listener within Envoy that does.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from balancer.bootstrap import nodes
from balancer.bootstrap.nodes import Node
from balancer.bootstrap.traces import decision_tags, traced_logger
from balancer.extproc import names

_AT_ONCE = {"buffer_size_bytes": 0, "buffer_flush_interval": "3600s"}
"""Outcomes of the few that were asked about: to gather them wakes each of Envoy's threads all the time, also without
any."""
_ROOM_KB = 1
_ROOM_HEADERS = 16
"""For what the listener adds to a client's headers before they reach the internal one."""


@dataclass(frozen=True, slots=True)
class NativeOptions:
    module: Path
    kernel: Path
    folder: Path
    endpoints: Path | None = None
    """Where the files of `endpoints.LastKnown` are, so that Envoy follows them; None: it follows the stream."""


def decide_natively(bootstrap: Node, native: NativeOptions, forwarded: tuple[str, ...] = ()) -> None:
    """Change a complete bootstrap in which Envoy asks for each request into one in which it decides, but for models
    that are `forwarded`."""
    resources = bootstrap["static_resources"]
    (listener,) = resources["listeners"]
    add_internal(bootstrap, _asking_listener(listener))
    manager = nodes.manager_of(listener)
    router = manager["http_filters"][-1]
    # The module sees answers end.
    router["typed_config"] = {key: value for key, value in router["typed_config"].items() if "upstream_log" not in key}
    logs = [log for log in manager["access_log"] if log["name"] in (names.FILE_LOG, names.AUDIT_LOG)]
    manager["http_filters"] = [
        _module_filter(native, forwarded, leaves_metadata=bool(logs) or "tracing" in manager),
        router,
    ]
    nodes.mutations_of(manager).pop()  # the id that the balancer tells requests apart by, where it is asked
    outcomes = nodes.named(manager["access_log"], names.OUTCOMES_LOG)
    manager["access_log"] = [_of_what_was_settled(log) for log in logs]
    if "tracing" in manager:
        # Of what is forwarded the balancer knows.
        known = (names.FORWARDED_HEADER,) if forwarded else ()
        manager["access_log"].append(_only_settled(traced_logger(outcomes), *known))
        manager["tracing"]["custom_tags"] = decision_tags(names.DECISION_NAMESPACE, names.DECISION_NAMESPACE)
    routes = nodes.routes_of(manager)
    for route in routes:
        # For filters that are not there.
        route.pop("typed_per_filter_config", None)
    for route in routes:
        if route["name"] in names.ASKED_ROUTES:
            route.update(nodes.part("asking_always"))
    routes.insert(0, nodes.part("asking_route"))
    for cluster in resources["clusters"]:
        if cluster["name"] in names.LAST_KNOWN:
            _follow_module(cluster, native)
            if native.endpoints is not None:
                config = cluster["eds_cluster_config"] = copy.deepcopy(cluster["eds_cluster_config"])
                del config["eds_config"]["ads"]
                path = native.endpoints / names.LAST_KNOWN[cluster["name"]]
                config["eds_config"]["path_config_source"] = {"path": str(path)}


def _asking_listener(listener: Node) -> Node:
    asking = internal_listener(listener, names.ASKING)
    manager = nodes.manager_of(asking)
    for log in [*manager["access_log"], *manager["http_filters"][-1]["typed_config"]["upstream_log"]]:
        if log["name"] == names.OUTCOMES_LOG:
            log["typed_config"]["common_config"] |= _AT_ONCE
    return asking


def internal_listener(listener: Node, name: str) -> Node:
    """That of the template, for connections from within this Envoy, whose requests were checked on their way in."""
    within = copy.deepcopy(listener)
    within["name"] = name
    del within["address"]
    within["internal_listener"] = {}
    within["ignore_global_conn_limit"] = True
    within["filter_chains"][0].pop("transport_socket", None)
    manager = nodes.manager_of(within)
    manager["stat_prefix"] = name
    # Who the client is, and what its request is called, stands in headers by now.
    manager["use_remote_address"] = False
    manager["generate_request_id"] = False
    nodes.mutations_of(manager)[:] = [{"remove": names.ASKING_HEADER}, nodes.mutations_of(manager)[-1]]
    manager["max_request_headers_kb"] += _ROOM_KB
    manager["common_http_protocol_options"]["max_headers_count"] += _ROOM_HEADERS
    return within


def add_internal(bootstrap: Node, listener: Node) -> None:
    """Such a listener, and a cluster of its name: without limits and over HTTP/2, as to a process of the balancer."""
    resources, name = bootstrap["static_resources"], listener["name"]
    like = nodes.named(resources["clusters"], names.process_cluster(0))
    cluster = nodes.part("internal_cluster", name=name)
    cluster |= {key: like[key] for key in ("circuit_breakers", "typed_extension_protocol_options")}
    # The connection is all clients', as one to a worker is.
    nodes.manager_of(listener)["http2_protocol_options"]["initial_connection_window_size"] = 2**31 - 1
    resources["clusters"].append(cluster)
    resources["listeners"].append(listener)
    bootstrap["bootstrap_extensions"] = nodes.parts("internal_listeners")


def _module_filter(native: NativeOptions, forwarded: tuple[str, ...], leaves_metadata: bool) -> Node:
    """`leaves_metadata`: what was decided is left in metadata, for Envoy's log and traces; each request pays for it."""
    lines = [str(native.kernel), str(native.folder), names.LEAVES_METADATA if leaves_metadata else ""]
    value = "\n".join([*lines, list_of(forwarded)] if forwarded else lines)
    return nodes.part("module_filter", module=str(native.module), config=value)


def list_of(models: Iterable[str]) -> str:
    return "".join(f"{len(name.encode())}:{name}" for name in models)


def _of_what_was_settled(log: Node) -> Node:
    """The log of requests that the internal listener does not see, so that each has one line."""
    log = copy.deepcopy(log)
    fields = log["typed_config"]["log_format"]["json_format"]
    if "triton_request_id" in fields:
        fields["triton_request_id"] = f"%DYNAMIC_METADATA({names.DECISION_NAMESPACE}:{names.TRITON_ID_KEY})%"
    for key in (names.MODEL_KEY, names.POLICY_KEY):
        if key in fields:
            fields[key] = f"%DYNAMIC_METADATA({names.DECISION_NAMESPACE}:{key})%"
    fields.pop("gateway_request_id", None)  # a client's, where none is made
    return _only_settled(log)


def _only_settled(log: Node, *headers: str) -> Node:
    """Of requests that the module did not leave to the internal listener, and that have none of the other headers."""
    return nodes.only(log, *(nodes.without_header(name) for name in (names.ASKING_HEADER, *headers)))


_ALL_STATUSES = ["UNKNOWN", "HEALTHY", "UNHEALTHY", "DRAINING", "TIMEOUT", "DEGRADED"]


def _follow_module(cluster: Node, native: NativeOptions) -> None:
    """Have a cluster of workers ask the module for the attempts after the first, and where Envoy chooses by itself.

    The module keeps the fallbacks, as each metadata or header that it set would cost every request. Who served, it
    finds out itself.
    """
    # The template has it once for both.
    cluster["load_balancing_policy"] = copy.deepcopy(cluster["load_balancing_policy"])
    (policy,) = cluster["load_balancing_policy"]["policies"]
    override = policy["typed_extension_config"]["typed_config"]
    override["fallback_policy"] = nodes.part("module_choice", module=str(native.module))
    # The balancer knows who is healthy: whom Envoy takes for ill is tried, as with `pick`, and its error learned.
    cluster["common_lb_config"] = cluster["common_lb_config"] | {"override_host_status": {"statuses": _ALL_STATUSES}}
    del override["selected_host_key"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What only a balancer keeps, in words by the name of the model that it is promised of."""

    picked: tuple[tuple[str, str], ...] = ()
    """By whoever chooses a worker."""
    forwarded: tuple[tuple[str, str], ...] = ()
    """By a balancer that forwards, beside those of `picked`."""
    of_all: str = ""
    """By a balancer that forwards, of each model; empty: nothing."""


NOTHING_KEPT = Kept()


def refuse_unpicked(listener: Node, kept: Kept) -> None:
    """Have Envoy refuse requests for these models that go on without a pick."""
    if kept.picked:
        _insert(listener, _filter(kept.picked, "", around=False))


def go_around(bootstrap: Node, listener: Node, kept: Kept) -> None:
    """Add the listener by which forwarded requests go around the balancer; `listener`: one that asks for picks."""
    around = internal_listener(listener, names.AROUND)
    manager = nodes.manager_of(around)
    manager["access_log"] = []
    manager["http_filters"][-1]["typed_config"].pop("upstream_log", None)
    manager.pop("tracing", None)
    manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] not in _OF_PICKS]
    for route in nodes.routes_of(manager):
        route.pop("typed_per_filter_config", None)
        if route["name"] == names.COMPRESSED_ROUTE:
            # Whose it is cannot be read here.
            del route["route"]
            route.update(nodes.part("refused_compressed"))
    _insert(around, _filter((*kept.forwarded, *kept.picked), kept.of_all, around=True))
    add_internal(bootstrap, around)


_OF_PICKS = (names.PICKS_FILTER, names.SPLIT_NAMESPACE)


def _filter(models: tuple[tuple[str, str], ...], of_all: str, *, around: bool) -> Node:
    kept = ", ".join(f"[{in_lua(name)}] = {in_lua(why)}" for name, why in models)
    everything = in_lua(of_all) if of_all else "false"
    return nodes.part("kept", everything=everything, models=kept, around="true" if around else "false")


def in_lua(text: str) -> str:
    """A text as Lua reads it, byte by byte, whatever is in it."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'


def _insert(listener: Node, new: Node) -> None:
    nodes.manager_of(listener)["http_filters"].insert(-1, new)
