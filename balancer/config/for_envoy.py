"""What Envoy's bootstrap is printed from, as the config's sections say."""

import logging

from balancer.bootstrap.bootstrap import BootstrapOptions
from balancer.bootstrap.native import Kept, NativeOptions
from balancer.bootstrap.proxy import FleetOptions
from balancer.config.config import Config
from balancer.config.listen import rest_beside
from balancer.config.sections import ModelSection
from balancer.extproc.endpoints import LastKnown
from balancer.extproc.kserve import HeaderNames
from balancer.files.schema import reachable
from balancer.kernel.compiled import library as kernel
from balancer.native import envoy_module as module

logger = logging.getLogger(__name__)


def bootstrap_options(config: Config) -> BootstrapOptions:
    return BootstrapOptions(
        envoy=config.envoy,
        balancers=config.envoy.balancers or _balancers(config),
        tenant_header=config.requests.tenant_header or HeaderNames().tenant or "",
        names_principals=bool(config.fleet.control.callers),
        native=_native(config),
        fleet=_fleet(config),
        kept=_kept(config),
    )


def _fleet(config: Config) -> FleetOptions | None:
    if config.listen.fleet_at is None:
        return None
    own = {config.listen.fleet_addresses(process) for process in range(config.processes)}
    pairs = [rest_beside(address) for address in config.envoy.fleet] or sorted(filter(None, own))
    grpc, rest = zip(*pairs, strict=True)
    return FleetOptions(
        tuple(map(reachable, grpc)), tuple(map(reachable, rest)), changes=bool(config.fleet.control.callers)
    )


def _native(config: Config) -> NativeOptions | None:
    folder = config.shared_folder
    if folder is None:
        return None
    if not module.PATH.exists():
        logger.warning("envoy.frontend: the balancer will be asked, as there is no module; %s", module.BUILD)
        return None
    endpoints = config.endpoints_folder
    return NativeOptions(
        module.PATH, kernel.PATH, folder, endpoints if endpoints and LastKnown(endpoints).there else None
    )


def _balancers(config: Config) -> tuple[str, ...]:
    """Where this machine's Envoy reaches each process: an outcome must get back to the one that picked."""
    return tuple(reachable(config.listen.envoy_addresses(process)[-1]) for process in range(config.processes))


def _kept(config: Config) -> Kept:
    """What the config promises that only a balancer keeps, so that Envoy refuses it while none answers."""
    picked = {name: why for name, row in config.models.items() if (why := _kept_by_picks(row))}
    forwarded = {name: "ids that are executed once" for name, row in config.models.items() if row.proxy.once_s}
    names = (*config.proxy.cascades, *config.proxy.confidence_cascades)
    forwarded |= dict.fromkeys(names, "a name that several models serve")
    return Kept(tuple(picked.items()), tuple(forwarded.items()), _kept_of_all(config))


def _kept_by_picks(row: ModelSection) -> str:
    if row.versions or row.split is not None:
        return "the versions of this model"
    return "the devices of this model" if row.devices else ""


def _kept_of_all(config: Config) -> str:
    limits, tenants = config.limits, config.proxy.tenants
    if any((limits.max_pending_per_worker, limits.sheddable_max_pending_per_worker, limits.shed_late)):
        return "limits"
    return "limits of tenants" if tenants.limits_anybody else ""
