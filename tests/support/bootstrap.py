"""Options of Envoy's bootstrap, without a config around them."""

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

from balancer.bootstrap.bootstrap import BootstrapOptions
from balancer.stack.envoyproxy import find_envoy

_OWN = {field.name for field in dataclasses.fields(BootstrapOptions)}


def changed(options: BootstrapOptions, **fields: Any) -> BootstrapOptions:
    """With other values of these, their own or those of their section `envoy`; nothing is checked."""
    envoy = options.envoy.model_copy(update={name: value for name, value in fields.items() if name not in _OWN})
    own = {name: value for name, value in fields.items() if name in _OWN}
    return dataclasses.replace(options, envoy=envoy, **own)


def options_of(**fields: Any) -> BootstrapOptions:
    """As `changed`, of the defaults."""
    return changed(BootstrapOptions(), **fields)


def check_accepted(bootstrap: Path) -> None:
    """Fail unless Envoy accepts the file, and all of it is of its current API."""
    command = [find_envoy(), "--mode", "validate", "--config-path", str(bootstrap)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "deprecated" not in result.stderr
