"""Real Envoys, configured as gateways other than ours configure theirs, that ask a balancer for picks."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from balancer.bounds import OutOfBoundsError
from balancer.extproc.exchange import Served
from balancer.extproc.kserve import Call
from balancer.extproc.picker import Pick
from balancer.scheduler.after_decision import Decision
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.process import free_ports
from support.bootstrap import options_of
from support.envoy_fakes import FakeWorker
from support.running import running
from support.waiting import eventually

NONE, STREAMED, BUFFERED, PARTIAL = "NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL"
DUPLEX, GRPC = "FULL_DUPLEX_STREAMED", "GRPC"
MODES = (NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX)
_TYPE = "type.googleapis.com/envoy.extensions."
_BUFFER_BYTES = 2**24
"""Per connection: a gateway that buffers takes no larger bodies."""


class Listening:
    """Remembers what the service of picks told."""

    def __init__(self) -> None:
        self.served_calls: list[Served] = []
        self.calls: list[Call] = []
        self.first_tokens: list[int] = []
        self.refusals: list[str] = []
        self.internal_errors: list[Exception] = []
        self.ended: dict[int, Served] = {}
        """By the identity of the call."""

    def picked(self, call: Call, pick: Pick, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append(call)

    def first_token(self, call: Call, decision: Decision) -> None:
        self.first_tokens.append(decision.number)

    def served(self, call: Call, served: Served) -> None:
        self.served_calls.append(served)
        self.ended[id(call)] = served

    async def end_of(self, call: Call) -> Served:
        """How a call ended, once it has."""
        await eventually(lambda: id(call) in self.ended, "the call has ended")
        return self.ended[id(call)]

    def refused(self, error: OutOfBoundsError) -> None:
        self.refusals.append(error.field)

    def failed_internally(self, error: Exception) -> None:
        self.internal_errors.append(error)


@dataclass(frozen=True)
class Gateway:
    """How one gateway asks."""

    request: str = NONE
    """Mode in which it sends bodies of requests."""
    response: str = NONE
    """Of answers."""
    by: str = "header"
    """How it follows a pick: `header` (cluster of original destinations) or `metadata` (override host)."""
    tells: bool = True
    """Whether it sends response headers and trailers."""
    tls: bool = False
    """Whether it dials TLS, checking no name."""
    closed: bool = True
    """Whether a request fails where no pick is to be had."""

    def __str__(self) -> str:
        return "-".join(f"{value}" for value in vars(self).values() if isinstance(value, str) and value)


@dataclass
class EchoingWorker(FakeWorker):
    """Over HTTP, sends back the body that came, or events, the second once `go_on` is set."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def _http(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]  # streams too
        if request.path.endswith("/generate_stream"):
            return await self._events(request)
        body = await request.read()
        self.http_requests.append((request.path, dict(request.headers), len(body)))
        return web.Response(body=body, headers={"x-digest": digest(body), "x-worker": self.name})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        await self.go_on.wait()
        await response.write(b"data: second\n\n")
        return response


def digest(body: bytes) -> str:
    """Of a body, to compare large ones by."""
    return hashlib.sha256(body).hexdigest()


