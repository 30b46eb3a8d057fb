"""Options that several commands share: TLS towards a server, and which balancers' admin ports to use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from balancer.balancer_tls import BalancerTls
from balancer.cli.admin_client import Balancers
from balancer.config.listen import ListenSection
from balancer.files.schema import split_address

DEFAULT_ADDRESS = ListenSection().admin
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_SCHEMES = {"http": False, "https": True}
"""Whether what follows goes by TLS."""
Command = TypeVar("Command", bound=Callable[..., Any])


def tls_options(
    given: str,
    prefix: str = "--tls",
    certificate: str = "the balancers' certificates",
    asking: str = "the balancers ask",
) -> Callable[[Command], Command]:
    """Add them to a command; `given`: what goes by TLS where there is an authority."""
    return _together(
        click.option(f"{prefix}-ca", type=_FILE, help=f"What signed {certificate}; given, {given} by TLS."),
        click.option(f"{prefix}-name", metavar="NAME", help=f"Name in {certificate}; with {prefix}-ca."),
        click.option(f"{prefix}-cert", type=_FILE, help=f"Certificate to show, where {asking} for one."),
        click.option(f"{prefix}-key", type=_FILE, help="Its private key."),
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


def admin_options(
    name: str = "--balancer",
    says: str = "A balancer's listen.admin; each process of a balancer has a port of its own.",
    default: str | None = DEFAULT_ADDRESS,
    several: bool = False,
) -> Callable[[Command], Command]:
    """Add them to a command, which makes of them what `balancers_of` does.

    `name`: of the option with the address, or addresses where there may be several; `default` None: it may be left out.
    """
    return _together(
        click.option(
            name,
            "addresses",
            metavar="ADDRESS",
            multiple=several,
            default=(default,) if several and default else default,
            show_default=default is not None,
            help=f"{says} HOST:PORT, or the URL of the page there.",
        ),
        click.option("--token-file", type=_FILE, help="Holds the token of admin.token_file."),
        tls_options("questions travel"),
    )


def balancers_of(addresses: tuple[str, ...] | str, token_file: Path | None, **tls_options: Any) -> Balancers:
    """What the options say; UsageError where they do not go together."""
    tls = taken_tls(tls_options)
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


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
