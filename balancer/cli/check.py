"""`balancer check`: is a config file good, what does it amount to, and what would it change at a balancer?"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from balancer.cli.admin_client import AnswerError, Balancers, admin_options, balancers_of
from balancer.config import config as configs
from balancer.config import frontend
from balancer.config.changes import changes
from balancer.config.config import Config
from balancer.config.overrides import Overrides
from balancer.files.yaml_document import ConfigError
from balancer.server.preflight import check_files
from balancer.server.security import listeners

CHANGES, RESTARTS = 3, 4
"""Exit statuses of `--against`; 1 and 2 are those of errors."""

_MOST_FIELDS, _MOST_DEPTH, _MOST_OVERRIDES, _MOST_CHARACTERS = 100_000, 16, 256, 1024
"""Of what is believed to be the config of a balancer: fields, sections in sections, fields of its command line, and the
characters of a name."""

_EPILOG = """\b
Examples:
  balancer check balancer.yaml
  balancer check balancer.yaml > /dev/null && kubectl apply ...
  echo '{}' | balancer check -               all defaults
  balancer check balancer.yaml --against 127.0.0.1:8090

Every field is explained in docs/config.md.
"""


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@admin_options(
    "--against",
    "Print what FILE would change of the config in force at the balancer whose listen.admin is there.",
    default=None,
)
def check(file: Path, addresses: str | None, **how: Any) -> None:
    """Validate the config FILE (- for stdin) and print it with all defaults filled in.

    Exits with 1 where it does not fit, and names each field, its value and the remedy on stderr. Files that it names
    are opened as `balancer serve` would: certificates and keys, profiles, weights, the folder of the decision log, and
    the list of workers where there is one; so are the certificates that Envoy would read. Warned of are certificates
    that expire soon, listeners that are open to strangers, what one gateway cannot promise for several, and what is
    said of forwarding in vain.

    With --against, prints what it would change in place of the whole, a line a field, and exits with 0 where that is
    nothing, with 3 where all of it is taken over at once, with 4 where some of it needs a restart, and with 1 where
    the balancer does not answer. What that balancer's command line sets (serve --set) stays as it is. Names of files
    are taken from the folder of FILE.
    """
    config = configs.parse(sys.stdin.buffer.read(), "stdin") if str(file) == "-" else configs.load(file)
    for note in check_files(config, file):
        click.echo(note, err=True)
    for warning in (*listeners.warnings(config), *frontend.warnings(config)):
        click.echo(f"warning: {warning}", err=True)
    if addresses is not None:
        sys.exit(_against(config, balancers_of(addresses, **how)))
    click.echo(f"# {file}, hash {config.hash}")
    for line in frontend.lines(config):
        click.echo(f"# {line}")
    click.echo(configs.effective_yaml(config), nl=False)


def _against(config: Config, balancer: Balancers) -> int:
    """Print what the config changes at a balancer; the exit status that says so."""
    in_force, overrides = _in_force(balancer)
    new = overrides(config)
    found = changes(in_force, new.model_dump(mode="json"), new.model_dump(mode="json", exclude_defaults=True))
    for change in found:
        click.echo(change.words)
    if not found:
        click.echo("nothing changes")
        return 0
    return RESTARTS if any(change.restart for change in found) else CHANGES


def _in_force(balancer: Balancers) -> tuple[dict[str, Any], Overrides]:
    """The config in force there, and what its command line sets over every file."""
    try:
        shown = json.loads(asyncio.run(balancer.get("/config")))
        in_force, values = shown["config"], shown["overrides"]
        if not _is_bounded(in_force, _MOST_FIELDS) or not _is_bounded(values, _MOST_OVERRIDES):
            raise TypeError
        return in_force, Overrides(values)
    except (ValueError, KeyError, TypeError, RecursionError, ConfigError) as error:
        raise AnswerError(f"{balancer.addresses[0]}: /config is not that of a balancer of this version") from error


def _is_bounded(section: Any, most_fields: int) -> bool:
    """Whether it is a section no larger than that of a balancer: what answers may be anything."""
    if not isinstance(section, dict):
        return False
    fields, below = 0, [(section, 0)]
    while below:
        one, depth = below.pop()
        fields += len(one)
        if fields > most_fields or depth > _MOST_DEPTH or any(len(name) > _MOST_CHARACTERS for name in one):
            return False
        below += [(value, depth + 1) for value in one.values() if isinstance(value, dict)]
    return True
