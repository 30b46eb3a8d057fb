"""The Envoy bootstrap of a configuration: envoy/bootstrap.yaml with ports, addresses and TLS filled in.

The template is a complete bootstrap with comments, which is what an SRE reads; what is printed from it has the same
structure without them. It is read as package data: `balancer/envoy_bootstrap.yaml` is a link to it, which wheels
carry as a file.
"""

from __future__ import annotations

import copy
import functools
import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from balancer.errors import OperatorError

_FIELDS = "envoy.filters.http.grpc_field_extraction"
_HEADER = """\
# Printed by `balancer envoy`; envoy/bootstrap.yaml in the source is the same with comments.
"""
_TLS_NAME = "envoy.transport_sockets.tls"
_TLS_TYPE = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."

Node = dict[str, Any]
"""A mapping of the bootstrap, as YAML gives it."""


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """TLS towards clients. Paths are read by Envoy, at its start."""

    certificate: Path
    """Chain, PEM."""
    private_key: Path
    """PEM."""
    client_ca: Path | None = None
    """PEM; clients must then show a certificate that it signed (mTLS)."""


@dataclass(frozen=True, slots=True)
class BalancerTls:
    """TLS towards the balancer, on all of its gRPC services. Paths are read by Envoy, at its start."""

    ca: Path
    """PEM; what signed the balancer's certificate."""
    server_name: str
    """Sent as SNI, and required in the certificate's alternative names."""
    certificate: Path | None = None
    """Chain, PEM, that Envoy shows; None: none is shown."""
    private_key: Path | None = None
    """PEM; with `certificate`, or neither."""


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
    """`host:port` of each balancer process, in the order of their numbers (`balancer.process` in metadata).

    A name may resolve to several addresses; brackets around IPv6.
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
    """Largest gRPC message, also the largest request that can be retried; 16 MiB of HTTP/2 window pass in any case."""
    access_log: str = ""
    """File (or /dev/stdout) for one JSON object per request; empty: none."""
    listener_tls: ListenerTls | None = None
    balancer_tls: BalancerTls | None = None

    def __post_init__(self) -> None:
        for name in ("listener_port", "admin_port"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise OperatorError(f"{name}: {port} is no TCP port; give 1 to 65535, or 0 for any free one")
        for name in ("message_timeout_s", "health_timeout_s", "flush_interval_s", "request_buffer_limit_bytes"):
            value = getattr(self, name)
            if not value > 0:
                raise OperatorError(f"{name}: {value} must be greater than 0")
        if self.request_buffer_limit_bytes > 2**32 - 1:
            raise OperatorError(
                f"request_buffer_limit_bytes: {self.request_buffer_limit_bytes} is more than Envoy can count (4 GiB)"
            )
        if not self.balancers:
            raise OperatorError("balancers: empty; give the host:port of at least one balancer process")
        for balancer in self.balancers:
            _host_and_port(balancer)
        if self.balancer_tls is not None:
            if bool(self.balancer_tls.certificate) != bool(self.balancer_tls.private_key):
                raise OperatorError("balancer_tls: certificate and private_key go together; give both or neither")
            if not self.balancer_tls.server_name:
                raise OperatorError("balancer_tls.server_name: empty; give a name of the balancer's certificate")


def template() -> str:
    """The text of envoy/bootstrap.yaml, comments included."""
    return importlib.resources.files("balancer").joinpath("envoy_bootstrap.yaml").read_text(encoding="utf-8")


def render(options: BootstrapOptions) -> str:
    """The bootstrap of `options`, YAML, complete in itself: nothing else is read but the TLS files it names."""
    bootstrap = copy.deepcopy(_parsed_template())
    bootstrap["node"]["id"] = options.node_id
    _set_address(bootstrap["admin"], options.admin_address, options.admin_port)
    _fill_listener(bootstrap["static_resources"]["listeners"][0], options)
    _fill_clusters(bootstrap["static_resources"]["clusters"], options)
    return _HEADER + yaml.dump(bootstrap, Dumper=_WithoutAliases, sort_keys=False, width=120)


class _WithoutAliases(yaml.SafeDumper):
    """Writes what the template shares by anchors out in full: easier to read, and to edit in one place only."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@functools.cache
def _parsed_template() -> Node:
    return cast(Node, yaml.safe_load(template()))


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise OperatorError(f"balancers: {text!r} is not host:port, for example 10.0.0.7:9000")
    return host, int(port)


def _set_address(holder: Node, address: str, port: int) -> None:
    holder["address"]["socket_address"] = {"address": address, "port_value": port}


