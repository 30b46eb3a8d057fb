"""Asks balancers at their admin ports; what answers there may be anybody."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click

from balancer.balancer_tls import BalancerTls, http_context
from balancer.cli.tls_options import FILE, Command, taken_tls, tls_options, together
from balancer.config.listen import ListenSection
from balancer.errors import OperatorError
from balancer.files.answers import TooLongError, whole_body
from balancer.files.off_loop import OffLoop
from balancer.files.schema import join_address, split_address
from balancer.server.admin.server import read_token

_ANSWER_S = 10.0
_RESOLVE_S = 60.0
_MOST_BYTES = 2**25
_MOST_WORDS = 500
Answer = dict[str, Any]


class AnswerError(OperatorError):
    """A balancer did not answer, said no, or what answers is none; the message says which, where and why."""


class _UnreachedError(AnswerError):
    """Nobody answers there."""


@dataclass(frozen=True, slots=True)
class Balancers:
    addresses: tuple[str, ...]
    tls: BalancerTls | None = None
    token_file: Path | None = None

    async def get(self, page: str, query: Mapping[str, str] | None = None) -> bytes:
        """What a page of the only one says, such as `/config`.

        Raises:
            AnswerError: nobody answers, or the status is not 200.
            OperatorError: there is no token in the file, or no certificate.
        """
        (address,) = self.addresses
        return await (await self._client()).ask("GET", address, page, query or {})

    async def post(self, path: str, worker: str) -> tuple[dict[str, Answer], list[str]]:
        """Ask each, where a name stands for all of its addresses; the answers by address, and in words whom it could
        not reach.

        Raises:
            AnswerError: one says no.
            OperatorError: there is no token in the file, or no certificate.
        """
        client = await self._client()
        places, unreached = await self._places()
        answers: dict[str, Answer] = {}
        changes = (client.change(place, path, worker) for place in places)
        for place, answer in zip(places, await asyncio.gather(*changes, return_exceptions=True), strict=True):
            if isinstance(answer, dict):
                answers[place] = answer
            elif isinstance(answer, _UnreachedError):
                unreached.append(str(answer))
            else:
                raise answer
        return answers, unreached

    async def get_all(self, page: str) -> tuple[list[bytes], list[str]]:
        """What a page of each says, where a name stands for all of its addresses; and in words who did not answer.

        Raises:
            OperatorError: there is no token in the file, or no certificate.
        """
        client = await self._client()
        places, unreached = await self._places()
        asked = (client.ask("GET", place, page, {}) for place in places)
        said: list[bytes] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, bytes):
                said.append(answer)
            elif isinstance(answer, OperatorError):
                unreached.append(str(answer))
            else:
                raise answer
        return said, unreached

    async def _places(self) -> tuple[list[str], list[str]]:
        """The addresses of all, and in words whose could not be found."""
        places: list[str] = []
        unfound: list[str] = []
        for found in await asyncio.gather(*map(_resolved, self.addresses), return_exceptions=True):
            if isinstance(found, list):
                places += [place for place in found if place not in places]
            else:
                unfound.append(str(found))
        return places, unfound

    async def _client(self) -> _Client:
        tls = None if self.tls is None else await asyncio.to_thread(http_context, self.tls)
        # What is not compressed cannot be more than it seems.
        headers = {"Accept-Encoding": "identity"}
        if self.token_file is not None:
            token = await asyncio.to_thread(read_token, self.token_file)
            headers["Authorization"] = f"Bearer {token.decode()}"
        return _Client(headers, tls, None if self.tls is None else self.tls.server_name)


@dataclass(frozen=True, slots=True)
class _Client:
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None
    server_name: str | None

    async def ask(self, method: str, place: str, path: str, query: Mapping[str, str]) -> bytes:
        """What it answers; AnswerError where it does not, or with another status than 200."""
        url = f"{'http' if self.tls is None else 'https'}://{place}{path}"
        limit = aiohttp.ClientTimeout(total=_ANSWER_S)
        how: dict[str, Any] = {"ssl": self.tls or True, "server_hostname": self.server_name}
        try:
            async with (
                aiohttp.ClientSession(timeout=limit, headers=self.headers, auto_decompress=False) as session,
                # A balancer sends nobody elsewhere, and a token goes to nobody else.
                session.request(method, url, params=query, allow_redirects=False, **how) as response,
            ):
                text = await whole_body(response, _MOST_BYTES)
                if response.status != 200:
                    raise AnswerError(f"{place}: {_why(response.status, text)}")
                return text
        except TooLongError as error:
            raise AnswerError(f"{place}: answers with more than {_MOST_BYTES} bytes: that is no balancer") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = printable(str(error)) or "no answer"
            raise _UnreachedError(f"{place}: {why}; is listen.admin of a balancer there?") from error

    async def change(self, place: str, path: str, worker: str) -> Answer:
        """What it answers to a change; AnswerError where that is not done."""
        answer = _object(await self.ask("POST", place, path, {"worker": worker}))
        if answer is None:
            raise AnswerError(f"{place}: what answers is no balancer; name the listen.admin of one")
        return answer


def printable(words: str) -> str:
    """In one line, without what a terminal would obey."""
    return " ".join("".join(each if each.isprintable() else " " for each in words).split())


def _why(status: int, text: bytes) -> str:
    answer = _object(text) or {}
    error = str(answer["error"]) if "error" in answer else text[:_MOST_WORDS].decode("utf-8", "replace")
    return f"answers {status}: {printable(error)[:_MOST_WORDS] or 'nothing more; is that a balancer?'}"


def _object(text: bytes) -> Answer | None:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


async def _resolved(address: str) -> list[str]:
    """All that a name stands for; OSError where it stands for nothing."""
    host, port = split_address(address)
    try:
        # Not in the loop's own thread: as long as a name server is silent, that would keep the command from ending.
        found = await OffLoop[list[Any]](_RESOLVE_S).run(
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
    except OSError as error:
        why = error.strerror or "its name server is silent"
        raise OSError(f"{address}: {why}; give the address of a balancer's listen.admin") from error
    hosts: dict[int, list[str]] = {}
    for family, _, _, _, place in found:
        hosts.setdefault(family, []).append(str(place[0]))
    # A machine that has addresses of both kinds is one balancer.
    return [join_address(each, port) for each in hosts.get(socket.AF_INET) or hosts[socket.AF_INET6]]


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
