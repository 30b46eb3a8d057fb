"""What Envoy's bootstrap is printed from, as the config's sections say."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from balancer.config.listen import is_unix, rest_beside
from balancer.config.sections import EnvoyTlsSection
from balancer.files.schema import join_address, reachable, split_address
from balancer.front import module
from balancer.gateway.bootstrap import BootstrapOptions
from balancer.gateway.bootstrap_access import Access
from balancer.gateway.bootstrap_fleet import FleetOptions
from balancer.gateway.bootstrap_native import NativeOptions
from balancer.gateway.bootstrap_tls import ListenerTls
from balancer.gateway.kserve import HeaderNames
from balancer.native import library as kernel

if TYPE_CHECKING:
    from balancer.config.config import Config

logger = logging.getLogger(__name__)

OptionsT_co = TypeVar("OptionsT_co", covariant=True)


class _Convertible(Protocol[OptionsT_co]):
    def options(self) -> OptionsT_co: ...


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _listener_tls(tls: EnvoyTlsSection | None) -> ListenerTls | None:
    if tls is None:
        return None
    return ListenerTls(Path(tls.cert_file), Path(tls.key_file), _path(tls.client_ca_file))


def _options(section: _Convertible[OptionsT_co] | None) -> OptionsT_co | None:
    return None if section is None else section.options()


def _reachable(address: str) -> str:
    if is_unix(address):
        return address
    host, port = split_address(address)
    return join_address(reachable(host), port)


def bootstrap_options(config: Config) -> BootstrapOptions:
    """What Envoy's bootstrap is printed from."""
    listener_address, listener_port = split_address(config.envoy.listen)
    admin_address, admin_port = split_address(config.envoy.admin)
    return BootstrapOptions(
        listener_address=listener_address,
        listener_port=listener_port,
        admin_address=admin_address,
        admin_port=admin_port,
        balancers=config.envoy.balancers or _balancers(config),
        node_id=config.envoy.node_id,
        message_timeout_s=config.envoy.message_timeout_s,
        longest_answer_s=config.holding.longest_answer_s,
        health_timeout_s=config.envoy.health_timeout_s,
        flush_interval_s=config.envoy.access_log_flush_s,
        request_buffer_limit_bytes=int(config.envoy.request_buffer_limit_bytes),
        request_timeout_s=config.envoy.request_timeout_s,
        max_connections=config.envoy.max_connections,
        max_heap_bytes=int(config.envoy.max_heap_bytes),
        access_log=config.envoy.access_log or "",
        traces=_options(config.envoy.traces),
        listener_tls=_listener_tls(config.envoy.tls),
        balancer_tls=_options(config.envoy.balancer_tls),
        triton_tls=None if config.envoy.triton_tls is None else config.envoy.triton_tls.triton_options(),
        audit_log=_options(config.envoy.audit_log),
        access=_access(config),
        native=_native(config),
        fleet=_fleet(config),
        proxy=config.envoy.frontend == "proxy",
        forwarded=config.envoy.forwarded,
    )


def _fleet(config: Config) -> FleetOptions | None:
    if config.listen.fleet is None:
        return None
    own = {config.listen.fleet_addresses(process) for process in range(config.processes)}
    pairs = [rest_beside(address) for address in config.envoy.fleet] or sorted(filter(None, own))
    grpc, rest = zip(*pairs, strict=True)
    return FleetOptions(
        tuple(map(_reachable, grpc)), tuple(map(_reachable, rest)), changes=bool(config.fleet.control.callers)
    )


def _access(config: Config) -> Access:
    envoy = config.envoy
    return Access(
        jwt=_options(envoy.jwt),
        api_keys=_options(envoy.api_keys),
        client_certificates=envoy.tls is not None and envoy.tls.client_ca_file is not None,
        health_is_open=envoy.open_health,
        local_limit=_options(envoy.local_rate_limit),
        global_limit=_options(envoy.rate_limit),
        tenant_header=config.requests.tenant_header or HeaderNames().tenant or "",
        named=envoy.audit_log is not None or bool(config.fleet.control.callers),
    )


def _native(config: Config) -> NativeOptions | None:
    folder = config.shared_folder
    if folder is None:
        return None
    if not module.PATH.exists():
        logger.warning("envoy.frontend: the balancer will be asked, as there is no module; %s", module.BUILD)
        return None
    return NativeOptions(module.PATH, kernel.PATH, folder)


def _balancers(config: Config) -> tuple[str, ...]:
    """Where this machine's Envoy reaches each process: an outcome must get back to the one that picked."""
    return tuple(_reachable(config.own_envoy_address(process)) for process in range(config.processes))
