"""`balancer serve`: the balancer alone."""

import json
from pathlib import Path
from typing import Any

import click

from balancer.files.yaml_document import ConfigError, read_value
from balancer.server.serve import serve as run

_EPILOG = """\b
Examples:
  balancer serve --config balancer.yaml
  balancer serve --config balancer.yaml --processes 2
  balancer serve --config balancer.yaml --set listen.admin=0.0.0.0:8090
  curl 127.0.0.1:8090/ready                  200 once picks can be made

The config file is followed: edit it, and what it says is in force at once. Ctrl-C or SIGTERM stops.
"""


_EXAMPLE = "listen.admin=127.0.0.1:8091"


def _fields(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} has no '='; write FIELD=VALUE, such as {_EXAMPLE}")
        if not all(name.split(".")):
            raise click.BadParameter(f"{text!r} names no field before '='; write FIELD=VALUE, such as {_EXAMPLE}")
        try:
            fields[name] = read_value(value, name)
        except ConfigError as error:
            (problem,) = error.problems
            quoted = f"{name}='{json.dumps(value)}'"
            raise click.BadParameter(f"{text!r}: {problem.message}; or quote what is text, as in {quoted}") from error
    return fields


@click.command(epilog=_EPILOG)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The config file; docs/config.md explains its fields.",
)
@click.option(
    "--processes", type=click.IntRange(1, 64), help="Balancer processes, a core each [default: what the config says]."
)
@click.option(
    "--set",
    "fields",
    metavar="FIELD=VALUE",
    multiple=True,
    callback=_fields,
    help="Set a field over the file, now and after every edit of it. Repeatable; the value is YAML.",
)
def serve(config_path: Path, processes: int | None, fields: dict[str, Any]) -> None:
    """Run the balancer: picks for Envoy, endpoints to Envoy, reports from agents, admin HTTP."""
    run(config_path, fields if processes is None else fields | {"processes": processes})
