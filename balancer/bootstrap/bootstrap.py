"""The Envoy bootstrap of a configuration: envoy/bootstrap.yaml with ports, addresses and TLS filled in.

The template is a complete bootstrap with comments, which is what an SRE reads; what is printed from it has the same
structure without them. It is read as package data: `bootstrap.yaml` beside this is a link to it, which wheels
carry as a file.
"""

from __future__ import annotations

import copy
import functools
import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml

from balancer.balancer_tls import BalancerTls
from balancer.bootstrap.access import NOTHING_ASKED, Access, guard_listener
from balancer.bootstrap.addresses import Node, address_of, discovery_type
from balancer.bootstrap.around import NOTHING_KEPT, Kept, go_around, refuse_unpicked
from balancer.bootstrap.fleet import FleetOptions, ask_the_balancer, nobody_names_himself
from balancer.bootstrap.logs import access_logger, audit_logger
from balancer.bootstrap.native import NativeOptions, decide_natively
from balancer.bootstrap.overlay import merge
from balancer.bootstrap.proxy import forward_by_balancer, forward_rest_by_balancer, hold_compressed
from balancer.bootstrap.sections import EnvoyTlsSection, TracesSection, TritonTlsSection
from balancer.bootstrap.tls import Secrets, balancer_socket, listener_socket, triton_sockets
from balancer.bootstrap.traces import add_traces
from balancer.extproc import names
from balancer.files.regular import replace_file
from balancer.files.yaml_document import read_document, read_file

_HEADER = """\
# Printed by `balancer envoy`; envoy/bootstrap.yaml in the source is the same with comments.
"""


@dataclass(frozen=True, slots=True)
class BootstrapOptions:
    """What differs between deployments, checked by the config; the defaults are those of envoy/bootstrap.yaml."""

    listener_address: str = "0.0.0.0"
    listener_port: int = 8080
    admin_address: str = "127.0.0.1"
    admin_port: int = 9901
    balancers: tuple[str, ...] = ("127.0.0.1:9003",)
    """`host:port` or `unix:/path` of each balancer process, in the order of their numbers (`balancer.process` in
    metadata).

    A name may resolve to several addresses, but beside a Unix socket only IP addresses may stand; brackets around
    IPv6.
    """
    request_buffer_limit_bytes: int = 80 * 2**20
    """Largest gRPC message, also the largest request that can be retried; 2 MiB of HTTP/2 window pass in any case."""
    max_heap_bytes: int = 2 * 2**30
    """Memory at which Envoy is full; it sheds from 80% of it on."""
    # The next four are constants to the config: an overlay may change all but the second. Tests set them.
    message_timeout_s: float = 0.2
    """How long a request waits for its pick before it goes on without."""
    health_timeout_s: float = 0.5
    """How long a balancer process may take to answer a health check before it is asked for no more picks."""
    request_timeout_s: float = 300.0
    """How long a request may take to arrive, unless its answer begins before that."""
    max_connections: int = 10_000
    """Connections of clients; one more is closed at once."""
    access_log: str = ""
    """File (or /dev/stdout) for one JSON object per request; empty: none."""
    traces: TracesSection | None = None
    """Requests that are traced; None: none."""
    audit_log: str = ""
    """Likewise, for the audit log."""
    listener_tls: EnvoyTlsSection | None = None
    balancer_tls: BalancerTls | None = None
    triton_tls: TritonTlsSection | None = None
    access: Access = NOTHING_ASKED
    """What is asked of clients; by default nothing."""
    native: NativeOptions | None = None
    """To decide within Envoy, and ask the balancer where that cannot be; None: to ask it always."""
    fleet: FleetOptions | None = None
    """To have the balancer answer calls about the fleet; None: a worker does, as far as it can."""
    proxy: bool = False
    """Whether the balancer forwards inferences itself: those of gRPC, and with `fleet` those of REST."""

    forwarded: tuple[str, ...] = ()
    """Models of which it does, where it does not of all."""
    kept: Kept = NOTHING_KEPT
    """What only a balancer keeps: without one, Envoy refuses these requests."""
    overlay: Path | None = None
    """A file of Envoy's own configuration that is merged over all this."""


def template() -> str:
    return importlib.resources.files("balancer.bootstrap").joinpath("bootstrap.yaml").read_text(encoding="utf-8")


def render(options: BootstrapOptions) -> str:
    """The bootstrap of `options`, YAML, complete in itself: nothing else is read but the TLS files it names.

    Envoy reads those at its start only.
    """
    return _rendered(options, Secrets(None))


def render_with_secrets(options: BootstrapOptions, folder: Path) -> tuple[str, dict[str, str]]:
    """The bootstrap of `options`, and the files that it expects in `folder`, text by name.

    Through these Envoy reads certificates anew when their files are replaced. Without TLS there are none.
    """
    secrets = Secrets(folder)
    bootstrap = _rendered(options, secrets)
    return bootstrap, {name: _dump(content) for name, content in secrets.files.items()}


def write_secrets(folder: Path, files: Mapping[str, str]) -> None:
    """Write such files, which owner and group may read. An Envoy that runs reads each whole, and at once."""
    for name, content in files.items():
        replace_file(folder / name, content.encode(), 0o640)