def _seconds(value: float) -> str:
    """A protobuf duration: decimal, at most nanoseconds."""
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def _fill_listener(listener: Node, options: BootstrapOptions) -> None:
    _set_address(listener, options.listener_address, options.listener_port)
    chain = listener["filter_chains"][0]
    if options.listener_tls is not None:
        chain["transport_socket"] = _listener_tls(options.listener_tls)
    manager = chain["filters"][0]["typed_config"]
    (first_logger,) = manager["access_log"]
    first_logger["typed_config"]["common_config"]["buffer_flush_interval"] = _seconds(options.flush_interval_s)
    manager["access_log"] = [_outcome_logger(first_logger, process) for process in range(len(options.balancers))]
    if options.access_log:
        manager["access_log"].append(_json_logger(options.access_log))
    ext_proc = next(f for f in manager["http_filters"] if f["name"] == "envoy.filters.http.ext_proc")
    ext_proc["typed_config"]["message_timeout"] = _seconds(options.message_timeout_s)
    (host,) = manager["route_config"]["virtual_hosts"]
    host["request_body_buffer_limit"] = options.request_buffer_limit_bytes


def _outcome_logger(first: Node, process: int) -> Node:
    logger = copy.deepcopy(first)
    metadata_filter = logger["filter"]["metadata_filter"]
    metadata_filter["matcher"]["value"]["string_match"]["exact"] = str(process)
    logger["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = f"balancer_{process}"
    return logger


def _json_logger(path: str) -> Node:
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": path,
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "request_id": "%REQ(X-REQUEST-ID)%",
                    "triton_request_id": f"%CEL(metadata.filter_metadata['{_FIELDS}']['id'][0])%",
                    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%REQ(:PATH)%",
                    "status": "%RESPONSE_CODE%",
                    "grpc_status": "%GRPC_STATUS_NUMBER%",
                    "flags": "%RESPONSE_FLAGS%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "duration_ms": "%DURATION%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                    "picked": "%DYNAMIC_METADATA(envoy.lb:x-gateway-destination-endpoint)%",
                    "served": "%UPSTREAM_HOST%",
                    "request_bytes": "%BYTES_RECEIVED%",
                    "response_bytes": "%BYTES_SENT%",
                }
            },
        },
    }


def _fill_clusters(clusters: list[Node], options: BootstrapOptions) -> None:
    everyone = next(cluster for cluster in clusters if cluster["name"] == "balancer")
    one = next(cluster for cluster in clusters if cluster["name"] == "balancer_0")
    clusters.remove(one)
    _set_endpoints(everyone, "balancer", options.balancers)
    everyone["health_checks"][0]["timeout"] = _seconds(options.health_timeout_s)
    ours = [everyone]
    for process, balancer in enumerate(options.balancers):
        cluster = copy.deepcopy(one)
        _set_endpoints(cluster, f"balancer_{process}", (balancer,))
        clusters.append(cluster)
        ours.append(cluster)
    if options.balancer_tls is not None:
        for cluster in ours:
            cluster["transport_socket"] = _balancer_tls(options.balancer_tls)


def _set_endpoints(cluster: Node, name: str, balancers: tuple[str, ...]) -> None:
    cluster["name"] = name
    endpoints = []
    for balancer in balancers:
        host, port = _host_and_port(balancer)
        endpoints.append({"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}})
    cluster["load_assignment"] = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _listener_tls(tls: ListenerTls) -> Node:
    context: Node = {
        "tls_certificates": [_certificate(tls.certificate, tls.private_key)],
        "alpn_protocols": ["h2", "http/1.1"],
    }
    socket: Node = {"@type": f"{_TLS_TYPE}DownstreamTlsContext", "common_tls_context": context}
    if tls.client_ca is not None:
        context["validation_context"] = {"trusted_ca": {"filename": str(tls.client_ca)}}
        socket["require_client_certificate"] = True
    return {"name": _TLS_NAME, "typed_config": socket}


def _balancer_tls(tls: BalancerTls) -> Node:
    context: Node = {
        "validation_context": {
            "trusted_ca": {"filename": str(tls.ca)},
            "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": tls.server_name}}],
        },
        # gRPC servers insist on it.
        "alpn_protocols": ["h2"],
    }
    if tls.certificate is not None and tls.private_key is not None:
        context["tls_certificates"] = [_certificate(tls.certificate, tls.private_key)]
    return {
        "name": _TLS_NAME,
        "typed_config": {
            "@type": f"{_TLS_TYPE}UpstreamTlsContext",
            "sni": tls.server_name,
            "common_tls_context": context,
        },
    }


def _certificate(chain: Path, key: Path) -> Node:
    return {"certificate_chain": {"filename": str(chain)}, "private_key": {"filename": str(key)}}
