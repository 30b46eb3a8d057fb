"""`balancer check`: is a config file good, and what does it amount to?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from balancer.config import config as configs
from balancer.operate.preflight import check_files
from balancer.security import exposure

_EPILOG = """\b
Examples:
  balancer check balancer.yaml
  balancer check balancer.yaml > /dev/null && kubectl apply ...
  echo '{}' | balancer check -               all defaults

Every field is explained in docs/config.md.
"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
def check(file: Path) -> None:
    """Validate the config FILE (- for stdin) and print it with all defaults filled in.

    Exits with 1 where it does not fit, and names each field, its value and the remedy on stderr. Files that it names
    are opened as `balancer serve` would: certificates and keys, profiles, weights, the folder of the decision log, and
    the list of workers where there is one; so are the certificates that Envoy would read. Certificates that expire soon
    and listeners that are open to strangers are warned of.
    """
    config = configs.parse(sys.stdin.buffer.read(), "stdin") if str(file) == "-" else configs.load(file)
    for note in check_files(config, file):
        click.echo(note, err=True)
    for warning in exposure.warnings(config):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"# {file}, hash {config.hash}")
    click.echo(configs.effective_yaml(config), nl=False)
