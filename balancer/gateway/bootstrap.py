"""The Envoy bootstrap of a configuration: envoy/bootstrap.yaml with ports, addresses and TLS filled in.

The template is a complete bootstrap with comments, which is what an SRE reads; what is printed from it has the same
structure without them. It is read as package data: `bootstrap.yaml` beside this is a link to it, which wheels
carry as a file.
"""

from __future__ import annotations

import copy
import functools
import importlib.resources
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml

from balancer.balancer_tls import BalancerTls
from balancer.errors import OperatorError
from balancer.files.schema import UNIX, split_address
from balancer.gateway import names
from balancer.gateway.bootstrap_native import NativeOptions, decide_natively
from balancer.gateway.bootstrap_tls import ListenerTls, Node, Secrets, balancer_socket, listener_socket
from balancer.gateway.bootstrap_traces import TraceOptions, add_traces

_HEADER = """\
# Printed by `balancer envoy`; envoy/bootstrap.yaml in the source is the same with comments.
"""


@dataclass(frozen=True, slots=True)
class BootstrapOptions:
    """What differs between deployments. The defaults are those of envoy/bootstrap.yaml.

    Raises:
        OperatorError: if a value cannot work; the message names field, value and remedy.
    """

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
    node_id: str = "gateway"
    """Tells Envoys apart in the balancer's logs."""
    message_timeout_s: float = 0.2
    """How long a request waits for its pick before it goes on without."""
    health_timeout_s: float = 0.5
    """How long a balancer process may take to answer a health check before it is asked for no more picks."""
    flush_interval_s: float = 0.005
    """How long an outcome may wait for others before it is sent to the balancer."""
    request_buffer_limit_bytes: int = 80 * 2**20
    """Largest gRPC message, also the largest request that can be retried; 2 MiB of HTTP/2 window pass in any case."""
    request_timeout_s: float = 300.0
    """How long a request may take to arrive, unless its answer begins before that."""
    max_connections: int = 10_000
    """Connections of clients; one more is closed at once."""
    max_heap_bytes: int = 2 * 2**30
    """Memory at which Envoy is full; it sheds from 80% of it on."""
    access_log: str = ""
    """File (or /dev/stdout) for one JSON object per request; empty: none."""
    traces: TraceOptions | None = None
    """Requests that are traced; None: none."""
    listener_tls: ListenerTls | None = None
    balancer_tls: BalancerTls | None = None
    native: NativeOptions | None = None
    """To decide within Envoy, and ask the balancer where that cannot be; None: to ask it always."""

    def __post_init__(self) -> None:
        for name in ("listener_port", "admin_port"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise OperatorError(f"{name}: {port} is no TCP port; give 1 to 65535, or 0 for any free one")
        for name in (
            *("message_timeout_s", "health_timeout_s", "flush_interval_s", "request_timeout_s"),
            *("request_buffer_limit_bytes", "max_connections", "max_heap_bytes"),
        ):
            value = getattr(self, name)
            if not value > 0:
                raise OperatorError(f"{name}: {value} must be greater than 0")
        if self.request_buffer_limit_bytes > 2**32 - 1:
            raise OperatorError(
                f"request_buffer_limit_bytes: {self.request_buffer_limit_bytes} is more than Envoy can count (4 GiB)"
            )
        if not self.balancers:
            raise OperatorError("balancers: empty; give the host:port of at least one balancer process")
        try:
            check_balancers(self.balancers)
        except ValueError as error:
            raise OperatorError(f"balancers: {error}") from error
        if self.balancer_tls is not None:
            if bool(self.balancer_tls.certificate) != bool(self.balancer_tls.private_key):
                raise OperatorError("balancer_tls: certificate and private_key go together; give both or neither")
            if not self.balancer_tls.server_name:
                raise OperatorError("balancer_tls.server_name: empty; give a name of the balancer's certificate")


def template() -> str:
    """The text of envoy/bootstrap.yaml, comments included."""
    return importlib.resources.files("balancer.gateway").joinpath("bootstrap.yaml").read_text(encoding="utf-8")


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


def _rendered(options: BootstrapOptions, secrets: Secrets) -> str:
    bootstrap = copy.deepcopy(_parsed_template())
    bootstrap["node"]["id"] = options.node_id
    _set_address(bootstrap["admin"], options.admin_address, options.admin_port)
    _fill_listener(bootstrap["static_resources"]["listeners"][0], options, secrets)
    _fill_clusters(bootstrap["static_resources"]["clusters"], options, secrets)
    if options.traces is not None:
        add_traces(bootstrap, options.traces)
    if options.native is not None:
        decide_natively(bootstrap, options.native)
    limits = {
        monitor["name"]: monitor["typed_config"] for monitor in bootstrap["overload_manager"]["resource_monitors"]
    }
    limits[names.HEAP_MONITOR]["max_heap_size_bytes"] = options.max_heap_bytes
    limits[names.CONNECTIONS_MONITOR]["max_active_downstream_connections"] = options.max_connections
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


def check_balancers(balancers: tuple[str, ...]) -> None:
    """Whether Envoy can reach these addresses.

    Raises:
        ValueError: it cannot; the message names the address and the remedy.
    """
    for balancer in balancers:
        _address(balancer)
    _discovery_type(balancers)


def _address(balancer: str) -> Node:
    """Envoy's address of a balancer process."""
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
    first_logger["typed_config"]["common_config"]["buffer_flush_interval"] = _seconds(options.flush_interval_s)
    manager["access_log"] = [_outcome_logger(first_logger, process) for process in range(len(options.balancers))]
    if options.access_log:
        manager["access_log"].append(_json_logger(options.access_log))
    ext_proc = next(f for f in manager["http_filters"] if f["name"] == names.PICKS_FILTER)
    ext_proc["typed_config"]["message_timeout"] = _seconds(options.message_timeout_s)
    (host,) = manager["route_config"]["virtual_hosts"]
    host["request_body_buffer_limit"] = options.request_buffer_limit_bytes


def _outcome_logger(first: Node, process: int) -> Node:
    logger = copy.deepcopy(first)
    metadata_filter = logger["filter"]["metadata_filter"]
    metadata_filter["matcher"]["value"]["string_match"]["exact"] = str(process)
    logger["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = names.process_cluster(
        process
    )
    return logger


def _json_logger(path: str) -> Node:
    return {
        "name": names.FILE_LOG,
        "typed_config": {
            "@type": names.FILE_LOG_TYPE,
            "path": path,
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "request_id": f"%REQ({names.REQUEST_ID_HEADER.upper()})%",
                    "gateway_request_id": f"%REQ({names.GATEWAY_REQUEST_ID_HEADER.upper()})%",
                    "triton_request_id": f"%CEL(metadata.filter_metadata['{names.EXTRACTION}']['id'][0])%",
                    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%REQ(:PATH)%",
                    "status": "%RESPONSE_CODE%",
                    "grpc_status": "%GRPC_STATUS_NUMBER%",
                    "flags": "%RESPONSE_FLAGS%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "duration_ms": "%DURATION%",
                    "received_ms": "%COMMON_DURATION(DS_RX_BEG:DS_RX_END:ms)%",
                    "pick_us": f"%FILTER_STATE({names.PICKS_FILTER}:FIELD:request_header_latency_us)%",
                    "worker_first_byte_ms": "%COMMON_DURATION(US_TX_BEG:US_RX_BEG:ms)%",
                    "worker_ms": "%COMMON_DURATION(US_TX_BEG:US_RX_END:ms)%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                    "picked": f"%DYNAMIC_METADATA({names.DESTINATION_NAMESPACE}:{names.DESTINATION})%",
                    "picked_in_envoy": f"%DYNAMIC_METADATA({names.DECISION_NAMESPACE}:{names.DESTINATION})%",
                    "worker": "%UPSTREAM_HOST_NAME_WITHOUT_PORT%",
                    "served": "%UPSTREAM_HOST%",
                    "request_bytes": "%BYTES_RECEIVED%",
                    "response_bytes": "%BYTES_SENT%",
                }
            },
        },
    }


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


def _set_endpoints(cluster: Node, name: str, balancers: tuple[str, ...]) -> None:
    cluster["name"] = name
    cluster["type"] = _discovery_type(balancers)
    endpoints = [{"endpoint": {"address": _address(balancer)}} for balancer in balancers]
    cluster["load_assignment"] = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
