"""Asks the admin pages of a balancer, for the commands that do."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

from balancer.errors import OperatorError
from balancer.operate.admin.token import read_token

DEFAULT_URL = "http://127.0.0.1:8090"
_MOST_BYTES = 2**25
_TIMEOUT_S = 10.0
_File = click.Path(path_type=Path, dir_okay=False, exists=True)
_Command = TypeVar("_Command", bound=Callable[..., Any])


class PagesError(OperatorError):
    """The balancer did not answer, or not as asked."""


class Who(NamedTuple):
    """How the one who asks proves who it is, and whom it trusts."""

    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


def options(command: _Command) -> _Command:
    """The options of `Who`, for a command."""
    for name, says in (
        ("--key-file", "Key of --cert-file."),
        ("--cert-file", "Certificate to show, where tls.admin asks for one."),
        ("--ca-file", "Authority of the balancer's certificate, with https [default: the system's]."),
        ("--token-file", "File with the token of admin.token_file."),
    ):
        command = click.option(name, type=_File, help=says)(command)
    return command


def get(url: str, page: str, who: Who) -> bytes:
    """What a page says.

    Raises:
        PagesError: naming the URL, what came instead, and the remedy.
    """
    # `localhost:8090` parses as a scheme.
    url = url if "://" in url else f"http://{url}"
    if urlsplit(url).scheme not in ("http", "https"):
        raise PagesError(f"{url!r} is no URL of a balancer's admin pages; write it as {DEFAULT_URL}")
    request = urllib.request.Request(f"{url.rstrip('/')}/{page}")
    if who.token_file is not None:
        request.add_unredirected_header("Authorization", f"Bearer {read_token(who.token_file).decode()}")
    # No proxy of the environment stands between a person and this machine's own balancer.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_trust(who)), _NoRedirects()
    )
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            text: bytes = response.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode("utf-8", "replace")
        raise PagesError(f"{request.full_url} answers {error.code}: {_plain(said)}") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise PagesError(f"{request.full_url} does not answer: {why}; is it the address listen.admin?") from error
    if len(text) > _MOST_BYTES:
        raise PagesError(f"{request.full_url} answers with more than {_MOST_BYTES} bytes: that is no balancer")
    return text


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The admin pages have none, and a token goes to nobody else."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        """None is followed."""


def _trust(who: Who) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=who.ca_file)
    if who.cert_file is not None:
        context.load_cert_chain(who.cert_file, who.key_file)
    return context


def _plain(text: str) -> str:
    """Without what a terminal would obey."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
