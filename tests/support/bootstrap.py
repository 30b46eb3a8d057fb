"""Options of Envoy's bootstrap, without a config around them."""

from __future__ import annotations

import dataclasses
from typing import Any

from balancer.bootstrap.bootstrap import BootstrapOptions

_OWN = {field.name for field in dataclasses.fields(BootstrapOptions)}


def changed(options: BootstrapOptions, **fields: Any) -> BootstrapOptions:
    """With other values of these, their own or those of their section `envoy`; nothing is checked."""
    envoy = options.envoy.model_copy(update={name: value for name, value in fields.items() if name not in _OWN})
    own = {name: value for name, value in fields.items() if name in _OWN}
    return dataclasses.replace(options, envoy=envoy, **own)


def options_of(**fields: Any) -> BootstrapOptions:
    """As `changed`, of the defaults."""
    return changed(BootstrapOptions(), **fields)
