"""Which front end `envoy.frontend: auto` is, and why; which policies Envoy can decide by."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from balancer.files.schema import shown
from balancer.files.yaml_document import ConfigError, Problem
from balancer.kernel.compiled.library import Library, LibraryError
from balancer.kernel.policy_answers import is_shipped
from balancer.native.envoy_module import Module, ModuleError
from policies.traced import traced

if TYPE_CHECKING:
    from balancer.config.config import Config
    from balancer.config.sections import PolicySection
import logging
from collections.abc import Mapping

from balancer.bootstrap.bootstrap import BootstrapOptions
from balancer.bootstrap.native import Kept, NativeOptions
from balancer.bootstrap.proxy import FleetOptions
from balancer.config.listen import rest_beside
from balancer.config.sections import ModelSection
from balancer.extproc.endpoints import LastKnown
from balancer.extproc.kserve import HeaderNames
from balancer.files.schema import close_to, reachable
from balancer.kernel.compiled import library as kernel
from balancer.native import envoy_module as module
from balancer.proxy.settings import ModelProxySection, TenantsSection

AUTO: Literal["auto"] = "auto"
Frontend = Literal["pick", "native", "proxy"]
_RULE = "must be a policy that can be traced while Envoy decides by itself (envoy.frontend: native)"


def frontend_of(config: Config) -> tuple[Frontend, str]:
    """The front end, and why it is that one."""
    if config.envoy.frontend != AUTO:
        return config.envoy.frontend, "as envoy.frontend says"
    if why := _not_native(config):
        return "pick", why
    return "native", "one process, Envoy on its machine, kernel and module there"


def _not_native(config: Config) -> str:
    for field, name, why in of_the_balancer(config):
        return f"{field} is {name}, and {why}"
    if config.processes != 1:
        return f"processes is {config.processes}, and Envoy decides by the state of one"
    if config.listen.gateways is not None:
        return "listen.gateways is set, for gateways that ask"
    if not config.envoy.on_this_machine:
        return "Envoy is on another machine, as envoy.balancers says"
    for field, name, reason in untraceable(config):
        return f"{field} is {shown(name)}, which Envoy cannot decide by, since {reason}"
    return _missing()


def of_the_balancer(config: Config) -> Iterator[tuple[str, str, str]]:
    """What Envoy cannot do by itself: field, its value, and why."""
    if config.holding.models:
        yield "holding.models", ", ".join(config.holding.models), "the module lets nobody wait"
    if config.requests.tenant_of_user:
        yield "requests.tenant_of_user", "true", "the module reads no user"


def third_party_policies(config: Config) -> Iterator[tuple[str, PolicySection]]:
    """The policies of the config that are not the balancer's own: field of the name, and section."""
    for field, section in {
        "policy": config.policy,
        "rollout": config.rollout,
        "shadow": config.shadow,
        "guard.baseline": config.guard.baseline,
    }.items():
        if section is not None and not is_shipped(section.built):
            yield f"{field}.name", section


def untraceable(config: Config) -> Iterator[tuple[str, str, str]]:
    """Policies that Envoy cannot decide by, as nothing compiles them: field, name, and why."""
    for field, section in third_party_policies(config):
        if reason := traced(section.built).reason:
            yield field, section.name, reason


def untraceable_rule(reason: str) -> str:
    """Why a policy is refused, and what to do."""
    return f"{_RULE}, and {reason}; make it traceable (docs/policies.md), or set envoy.frontend: pick and restart"


@functools.cache
def _missing() -> str:
    """Why this installation cannot; empty: it can."""
    try:
        Module(Library())
    except (LibraryError, ModuleError) as error:
        return str(error)
    return ""


def lines(config: Config) -> list[str]:
    """What `auto` stands for in a config, a line a field."""
    found = []
    if config.envoy.frontend == AUTO:
        frontend, why = frontend_of(config)
        found.append(f"envoy.frontend: auto is {frontend} here: {why}")
    if config.listen.fleet == AUTO:
        where = config.listen.fleet_at
        off = "nowhere: Envoy is on another machine, or listen.gateways is set"
        found.append(f"listen.fleet: auto is {where or off}")
    return found


