"""`balancer envoy`: Envoy's bootstrap for a config."""

from __future__ import annotations

from pathlib import Path

import click

from balancer import config as configs
from balancer.envoy_bootstrap import render

_EPILOG = """\b
Examples:
  balancer envoy balancer.yaml > envoy.yaml
  envoy -c envoy.yaml

What each part of it is for is explained in envoy/README.md and the comments of envoy/bootstrap.yaml.
"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
def envoy(file: Path | None) -> None:
    """Print the Envoy bootstrap for the config FILE; without one, for the defaults.

    Listener, TLS, timeouts and the balancer's addresses come from the config's sections envoy, listen and processes.
    """
    config = configs.load(file) if file is not None else configs.Config()
    click.echo(render(config.bootstrap_options()), nl=False)
