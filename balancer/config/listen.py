"""Sections `listen` and `tls`: where the balancer listens, and who may connect there. Fields are documented by the text
under them, as in `sections`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from balancer.balancer_tls import BalancerTls
from balancer.files.schema import (
    UNIX,
    ConfigFile,
    StrictModel,
    field_error,
    is_local,
    is_unix,
    join_address,
    split_address,
)

WORKER = "{worker}"
"""In a subject alternative name: the worker's name."""
_MAX_SOCKET_PATH_BYTES = 100
"""Linux has room for 107; `.i` is appended for process i."""


def _socket_or_address(value: str) -> str:
    if not is_unix(value):
        split_address(value)
        return value
    path = value.removeprefix(UNIX)
    if not path.startswith("/") or path.endswith("/") or len(path.encode()) > _MAX_SOCKET_PATH_BYTES:
        rule = f"write unix:/ and an absolute path of {_MAX_SOCKET_PATH_BYTES} bytes at most"
        raise ValueError(f"{rule}, such as unix:/run/balancer/envoy.sock")
    return value


SocketAddress = Annotated[str, AfterValidator(_socket_or_address)]
"""`host:port`, or `unix:/path`."""


AUTO = "auto"
_FLEET_ABOVE = 200
"""By how much the port of `listen.fleet` is above that of `listen.envoy`, where the config names none."""
FleetAddress = Annotated[str, AfterValidator(lambda value: value if value == AUTO else _socket_or_address(value))]


def _host_and_port(value: str) -> str:
    split_address(value)
    return value


