"""The options by which a command is told of TLS towards the balancers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from balancer.balancer_tls import BalancerTls

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
Command = TypeVar("Command", bound=Callable[..., Any])


def tls_options(what: str) -> Callable[[Command], Command]:
    """Add them to a command; `what` travels by TLS where --tls-ca is given."""
    options = (
        click.option(
            "--tls-ca", type=FILE, help=f"What signed the balancers' certificates; given, {what} travel by TLS."
        ),
        click.option("--tls-name", metavar="NAME", help="Name in the balancers' certificates; with --tls-ca."),
        click.option("--tls-cert", type=FILE, help="Certificate to show, where the balancers ask for one."),
        click.option("--tls-key", type=FILE, help="Its private key."),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def tls_of(ca: Path | None, name: str | None, certificate: Path | None, key: Path | None) -> BalancerTls | None:
    """What they say; None: plain text. UsageError where they do not go together."""
    if (ca is None) != (name is None):
        raise click.UsageError("--tls-ca and --tls-name go together; give both, or neither for plain text")
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key go together; give both or neither")
    if ca is None or name is None:
        if certificate is not None:
            raise click.UsageError("--tls-cert needs --tls-ca and --tls-name")
        return None
    return BalancerTls(ca, name, certificate, key)
