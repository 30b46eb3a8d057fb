"""Tells Envoys which workers exist: EDS over the aggregated discovery service (ADS), state of the world."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import grpc
from envoy.config.core.v3 import address_pb2, health_check_pb2
from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import any_pb2

from balancer.discovery.workers import WorkerProtocol
from balancer.extproc.names import (
    ENDPOINTS_SERVICE,
    ENDPOINTS_TYPE_URL,
    GRPC_CLUSTER,
    HTTP_CLUSTER,
    LAST_KNOWN,
    OPENAI_CLUSTER,
)
from balancer.files.regular import replace_file

logger = logging.getLogger(__name__)

_AGAIN_AFTER_S = 1.0

SERVER_OPTIONS = [("grpc.http2.max_ping_strikes", 0)]
"""For the server that `Ads` is added to: Envoy pings more often than gRPC servers bear by default."""

State = Literal["healthy", "draining", "unhealthy"]
_HEALTH_STATUS = {
    "healthy": health_check_pb2.HEALTHY,
    "draining": health_check_pb2.DRAINING,
    "unhealthy": health_check_pb2.UNHEALTHY,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    name: str
    address: str
    """IP; Envoy resolves no names here."""
    grpc_port: int
    """0: it has none."""
    http_port: int
    state: State = "healthy"
    """Envoy's own fallback goes to healthy ones only. A pick is followed whatever this says."""
    protocol: WorkerProtocol = "triton"
    """`openai`: it has the HTTP port alone."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What all Envoys should have; the version is a hash, so equal in every balancer process."""

    version: str
    resources: dict[str, any_pb2.Any]


@dataclass(slots=True, eq=False)
class _Stream:
    """One connected Envoy; equal to itself only. `names` is None until it subscribes."""

    peer: str
    node: str = ""
    names: frozenset[str] | None = None
    sent_names: frozenset[str] | None = None
    sent_version: str = ""
    nonce: int = 0
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Ads:
    """The ADS servicer. All methods belong to the event loop that serves it.

    Until the first `update` nothing is sent: an Envoy that outlives a restart of the balancer keeps its endpoints.
    """

    def __init__(self) -> None:
        self._snapshot: _Snapshot | None = None
        self._streams: set[_Stream] = set()
        self._rejections = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        handler = grpc.stream_stream_rpc_method_handler(
            self._serve,
            request_deserializer=discovery_pb2.DiscoveryRequest.FromString,
            response_serializer=discovery_pb2.DiscoveryResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(ENDPOINTS_SERVICE, {"StreamAggregatedResources": handler}),)
        )

    @property
    def connected(self) -> int:
        return len(self._streams)

    @property
    def rejections(self) -> int:
        """How many updates Envoys refused (NACK) since the start."""
        return self._rejections

    def update(self, endpoints: Sequence[Endpoint]) -> None:
        """Make these the fleet and send it to every Envoy; nothing is sent where nothing changed.

        An empty fleet is sent as such: only call this once discovery has spoken.
        """
        snapshot = _snapshot(endpoints)
        if self._snapshot is not None and snapshot.version == self._snapshot.version:
            return
        self._snapshot = snapshot
        for stream in self._streams:
            stream.changed.set()

    async def _serve(
        self,
        request_iterator: AsyncIterator[discovery_pb2.DiscoveryRequest],
        context: grpc.aio.ServicerContext[discovery_pb2.DiscoveryRequest, discovery_pb2.DiscoveryResponse],
    ) -> None:
        stream = _Stream(peer=context.peer())
        self._streams.add(stream)
        reader = asyncio.ensure_future(self._read(stream, request_iterator))
        try:
            while True:
                await stream.changed.wait()
                stream.changed.clear()
                if stream.closed:
                    break
                response = self._next_response(stream)
                if response is not None:
                    await context.write(response)
            # Raises what the reader met: a broken stream is gRPC's to report.
            await reader
        finally:
            self._streams.discard(stream)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
            logger.info("Envoy left", extra={"envoy": stream.node, "peer": stream.peer})

    async def _read(self, stream: _Stream, requests: AsyncIterator[discovery_pb2.DiscoveryRequest]) -> None:
        try:
            async for request in requests:
                self._receive(stream, request)
        finally:
            stream.closed = True
            stream.changed.set()

    def _receive(self, stream: _Stream, request: discovery_pb2.DiscoveryRequest) -> None:
        if request.node.id and not stream.node:
            stream.node = request.node.id
            logger.info("Envoy connected", extra={"envoy": stream.node, "peer": stream.peer})
        if request.type_url != ENDPOINTS_TYPE_URL:
            logger.warning(
                "Envoy asks for what is not served here; its bootstrap should get only endpoints over ADS",
                extra={"envoy": stream.node, "type_url": request.type_url},
            )
            return
        if request.HasField("error_detail"):
            # Sending the same again would be refused again: the next update is the next try.
            self._rejections += 1
            logger.error(
                "Envoy refused the endpoints and keeps the last it accepted",
                extra={
                    "envoy": stream.node,
                    "kept_version": request.version_info,
                    "detail": request.error_detail.message,
                },
            )
        if request.response_nonce and request.response_nonce != str(stream.nonce):
            # It answers an older response; its answer to the latest follows.
            return
        stream.names = frozenset(request.resource_names)
        if stream.names != stream.sent_names:
            stream.changed.set()

    def _next_response(self, stream: _Stream) -> discovery_pb2.DiscoveryResponse | None:
        snapshot = self._snapshot
        if snapshot is None or stream.names is None:
            return None
        if stream.names == stream.sent_names and snapshot.version == stream.sent_version:
            return None
        stream.sent_names = stream.names
        stream.sent_version = snapshot.version
        stream.nonce += 1
        return discovery_pb2.DiscoveryResponse(
            version_info=snapshot.version,
            type_url=ENDPOINTS_TYPE_URL,
            nonce=str(stream.nonce),
            resources=[snapshot.resources[name] for name in sorted(stream.names & snapshot.resources.keys())],
        )


