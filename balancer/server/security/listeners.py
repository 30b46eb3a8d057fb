"""The gRPC listeners of one process: what is served where, to whom, and within which limits."""

import os
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import grpc

from balancer.config.config import Config
from balancer.errors import OperatorError
from balancer.extproc import endpoints
from balancer.files.schema import UNIX, is_local, is_unix
from balancer.reports import collector
from balancer.server.metrics import Metrics
from balancer.server.security.certificates import Certificates, ListenerTls
from balancer.server.security.gatekeeper import GuardedServer

LIMITS = (
    # A peer that connects and says nothing, or is gone without a word.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
_ENVOY_STREAMS = 1024
"""On one connection: a stream for each pick under way."""
_SPARE_BYTES = 2**20
_GRACE_S = 0.5
_SOCKET_UMASK = 0o117
"""Sockets get mode 0660: owner and group may connect."""


_OF_ENVOY = {"fleet": "envoy"}


class AddressInUseError(OperatorError):
    def __init__(self, field: str, address: str, why: str = "") -> None:
        why = why or "something else does, or the address is not this machine's"
        super().__init__(f"{field}: cannot listen on {address}; {why}. Stop it or name another address in the config")


Services = Callable[[grpc.aio.Server], None]


class Listeners:
    """The gRPC servers `envoy`, `fleet`, `gateways`, `health` and `reports`, with their certificates; that of `admin`
    too, which is aiohttp's."""

    def __init__(self, config: Config, process: int, metrics: Metrics) -> None:
        """Reads the certificates, so it blocks.

        Raises:
            ConfigError: a certificate cannot be used; the message says which and why.
        """
        self._config = config
        self._process = process
        self._metrics = metrics
        self._servers: list[grpc.aio.Server] = []
        sections: dict[str, ListenerTls | None] = {
            name: getattr(config.tls, name) for name in type(config.tls).model_fields
        }
        self.certificates = {name: Certificates(name, tls) for name, tls in sections.items() if tls is not None}

    def role(self, listener: str) -> str | None:
        """The subject alternative name that clients of a listener must have; None: they show no certificate."""
        certificates = self.certificates.get(listener)
        return None if certificates is None else certificates.role

    async def start(self, **services: Iterable[Services]) -> None:
        """Listen; each adds services to the listener of its name, where the config has one, and `peers` and `relays` to
        that of reports.

        Raises:
            AddressInUseError: naming the field of the config, the address and the remedy.
        """
        config = self._config
        # Several processes share the port; a single one wants to be told when somebody else has it.
        shared = (("grpc.so_reuseport", int(config.processes > 1)),)
        # A request's fields reach us with its headers. One that is too large for us would be answered by Envoy as if
        # there were no balancer, so whatever Envoy may send is taken, and refused by the gate where it is too long.
        envoy_bytes = int(config.envoy.request_buffer_limit_bytes) + _SPARE_BYTES
        envoy_options = (
            *endpoints.SERVER_OPTIONS,
            ("grpc.max_concurrent_streams", _ENVOY_STREAMS),
            ("grpc.max_receive_message_length", min(envoy_bytes, 2**31 - 1)),
            *shared,
        )
        fleet_options = (*endpoints.SERVER_OPTIONS, ("grpc.max_concurrent_streams", _ENVOY_STREAMS), *shared)
        reports_options = (
            *collector.SERVER_OPTIONS,
            *collector.OWN_SERVER_OPTIONS,
            ("grpc.so_reuseport", 0),
        )
        listen = config.listen
        await self._open("envoy", listen.envoy_addresses(self._process), envoy_options, services)
        await self._open("gateways", (listen.gateways,), envoy_options, services)
        await self._open("health", (listen.health,), shared, services)
        await self._open("fleet", (listen.fleet_addresses(self._process) or (None,))[:1], fleet_options, services)
        await self._open("reports", (config.listen.reports_address(self._process),), reports_options, services)

    async def _open(
        self,
        name: str,
        addresses: Iterable[str | None],
        options: Iterable[tuple[str, int]],
        services: Mapping[str, Iterable[Services]],
    ) -> None:
        named = [address for address in addresses if address is not None]
        if not named:
            return
        certificates = self.certificates.get(_OF_ENVOY.get(name, name))
        server = grpc.aio.server(options=[*LIMITS, *options])
        roles = {name: None if certificates is None else certificates.role}
        if name == "reports":
            tls = self._config.tls.reports
            roles["peers"] = None if tls is None else tls.peer_san
            roles["relays"] = None if tls is None else tls.relay_san
        for services_of, role in roles.items():
            guarded = GuardedServer(server, self._metrics, role)
            for add_to in services[services_of]:
                add_to(guarded)  # type: ignore[arg-type]  # it has the two methods that services register with
        for address in named:
            bind(server, f"listen.{name}", address, certificates)
        await server.start()
        self._servers.append(server)

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(grace=_GRACE_S)


def bind(server: grpc.aio.Server, field: str, address: str, certificates: Certificates | None) -> None:
    """Have the server listen at `host:port` or `unix:/path`.

    Raises:
        AddressInUseError: naming `field`, the address and the remedy.
    """
    if is_unix(address):
        _make_way(field, address)
    umask = os.umask(_SOCKET_UMASK) if is_unix(address) else None
    try:
        if certificates is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, certificates.credentials())
    except RuntimeError as error:
        raise AddressInUseError(field, address) from error
    finally:
        if umask is not None:
            os.umask(umask)


def _make_way(field: str, address: str) -> None:
    """Remove the socket that an ended process left; gRPC would take one over that somebody still listens on."""
    path = Path(address.removeprefix(UNIX))
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise AddressInUseError(field, address, error.strerror or str(error)) from error
    if not stat.S_ISSOCK(mode):
        raise AddressInUseError(field, address, "a file of another kind is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise AddressInUseError(field, address, error.strerror or str(error)) from error
    raise AddressInUseError(field, address, "another process listens there")


_HARM = {
    "envoy": "read the fleet, take picks, and forge outcomes so that a worker seems broken",
    "fleet": "name itself any client, and so change workers where fleet.control lets one",
    "gateways": "see which workers there are, and take picks that count as in flight",
    "reports": "report in any worker's name, and so draw requests to it or away from it",
    "admin": "read the fleet, the config and the metrics, though drain no worker",
}


def warnings(config: Config) -> list[str]:
    """One text for each listener that strangers can reach: which, what they could do, and the remedy."""
    found = []
    for name, harm in _HARM.items():
        address = config.listen.fleet_at if name == "fleet" else getattr(config.listen, name)
        section = "envoy" if name == "fleet" else name
        tls = getattr(config.tls, section)
        if address is None or is_local(address) or (tls is not None and tls.client_ca_file is not None):
            continue
        if name == "admin" and config.admin.token_file is not None:
            continue
        other = "admin.token_file, or listen on 127.0.0.1" if name == "admin" else "listen on 127.0.0.1 or unix:"
        found.append(
            f"listen.{name}: {address} is open to other machines without client certificates: whoever reaches it can "
            f"{harm}; set tls.{section} with a client_ca_file, or {other}"
        )
    if not is_local(config.envoy.admin):
        found.append(
            f"envoy.admin: {config.envoy.admin} is open to other machines: whoever reaches it can stop and reconfigure "
            "Envoy; listen on 127.0.0.1"
        )
    return found