@dataclass
class Envoys:
    """One Envoy with a listener for each gateway."""

    directory: Path
    picker_port: int
    workers: list[EchoingWorker]
    gateways: list[Gateway]
    ports: dict[Gateway, int] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Envoys]:
        """Until Envoy serves."""
        admin_port, *ports = free_ports(1 + len(self.gateways))
        self.ports = dict(zip(self.gateways, ports, strict=True))
        options = options_of(admin=f"127.0.0.1:{admin_port}")
        bootstrap = json.dumps(self._bootstrap(admin_port))
        envoy = EnvoyProcess(options=options, log_path=self.directory / "envoy.log", concurrency=1, bootstrap=bootstrap)
        async with running(envoy):
            await envoy.wait_ready()
            yield self

    def _bootstrap(self, admin_port: int) -> dict[str, Any]:
        clusters = [self._workers_cluster(by, grpc) for by in ("header", "metadata") for grpc in (False, True)]
        clusters += [self._picker_cluster(tls) for tls in (False, True)]
        return {
            "admin": {"address": _address(admin_port)},
            "static_resources": {
                "listeners": [self._listener(gateway, port) for gateway, port in self.ports.items()],
                "clusters": clusters,
            },
        }

    def _listener(self, gateway: Gateway, port: int) -> dict[str, Any]:
        filters = [_ext_proc(gateway), _filter("router", "router.v3.Router")]
        is_grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
        routes = [
            {"match": {"prefix": "/", "headers": [is_grpc]}, "route": {"cluster": f"{gateway.by}-grpc"}},
            {"match": {"prefix": "/"}, "route": {"cluster": f"{gateway.by}-http"}},
        ]
        manager = {
            "@type": f"{_TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "clients",
            "http_filters": filters,
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        }
        return {
            "name": str(port),
            "address": _address(port),
            "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
            "filter_chains": [
                {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
            ],
        }

    def _workers_cluster(self, by: str, grpc: bool) -> dict[str, Any]:
        cluster: dict[str, Any] = {"name": f"{by}-{'grpc' if grpc else 'http'}", "connect_timeout": "5s"}
        cluster["per_connection_buffer_limit_bytes"] = _BUFFER_BYTES
        if grpc:
            cluster |= _HTTP2
        if by == "header":
            followed = {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"}
            return cluster | {
                "type": "ORIGINAL_DST",
                "lb_policy": "CLUSTER_PROVIDED",
                "original_dst_lb_config": followed,
            }
        ports = [worker.grpc_port if grpc else worker.http_port for worker in self.workers]
        source = {"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}}
        fallback = {"typed_extension_config": _policy("round_robin", "round_robin.v3.RoundRobin")}
        policy = _policy(
            "override_host",
            "override_host.v3.OverrideHost",
            override_host_sources=[source],
            fallback_policy={"policies": [fallback]},
        )
        return cluster | {
            "type": "STATIC",
            "load_assignment": _endpoints(cluster["name"], ports),
            "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        }

    def _picker_cluster(self, tls: bool) -> dict[str, Any]:
        name = "picker-tls" if tls else "picker"
        cluster = {"name": name, "connect_timeout": "5s", "type": "STATIC"} | _HTTP2
        cluster["load_assignment"] = _endpoints(name, [self.picker_port])
        if tls:
            context = {"@type": f"{_TYPE}transport_sockets.tls.v3.UpstreamTlsContext"}
            cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
        return cluster


_HTTP2 = {
    "typed_extension_protocol_options": {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_TYPE}upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
}


def _ext_proc(gateway: Gateway) -> dict[str, Any]:
    # Envoy wants trailers sent wherever a body is in full duplex or in gRPC's messages.
    trailers = {
        "request_trailer_mode": "SEND" if gateway.request in (DUPLEX, GRPC) else "SKIP",
        "response_trailer_mode": "SEND" if gateway.tells else "SKIP",
    }
    return _filter(
        "ext_proc",
        "ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker-tls" if gateway.tls else "picker"}, "timeout": "30s"},
        message_timeout="30s",
        failure_mode_allow=not gateway.closed,
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND" if gateway.tells else "SKIP",
            "request_body_mode": gateway.request,
            "response_body_mode": gateway.response,
            **trailers,
        },
        metadata_options={
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
        mutation_rules={"allow_all_routing": True},
    )


def _filter(name: str, type_name: str, **values: Any) -> dict[str, Any]:
    typed = {"@type": f"{_TYPE}filters.http.{type_name}", **values}
    return {"name": f"envoy.filters.http.{name}", "typed_config": typed}


def _policy(name: str, type_name: str, **values: Any) -> dict[str, Any]:
    typed = {"@type": f"{_TYPE}load_balancing_policies.{type_name}", **values}
    return {"name": f"envoy.load_balancing_policies.{name}", "typed_config": typed}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _endpoints(cluster: str, ports: Iterable[int]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}
