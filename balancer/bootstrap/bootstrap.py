"""The Envoy bootstrap of a configuration: envoy/bootstrap.yaml with ports, addresses and TLS filled in.

The template is a complete bootstrap with comments, which is what an SRE reads; what is printed from it has the same
structure without them. It is read as package data: `bootstrap.yaml` beside this is a link to it, which wheels
carry as a file.
"""

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
from balancer.bootstrap import nodes
from balancer.bootstrap.access import Access, guard_listener
from balancer.bootstrap.native import NOTHING_KEPT, Kept, NativeOptions, decide_natively, go_around, refuse_unpicked
from balancer.bootstrap.nodes import Node
from balancer.bootstrap.overlay import merge
from balancer.bootstrap.proxy import (
    FleetOptions,
    ask_the_balancer,
    forward_by_balancer,
    forward_rest_by_balancer,
    hold_compressed,
    nobody_names_himself,
)
from balancer.bootstrap.sections import EnvoySection
from balancer.bootstrap.tls import Secrets, balancer_socket, listener_socket, worker_sockets
from balancer.bootstrap.traces import add_traces
from balancer.extproc import names
from balancer.files.regular import replace_file
from balancer.files.schema import split_address
from balancer.files.yaml_document import read_document, read_file

_HEADER = """\
# Printed by `balancer envoy`; envoy/bootstrap.yaml in the source is the same with comments.
"""


_DEFAULTS = EnvoySection()


@dataclass(frozen=True, slots=True)
class BootstrapOptions:
    """The section `envoy` of the config, and what the config concludes from others; the defaults are those of
    envoy/bootstrap.yaml."""

    envoy: EnvoySection = _DEFAULTS
    balancers: tuple[str, ...] = ("127.0.0.1:9003",)
    """`host:port` or `unix:/path` of each balancer process, in the order of their numbers (`balancer.process` in
    metadata).

    A name may resolve to several addresses, but beside a Unix socket only IP addresses may stand; brackets around
    IPv6.
    """
    # The next five are constants to the config: an overlay may change all but the second. Tests set them.
    message_timeout_s: float = 0.2
    """How long a request waits for its pick before it goes on without."""
    health_timeout_s: float = 0.5
    """How long a balancer process may take to answer a health check before it is asked for no more picks."""
    request_timeout_s: float = 300.0
    """How long a request may take to arrive, unless its answer begins before that."""
    max_connections: int = 10_000
    """Connections of clients; one more is closed at once."""
    jwks_ca: Path = Path("/etc/ssl/certs/ca-certificates.crt")
    """What signed the certificate of the server of `jwt.jwks_url`: by default whom Envoy's machine trusts (Debian)."""
    tenant_header: str = "x-tenant"
    names_principals: bool = False
    native: NativeOptions | None = None
    """To decide within Envoy, and ask the balancer where that cannot be; None: to ask it always."""
    fleet: FleetOptions | None = None
    """To have the balancer answer calls about the fleet; None: a worker does, as far as it can."""
    kept: Kept = NOTHING_KEPT
    """What only a balancer keeps: without one, Envoy refuses these requests."""


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
    envoy = options.envoy
    access = Access(envoy, options.tenant_header, options.jwks_ca, options.names_principals)
    _set_address(bootstrap["admin"], envoy.admin)
    _fill_listener(bootstrap["static_resources"]["listeners"][0], options, secrets)
    _fill_clusters(bootstrap["static_resources"]["clusters"], options, secrets)
    if envoy.traces is not None:
        add_traces(bootstrap, envoy.traces)
    forwarded = None if envoy.frontend == "proxy" else envoy.forwarded
    forwards = forwarded is None or bool(forwarded)
    (listener,) = bootstrap["static_resources"]["listeners"]
    asking = copy.deepcopy(listener)
    refuse_unpicked(listener, options.kept)
    if forwards:
        forward_by_balancer(bootstrap, forwarded)
    if options.native is not None:
        decide_natively(bootstrap, options.native, envoy.forwarded)
    if options.fleet is not None:
        ask_the_balancer(bootstrap, options.fleet, _balancer_trust(envoy), secrets)
        if not access.names_principals:
            nobody_names_himself(bootstrap)
        if forwards:
            forward_rest_by_balancer(bootstrap, int(envoy.request_buffer_limit_bytes), forwarded)
    if forwards:
        hold_compressed(bootstrap, int(envoy.request_buffer_limit_bytes))
        go_around(bootstrap, asking, options.kept)
    guard_listener(bootstrap, access, secrets)
    limits = {
        monitor["name"]: monitor["typed_config"] for monitor in bootstrap["overload_manager"]["resource_monitors"]
    }
    limits[names.HEAP_MONITOR]["max_heap_size_bytes"] = int(envoy.max_heap_bytes)
    limits[names.CONNECTIONS_MONITOR]["max_active_downstream_connections"] = options.max_connections
    if envoy.overlay is not None:
        # What the template shares by anchors is one object in several places: only the place that is named may change.
        bootstrap = json.loads(json.dumps(bootstrap))
        merge(bootstrap, secrets.files, read_document(read_file(Path(envoy.overlay)), envoy.overlay))
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


