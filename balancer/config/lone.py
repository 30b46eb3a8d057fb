"""What of a config holds for one gateway alone, where several may serve the same workers."""

from __future__ import annotations

from balancer.config.config import Config
from balancer.config.forwarding import forwards


def warnings(config: Config) -> list[str]:
    """One text for each promise that ends at this gateway, where its workers are found as other gateways find them."""
    found_by_others = config.discovery.kubernetes is not None or config.discovery.dns is not None
    if not found_by_others:
        return []
    return [
        f"models.{name}.proxy.once_s: a request id is known to the gateway that got it and to no other; where several "
        "gateways serve, run one replica, or have clients send again over the connection that they used"
        for name, model in config.models.items()
        if model.proxy.once_s and forwards(config, name)
    ]