def _rendered(options: BootstrapOptions, secrets: Secrets) -> str:
    bootstrap = copy.deepcopy(_parsed_template())
    _set_address(bootstrap["admin"], options.admin_address, options.admin_port)
    _fill_listener(bootstrap["static_resources"]["listeners"][0], options, secrets)
    _fill_clusters(bootstrap["static_resources"]["clusters"], options, secrets)
    if options.traces is not None:
        add_traces(bootstrap, options.traces)
    forwarded = None if options.proxy else options.forwarded
    forwards = options.proxy or bool(options.forwarded)
    (listener,) = bootstrap["static_resources"]["listeners"]
    asking = copy.deepcopy(listener)
    refuse_unpicked(listener, options.kept)
    if forwards:
        forward_by_balancer(bootstrap, forwarded)
    if options.native is not None:
        decide_natively(bootstrap, options.native, options.forwarded)
    if options.fleet is not None:
        ask_the_balancer(bootstrap, options.fleet, options.balancer_tls, secrets)
        if not options.access.names_principals:
            nobody_names_himself(bootstrap)
        if forwards:
            forward_rest_by_balancer(bootstrap, options.request_buffer_limit_bytes, forwarded)
    if forwards:
        hold_compressed(bootstrap, options.request_buffer_limit_bytes)
        go_around(bootstrap, asking, options.kept)
    guard_listener(bootstrap, options.access, secrets)
    limits = {
        monitor["name"]: monitor["typed_config"] for monitor in bootstrap["overload_manager"]["resource_monitors"]
    }
    limits[names.HEAP_MONITOR]["max_heap_size_bytes"] = options.max_heap_bytes
    limits[names.CONNECTIONS_MONITOR]["max_active_downstream_connections"] = options.max_connections
    if options.overlay is not None:
        # What the template shares by anchors is one object in several places: only the place that is named may change.
        bootstrap = json.loads(json.dumps(bootstrap))
        merge(bootstrap, secrets.files, read_document(read_file(options.overlay), str(options.overlay)))
    return _dump(bootstrap)


def _dump(content: Node) -> str:
    return _HEADER + yaml.dump(content, Dumper=_WithoutAliases, sort_keys=False, width=120)


class _WithoutAliases(yaml.SafeDumper):
    """Writes what the template shares by anchors out in full: easier to read, and to edit in one place only."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@functools.cache
def _parsed_template() -> Node:
    return cast(Node, yaml.safe_load(template()))


def _set_address(holder: Node, address: str, port: int) -> None:
    holder["address"]["socket_address"] = {"address": address, "port_value": port}


def _seconds(value: float) -> str:
    """A protobuf duration: decimal, at most nanoseconds."""
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def _fill_listener(listener: Node, options: BootstrapOptions, secrets: Secrets) -> None:
    _set_address(listener, options.listener_address, options.listener_port)
    chain = listener["filter_chains"][0]
    if options.listener_tls is not None:
        chain["transport_socket"] = listener_socket(options.listener_tls, secrets)
    manager = chain["filters"][0]["typed_config"]
    manager["request_timeout"] = _seconds(options.request_timeout_s)
    (first_logger,) = manager["access_log"]
    manager["access_log"] = [_outcome_logger(first_logger, process) for process in range(len(options.balancers))]
    router = manager["http_filters"][-1]["typed_config"]
    (first_logger,) = router["upstream_log"]
    router["upstream_log"] = [_for_process(first_logger, process) for process in range(len(options.balancers))]
    if options.access_log:
        manager["access_log"].append(access_logger(options.access_log))
    if options.audit_log:
        manager["access_log"].append(audit_logger(options.audit_log))
    ext_proc = next(f for f in manager["http_filters"] if f["name"] == names.PICKS_FILTER)
    ext_proc["typed_config"]["message_timeout"] = _seconds(options.message_timeout_s)
    (host,) = manager["route_config"]["virtual_hosts"]
    host["request_body_buffer_limit"] = options.request_buffer_limit_bytes


def _outcome_logger(first: Node, process: int) -> Node:
    logger = _for_process(first, process)
    metadata_filter = logger["filter"]["metadata_filter"]
    metadata_filter["matcher"]["value"]["string_match"]["exact"] = str(process)
    return logger


def _for_process(first: Node, process: int) -> Node:
    logger = copy.deepcopy(first)
    logger["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = names.process_cluster(
        process
    )
    return logger


def _fill_clusters(clusters: list[Node], options: BootstrapOptions, secrets: Secrets) -> None:
    ours = [cluster for cluster in clusters if cluster["name"] in (names.BALANCER_CLUSTER, names.ENDPOINTS_CLUSTER)]
    for cluster in ours:
        _set_endpoints(cluster, cluster["name"], options.balancers)
        cluster["health_checks"][0]["timeout"] = _seconds(options.health_timeout_s)
    one = next(cluster for cluster in clusters if cluster["name"] == names.process_cluster(0))
    clusters.remove(one)
    for process, balancer in enumerate(options.balancers):
        cluster = copy.deepcopy(one)
        _set_endpoints(cluster, names.process_cluster(process), (balancer,))
        clusters.append(cluster)
        ours.append(cluster)
    if options.balancer_tls is not None:
        for cluster in ours:
            cluster["transport_socket"] = balancer_socket(options.balancer_tls, secrets)
    if options.triton_tls is not None:
        sockets = triton_sockets(options.triton_tls, secrets)
        for cluster in clusters:
            if cluster["name"] in sockets:
                cluster["transport_socket"] = sockets[cluster["name"]]


def _set_endpoints(cluster: Node, name: str, balancers: tuple[str, ...]) -> None:
    cluster["name"] = name
    cluster["type"] = discovery_type(balancers)
    endpoints = [{"endpoint": {"address": address_of(balancer)}} for balancer in balancers]
    cluster["load_assignment"] = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