class ListenSection(StrictModel):
    """Where the balancer listens, by kind of peer. Port 0 takes any free one, with one process."""

    envoy: SocketAddress = "127.0.0.1:9002"
    """For Envoy. `host:port`: all processes share the port, and process i has this port + 1 + i for itself.
    `unix:/path`: process i has `/path.i`."""
    gateways: Annotated[str, AfterValidator(_host_and_port)] | None = None
    """For other gateways, by the Endpoint Picker Protocol. All processes share the port."""
    health: Annotated[str, AfterValidator(_host_and_port)] | None = None
    """For probes: gRPC's health service in plain text. All processes share the port."""
    fleet: FleetAddress | None = AUTO
    """For Envoy: calls about the fleet, and what REST infers with `envoy.frontend: proxy`. `host:port`: gRPC there,
    HTTP at the next port. `unix:/path`: `/path.i` and `/path.i.rest`. `auto`: beside `listen.envoy` (port + 200, or
    `.fleet`); nowhere with `listen.gateways`, or Envoy on another machine. null: workers answer what they can."""
    reports: SocketAddress = "127.0.0.1:9102"
    """For agents: reports. Process i has this port + i, or `unix:/path.i`."""
    admin: Annotated[str, AfterValidator(_host_and_port)] = "127.0.0.1:8090"
    """For people and Prometheus: HTTP pages, of process i at this port + i."""

    _fleet_at: str | None = PrivateAttr(None)

    @property
    def fleet_at(self) -> str | None:
        """Where calls about the fleet are answered; None: nowhere."""
        return self._fleet_at if self.fleet == AUTO else self.fleet

    def resolve(self, *, on_this_machine: bool) -> None:
        """Find out what `auto` is; `on_this_machine`: Envoy is."""
        if self.gateways is not None or not on_this_machine:
            return
        if is_unix(self.envoy):
            self._fleet_at = f"{self.envoy}.fleet"
            return
        host, port = split_address(self.envoy)
        local = host if is_local(self.envoy) else "127.0.0.1"
        away = _FLEET_ABOVE if port + _FLEET_ABOVE < 65535 else -_FLEET_ABOVE
        self._fleet_at = join_address(local, port + away if port else 0)

    @model_validator(mode="before")
    @classmethod
    def _one_for_each(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "grpc" in data:
            rule = "there is no one port for all; write listen.envoy for Envoy and listen.reports for agents"
            raise field_error(("grpc",), data["grpc"], rule)
        return data

    def envoy_addresses(self, process: int) -> tuple[str, ...]:
        """Where process number `process` (from 0) listens for Envoy; its own address is the last."""
        if is_unix(self.envoy):
            return (f"{self.envoy}.{process}",)
        host, port = split_address(self.envoy)
        return (self.envoy, join_address(host, port + 1 + process)) if port else (self.envoy,)

    def fleet_addresses(self, process: int) -> tuple[str, str] | None:
        """Where process number `process` (from 0) answers calls about the fleet: gRPC and HTTP; None: nowhere."""
        if (fleet := self.fleet_at) is None:
            return None
        return rest_beside(f"{fleet}.{process}" if is_unix(fleet) else fleet)

    def reports_address(self, process: int) -> str:
        """Where process number `process` (from 0) listens for agents."""
        return f"{self.reports}.{process}" if is_unix(self.reports) else _shifted(self.reports, process)

    def admin_address(self, process: int) -> str:
        """Where process number `process` (from 0) serves its pages."""
        return _shifted(self.admin, process)

    def check(self, processes: int, envoys: Mapping[str, str], *, one_machine: bool) -> None:
        """PydanticCustomError, of a section above this one, where `processes` processes do not fit, or two listeners
        need one port. `envoys`: where Envoy listens, `host:port` by field; `one_machine`: on that of the balancer."""
        named = {**dict(self), "fleet": self.fleet_at}
        addresses: dict[str, str] = {
            f"listen.{name}": address for name, address in named.items() if address is not None
        }
        count = {"listen.envoy": processes + 1, "listen.gateways": 1, "listen.health": 1, "listen.fleet": 2}
        ports = {
            field: _Ports(field, *split_address(address), count.get(field, processes))
            for field, address in addresses.items()
            if not is_unix(address)
        }
        if processes > 1 and any(not each.first for each in ports.values()):
            raise field_error(("processes",), processes, "must be 1 where a port of listen is 0; name the ports")
        if any(each.first + each.count > 65536 for each in ports.values()):
            rule = "needs one port for each process above those that listen names; name lower ones"
            raise field_error(("processes",), processes, rule)
        sockets: dict[str, str] = {}
        for field, address in addresses.items():
            if is_unix(address) and sockets.setdefault(address, field) != field:
                raise field_error(
                    tuple(field.split(".")), address, f"is the socket of {sockets[address]}; name another"
                )
        ports |= {field: _Ports(field, *split_address(address), 1) for field, address in envoys.items()}
        taken: list[_Ports] = []
        for field, its in ports.items():
            for other in taken:
                if (one_machine or its.of == other.of) and (rule := its.clash(other)):
                    raise field_error(tuple(field.split(".")), {**addresses, **envoys}[field], rule)
            taken.append(its)


@dataclass(frozen=True, slots=True)
class _Ports:
    """What a field takes: `count` ports from `first` on; first 0: any free one."""

    field: str
    host: str
    first: int
    count: int

    @property
    def of(self) -> str:
        return self.field.partition(".")[0]

    def clash(self, other: _Ports) -> str:
        """Why not both can be taken, with the remedy; empty: they can."""
        shared = max(self.first, other.first)
        if not (self.first and other.first) or shared >= min(self.first + self.count, other.first + other.count):
            return ""
        if not _overlap(self.host, other.host):
            return ""
        takes = f"takes {other.first} to {other.first + other.count - 1}" if other.count > 1 else "takes it"
        rule = f"port {shared} is needed for {other.field}, which {takes}; move it"
        return rule if self.of == other.of else f"{rule}, or list envoy.balancers where Envoy is on another machine"


def rest_beside(grpc: str) -> tuple[str, str]:
    """The address of the fleet's calls by gRPC, and that of its HTTP."""
    return grpc, f"{grpc}.rest" if is_unix(grpc) else _shifted(grpc, 1)


def _shifted(address: str, by: int) -> str:
    host, port = split_address(address)
    return join_address(host, port + by) if port else address


def _overlap(one: str, other: str) -> bool:
    """Whether a port at one host may be taken by the other: `::` stands for IPv4 too, as Linux has it by default."""
    hosts = ["127.0.0.1" if host == "localhost" else host for host in (one, other)]
    for wide, host in (hosts, hosts[::-1]):
        if wide == "::" or (wide == "0.0.0.0" and ":" not in host):
            return True
    return hosts[0] == hosts[1]


class _ServerTls(StrictModel):
    cert_file: ConfigFile
    """Certificate chain of the server."""
    key_file: ConfigFile
    """Its private key."""


class _MutualTls(_ServerTls):
    client_ca_file: ConfigFile
    """Authority that clients' certificates must come from."""


class EnvoyListenerTls(_MutualTls):
    """Mutual TLS of `listen.envoy`."""

    client_san: Annotated[str, Field(min_length=1)] = "spiffe://balancer/envoy"
    """Name (URI or DNS) that Envoy's certificate must have."""


class GatewaysListenerTls(StrictModel):
    """TLS of `listen.gateways`, by files or `self_signed`."""

    self_signed: bool = False
    """Whether to make a certificate at each start, for gateways that insist on TLS and check no name. It keeps nobody
    out."""
    cert_file: ConfigFile | None = None
    """Certificate chain of the server."""
    key_file: ConfigFile | None = None
    """Its private key."""
    client_ca_file: ConfigFile | None = None
    """Authority that clients' certificates must come from; null: they need none."""
    client_san: Annotated[str, Field(min_length=1)] = "spiffe://balancer/gateway"
    """Name that a client's certificate must have, where it needs one."""

    @model_validator(mode="after")
    def _one_certificate(self) -> Self:
        files = self.cert_file is not None and self.key_file is not None
        if self.self_signed == files or (self.cert_file is None) != (self.key_file is None):
            rule = "is one of two: set self_signed: true, or both cert_file and key_file"
            raise field_error(("self_signed",), self.self_signed, rule)
        return self


class ReportsListenerTls(_MutualTls):
    """Mutual TLS of `listen.reports`."""

    client_san: str = f"spiffe://balancer/agent/{WORKER}"
    """Name that an agent's certificate must have, with `{worker}` for the worker that it may speak for."""

    peer_san: Annotated[str, Field(min_length=1)] = "spiffe://balancer/peer"
    """Name that the certificate of another balancer must have, which tells of its picks."""

    relay_san: Annotated[str, Field(min_length=1)] = "spiffe://balancer/relay"
    """Name that the certificate of a relay must have, which speaks for any worker."""

    @field_validator("client_san")
    @classmethod
    def _says_who(cls, name: str) -> str:
        if name.count(WORKER) != 1:
            raise ValueError(
                f"must have {WORKER} in it, once: an agent speaks for the worker that its certificate names"
            )
        return name


class PeersTls(StrictModel):
    """TLS towards the peers: what is trusted and shown there."""

    ca_file: ConfigFile
    """Authority that their certificates must come from."""
    server_name: Annotated[str, Field(min_length=1)]
    """Name in their certificates."""
    cert_file: ConfigFile
    """Certificate chain of this balancer, with the name `tls.reports.peer_san`."""
    key_file: ConfigFile
    """Its private key."""

    def trust(self) -> BalancerTls:
        return BalancerTls(Path(self.ca_file), self.server_name, Path(self.cert_file), Path(self.key_file))


class PeersSection(StrictModel):
    """The other balancers of the fleet. Each tells the others of its picks, and so decides nearly as one balancer would
    that makes them all. The processes of one machine do so unasked."""

    addresses: tuple[SocketAddress, ...] = ()
    """Where the others have `listen.reports`, milliseconds away at most: farther ones tell too late to be of use. A
    name stands for all its addresses, and this balancer's own may be among them."""
    tls: PeersTls | None = None
    """Set it where `tls.reports` is; the processes of one machine need it then too."""


class AdminListenerTls(_ServerTls):
    """TLS of `listen.admin`."""

    client_ca_file: ConfigFile | None = None
    """Authority that clients' certificates must come from; null: they need none, but `admin.token_file` must be set."""
    client_san: Annotated[str, Field(min_length=1)] = "spiffe://balancer/admin"
    """Name that a client's certificate must have."""


class TlsSection(StrictModel):
    """TLS of each listener, and the role that its clients' certificates must have; null: plain text. PEM files,
    relative to the config file, and followed."""

    envoy: EnvoyListenerTls | None = None
    """Of `listen.envoy`; Envoy's end is `envoy.balancer_tls`."""
    gateways: GatewaysListenerTls | None = None
    """Of `listen.gateways`."""
    reports: ReportsListenerTls | None = None
    """Of `listen.reports`; the agents' end are their options `--tls-*`."""
    admin: AdminListenerTls | None = None
    """Of `listen.admin`."""

    @model_validator(mode="before")
    @classmethod
    def _by_listener(cls, data: Any) -> Any:
        flat = [
            name for name in ("cert_file", "key_file", "client_ca_file") if isinstance(data, Mapping) and name in data
        ]
        if flat:
            rule = (
                "belongs to one listener; write tls: {envoy: {cert_file: ..., key_file: ..., client_ca_file: ...}}, "
                "and the same for reports and admin"
            )
            raise field_error((flat[0],), data[flat[0]], rule)
        return data