def check_live(started: Config, new: Config, source: str) -> None:
    """ConfigError where a balancer that began with `started` cannot do what it says before a restart."""
    if new.envoy.frontend != AUTO or frontend_of(started)[0] != "native":
        return
    problems = [
        Problem(source, None, field, f"{shown(name)} {untraceable_rule(reason)}")
        for field, name, reason in untraceable(new)
    ]
    for field, _, why in of_the_balancer(new):
        message = (
            f"needs a restart: since the start Envoy decides by itself (envoy.frontend: auto), and {why}; set "
            "envoy.frontend: pick and restart, or leave it out"
        )
        problems.append(Problem(source, None, field, message))
    if problems:
        raise ConfigError(problems)


_DEFAULT = ModelProxySection()
_NO_LIMITS = TenantsSection()


def forwards(config: Config, name: str) -> bool:
    """Whether the balancer forwards requests to this model: sent to its name, or to that of a cascade that has it."""
    if config.envoy.frontend == "proxy":
        return True
    cascades = _cascades(config)
    return any(name in (each, *cascades.get(each, ())) for each in config.envoy.forwarded)


def warnings(config: Config) -> list[str]:
    """One text for each section without effect, name that nothing has, protocol that is left out, and promise that
    holds for one gateway alone."""
    return [*_without_effect(config), *_of_nothing(config), *_rest_left_out(config), *_of_one_gateway(config)]


def _cascades(config: Config) -> dict[str, tuple[str, ...]]:
    confident: Mapping[str, tuple[str, ...]] = {
        name: section.models for name, section in config.proxy.confidence_cascades.items()
    }
    return {**config.proxy.cascades, **confident}


def _without_effect(config: Config) -> Iterator[str]:
    sections = {f"models.{name}.proxy": name for name, model in config.models.items() if model.proxy != _DEFAULT}
    sections |= {f"proxy.cascades.{name}": name for name in config.proxy.cascades}
    sections |= {f"proxy.confidence_cascades.{name}": name for name in config.proxy.confidence_cascades}
    if config.proxy.tenants != _NO_LIMITS and not config.forwards:
        yield (
            "proxy.tenants: has no effect, since the balancer forwards nothing; name models in envoy.forwarded, or set "
            "envoy.frontend: proxy"
        )
    for section, name in sections.items():
        if not forwards(config, name):
            yield (
                f"{section}: has no effect, since the balancer does not forward these requests; name {shown(name)} in "
                "envoy.forwarded, or set envoy.frontend: proxy"
            )


def _of_nothing(config: Config) -> Iterator[str]:
    cascades = _cascades(config)
    known = {*config.models, *cascades, *(model for models in cascades.values() for model in models)}
    for name in config.envoy.forwarded:
        if name not in known:
            meant = close_to(name, known)
            instead = f"{meant} If not, list it" if meant else "if it is a model, list it"
            yield (
                f"envoy.forwarded: {shown(name)} is no model and no cascade of this config; {instead} under models, "
                "where models.NAME.proxy says what to do beside forwarding"
            )


def _rest_left_out(config: Config) -> Iterator[str]:
    if config.forwards and config.listen.fleet_at is None:
        yield (
            "listen.fleet: is not set, so only gRPC is forwarded, nothing by HTTP; set it, such as 127.0.0.1:9200, and "
            "print the bootstrap anew (balancer up sets it itself)"
        )


def _of_one_gateway(config: Config) -> Iterator[str]:
    """Promises that end at this gateway, where its workers are found as other gateways find them."""
    discovery = config.discovery
    if discovery.kubernetes is None and discovery.dns is None and discovery.ray is None:
        return
    for name, model in config.models.items():
        if model.proxy.once_s and forwards(config, name):
            yield (
                f"models.{name}.proxy.once_s: a request id is known to the gateway that got it and to no other; where "
                "several gateways serve, run one replica, or have clients send again over the connection that they used"
            )


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