def _balancer_trust(envoy: EnvoySection) -> BalancerTls | None:
    return None if envoy.balancer_tls is None else envoy.balancer_tls.trust()


def _set_address(holder: Node, at: str) -> None:
    address, port = split_address(at)
    holder["address"]["socket_address"] = {"address": address, "port_value": port}


def _seconds(value: float) -> str:
    """A protobuf duration: decimal, at most nanoseconds."""
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def _fill_listener(listener: Node, options: BootstrapOptions, secrets: Secrets) -> None:
    envoy = options.envoy
    _set_address(listener, envoy.listen)
    chain = listener["filter_chains"][0]
    if envoy.tls is not None:
        chain["transport_socket"] = listener_socket(envoy.tls, secrets)
    manager = chain["filters"][0]["typed_config"]
    manager["request_timeout"] = _seconds(options.request_timeout_s)
    (first_logger,) = manager["access_log"]
    manager["access_log"] = [_outcome_logger(first_logger, process) for process in range(len(options.balancers))]
    router = manager["http_filters"][-1]["typed_config"]
    (first_logger,) = router["upstream_log"]
    router["upstream_log"] = [_for_process(first_logger, process) for process in range(len(options.balancers))]
    if envoy.access_log:
        manager["access_log"].append(nodes.part("access_log", path=envoy.access_log))
    if envoy.audit_log is not None:
        manager["access_log"].append(nodes.part("audit_log", path=envoy.audit_log.file))
    ext_proc = nodes.named(manager["http_filters"], names.PICKS_FILTER)
    ext_proc["typed_config"]["message_timeout"] = _seconds(options.message_timeout_s)
    (host,) = manager["route_config"]["virtual_hosts"]
    host["request_body_buffer_limit"] = int(envoy.request_buffer_limit_bytes)


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
        nodes.lead_to(cluster, cluster["name"], options.balancers)
        cluster["health_checks"][0]["timeout"] = _seconds(options.health_timeout_s)
    one = nodes.named(clusters, names.process_cluster(0))
    clusters.remove(one)
    for process, balancer in enumerate(options.balancers):
        cluster = copy.deepcopy(one)
        nodes.lead_to(cluster, names.process_cluster(process), (balancer,))
        clusters.append(cluster)
        ours.append(cluster)
    if (trust := _balancer_trust(options.envoy)) is not None:
        for cluster in ours:
            cluster["transport_socket"] = balancer_socket(trust, secrets)
    sockets = worker_sockets(options.envoy.triton_tls, options.envoy.openai_tls, secrets)
    for cluster in clusters:
        if cluster["name"] in sockets:
            cluster["transport_socket"] = sockets[cluster["name"]]
