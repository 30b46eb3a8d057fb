"""What of a config about forwarding does nothing, or less than it seems to, and what ends at this gateway."""

from collections.abc import Iterator, Mapping

from balancer.config.config import Config
from balancer.files.schema import close_to, shown
from balancer.proxy.settings import ModelProxySection, TenantsSection

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
            "listen.fleet: is not set, so REST is not forwarded, only gRPC is; set it, such as 127.0.0.1:9200, and "
            "print the bootstrap anew (balancer up sets it itself)"
        )


def _of_one_gateway(config: Config) -> Iterator[str]:
    """Promises that end at this gateway, where its workers are found as other gateways find them."""
    if config.discovery.kubernetes is None and config.discovery.dns is None:
        return
    for name, model in config.models.items():
        if model.proxy.once_s and forwards(config, name):
            yield (
                f"models.{name}.proxy.once_s: a request id is known to the gateway that got it and to no other; where "
                "several gateways serve, run one replica, or have clients send again over the connection that they used"
            )
