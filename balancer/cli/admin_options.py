"""The options by which a command is told whom to ask at an admin port, and what to show there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from balancer.commands.admin_client import Balancers
from balancer.commands.tls_options import FILE, Command, tls_of, tls_options, together
from balancer.config.listen import ListenSection
from balancer.files.schema import split_address

DEFAULT_ADDRESS = ListenSection().admin
_SCHEMES = {"http": False, "https": True}
"""Whether what follows goes by TLS."""


def admin_options(
    name: str = "--balancer",
    says: str = "A balancer's listen.admin; each process of a balancer has a port of its own.",
    default: str | None = DEFAULT_ADDRESS,
    several: bool = False,
) -> Callable[[Command], Command]:
    """Add them to a command, which makes of them what `balancers_of` does.

    `name`: of the option with the address, or addresses where there may be several; `default` None: it may be left out.
    """
    return together(
        click.option(
            name,
            "addresses",
            metavar="ADDRESS",
            multiple=several,
            default=(default,) if several and default else default,
            show_default=default is not None,
            help=f"{says} HOST:PORT, or the URL of the page there.",
        ),
        click.option("--token-file", type=FILE, help="Holds the token of admin.token_file."),
        tls_options("questions travel"),
    )


def balancers_of(
    addresses: tuple[str, ...] | str,
    token_file: Path | None,
    tls_ca: Path | None,
    tls_name: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> Balancers:
    """What the options say; UsageError where they do not go together."""
    tls = tls_of(tls_ca, tls_name, tls_cert, tls_key)
    given = (addresses,) if isinstance(addresses, str) else addresses
    return Balancers(tuple(_host_port(each, tls is not None) for each in given), tls, token_file)


def _host_port(address: str, tls: bool) -> str:
    scheme, separator, place = address.rpartition("://")
    if separator and scheme not in _SCHEMES:
        raise click.UsageError(f"{address!r} is no address of a balancer; write it as {DEFAULT_ADDRESS}")
    if separator and _SCHEMES[scheme] != tls:
        remedy = "leave --tls-ca out, or write https" if tls else "give --tls-ca and --tls-name"
        raise click.UsageError(f"{address!r} is {'plain text' if tls else 'TLS'}; {remedy}")
    place = place.removesuffix("/") if separator else place
    try:
        split_address(place)
    except ValueError as error:
        raise click.UsageError(f"{address!r}: {error}") from error
    return place
