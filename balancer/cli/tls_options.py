"""Options of commands for what goes by TLS."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from balancer.balancer_tls import BalancerTls

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
Command = TypeVar("Command", bound=Callable[..., Any])


def tls_options(
    given: str,
    prefix: str = "--tls",
    certificate: str = "the balancers' certificates",
    asking: str = "the balancers ask",
) -> Callable[[Command], Command]:
    """Add them to a command; `given`: what goes by TLS where there is an authority."""
    return together(
        click.option(f"{prefix}-ca", type=FILE, help=f"What signed {certificate}; given, {given} by TLS."),
        click.option(f"{prefix}-name", metavar="NAME", help=f"Name in {certificate}; with {prefix}-ca."),
        click.option(f"{prefix}-cert", type=FILE, help=f"Certificate to show, where {asking} for one."),
        click.option(f"{prefix}-key", type=FILE, help="Its private key."),
    )


def taken_tls(options: dict[str, Any], prefix: str = "--tls") -> BalancerTls | None:
    """Takes out of `options` what `tls_options` has put there; None: plain text. UsageError where they do not go
    together.
    """
    name_of = prefix.removeprefix("--").replace("-", "_")
    ca, name, certificate, key = (options.pop(f"{name_of}_{part}") for part in ("ca", "name", "cert", "key"))
    if (ca is None) != (name is None):
        raise click.UsageError(f"{prefix}-ca and {prefix}-name go together; give both, or neither for plain text")
    if (certificate is None) != (key is None):
        raise click.UsageError(f"{prefix}-cert and {prefix}-key go together; give both or neither")
    if ca is None:
        if certificate is not None:
            raise click.UsageError(f"{prefix}-cert needs {prefix}-ca and {prefix}-name")
        return None
    return BalancerTls(ca, name, certificate, key)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """One decorator that adds the options to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