class LastKnown:
    """Files of the endpoints as they are now, in a folder of this machine that outlives a reboot.

    An Envoy whose bootstrap names them follows them and not the stream, so that it serves while no balancer is there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritten: Sequence[Endpoint] | None = None
        self._tried_s = 0.0
        self._fails = False

    @property
    def there(self) -> bool:
        """Whether an Envoy can follow the files: with one missing, it does not start."""
        return all((self._folder / name).is_file() for name in LAST_KNOWN.values())

    def begin(self) -> None:
        """Have files for a bootstrap to name, with no endpoint where no balancer has written any yet.

        Raises:
            OSError: they cannot be written.
        """
        self._write([], {cluster for cluster, name in LAST_KNOWN.items() if not (self._folder / name).is_file()})

    def update(self, endpoints: Sequence[Endpoint], now_s: float) -> None:
        """Endpoints have changed; what cannot be written is left to `retry`."""
        self._unwritten = endpoints
        self._try(self._unwritten, now_s)

    def retry(self, now_s: float) -> None:
        if self._unwritten is not None and now_s - self._tried_s >= _AGAIN_AFTER_S:
            self._try(self._unwritten, now_s)

    def _try(self, endpoints: Sequence[Endpoint], now_s: float) -> None:
        self._tried_s = now_s
        try:
            self._write(endpoints)
        except OSError as error:
            if not self._fails:
                logger.warning(
                    "the endpoints cannot be written into %s: %s; an Envoy whose bootstrap names this folder goes on "
                    "with older ones, or with none: make it writable, or name another folder or null in "
                    "envoy.endpoints_folder and print the bootstrap anew",
                    self._folder,
                    error.strerror or error,
                )
            self._fails = True
        else:
            self._unwritten, self._fails = None, False

    def _write(self, endpoints: Sequence[Endpoint], clusters: Collection[str] = LAST_KNOWN.keys()) -> None:
        """Each file whole and at once, by a rename, which is what Envoy watches for."""
        snapshot = _snapshot(endpoints)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for cluster in clusters:
            resource = snapshot.resources[cluster]
            response = discovery_pb2.DiscoveryResponse(
                version_info=snapshot.version, type_url=ENDPOINTS_TYPE_URL, resources=[resource]
            )
            replace_file(self._folder / LAST_KNOWN[cluster], response.SerializeToString(deterministic=True))


def _snapshot(endpoints: Iterable[Endpoint]) -> _Snapshot:
    ordered = sorted(endpoints, key=lambda endpoint: endpoint.name)
    tritons = [endpoint for endpoint in ordered if endpoint.protocol == "triton"]
    others = [endpoint for endpoint in ordered if endpoint.protocol == "openai"]
    resources = {
        GRPC_CLUSTER: _assignment(GRPC_CLUSTER, ((each, each.grpc_port) for each in tritons if each.grpc_port)),
        HTTP_CLUSTER: _assignment(HTTP_CLUSTER, ((endpoint, endpoint.http_port) for endpoint in tritons)),
        OPENAI_CLUSTER: _assignment(OPENAI_CLUSTER, ((endpoint, endpoint.http_port) for endpoint in others)),
    }
    digest = hashlib.blake2b(digest_size=8)
    for resource in resources.values():
        digest.update(resource.value)
    return _Snapshot(version=digest.hexdigest(), resources=resources)


def _assignment(cluster: str, endpoints: Iterable[tuple[Endpoint, int]]) -> any_pb2.Any:
    assignment = endpoint_pb2.ClusterLoadAssignment(cluster_name=cluster)
    locality = assignment.endpoints.add()
    for endpoint, port in endpoints:
        socket_address = address_pb2.SocketAddress(address=endpoint.address, port_value=port)
        locality.lb_endpoints.append(
            endpoint_components_pb2.LbEndpoint(
                endpoint=endpoint_components_pb2.Endpoint(
                    address=address_pb2.Address(socket_address=socket_address), hostname=endpoint.name
                ),
                health_status=cast(health_check_pb2.HealthStatus, _HEALTH_STATUS[endpoint.state]),
            )
        )
    packed = any_pb2.Any(type_url=ENDPOINTS_TYPE_URL)
    packed.value = assignment.SerializeToString(deterministic=True)
    return packed
