"""Asks balancers at their admin ports to change something."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from balancer.balancer_tls import BalancerTls
from balancer.errors import OperatorError
from balancer.files.schema import join_address, split_address
from balancer.operate.admin.token import read_token

_ANSWER_S = 5.0
_ANSWER_BYTES = 65_536
Answer = dict[str, Any]


class RefusedError(OperatorError):
    """A balancer said no, or what answered is none; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Balancers:
    """Whom to ask, and how."""

    addresses: tuple[str, ...]
    """`host:port`; a name stands for all of its addresses."""
    tls: BalancerTls | None = None
    token_file: Path | None = None

    async def post(self, path: str, worker: str) -> tuple[dict[str, Answer], list[str]]:
        """Ask each; returns the answers by address, and in words whom it could not reach.

        Raises:
            RefusedError: one says no.
            OperatorError: there is no token in the file, or no certificate.
        """
        tls = None if self.tls is None else await asyncio.to_thread(_context, self.tls)
        headers: dict[str, str] = {}
        if self.token_file is not None:
            token = await asyncio.to_thread(read_token, self.token_file)
            headers["Authorization"] = f"Bearer {token.decode()}"
        answers: dict[str, Answer] = {}
        unreached: list[str] = []
        places: list[str] = []
        for found in await asyncio.gather(*map(_resolved, self.addresses), return_exceptions=True):
            if isinstance(found, list):
                places += found
            else:
                unreached.append(str(found))
        places = list(dict.fromkeys(places))
        asked = [self._ask(place, path, worker, headers, tls) for place in places]
        for place, answer in zip(places, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, dict):
                answers[place] = answer
            elif isinstance(answer, aiohttp.ClientError | OSError):
                unreached.append(f"{place}: {answer or 'no answer'}; is listen.admin of a balancer there?")
            else:
                raise answer
        return answers, unreached

    async def _ask(
        self, place: str, path: str, worker: str, headers: dict[str, str], tls: ssl.SSLContext | None
    ) -> Answer:
        url = f"{'http' if tls is None else 'https'}://{place}{path}"
        name = None if self.tls is None else self.tls.server_name
        limit = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with (
            aiohttp.ClientSession(timeout=limit, headers=headers) as session,
            session.post(url, params={"worker": worker}, ssl=tls or True, server_hostname=name) as response,
        ):
            text = await response.content.read(_ANSWER_BYTES)
        try:
            answer = json.loads(text)
            why = answer.get("error", f"status {response.status}")
        except (ValueError, AttributeError):
            raise RefusedError(f"{place}: what answers is no balancer; name the listen.admin of one") from None
        if response.status != 200:
            raise RefusedError(f"{place}: {why}")
        return dict(answer)


async def _resolved(address: str) -> list[str]:
    """All that a name stands for; OSError where it stands for nothing."""
    host, port = split_address(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"{address}: {error.strerror}; give the address of a balancer's listen.admin") from error
    hosts: dict[int, list[str]] = {}
    for family, _, _, _, place in found:
        hosts.setdefault(family, []).append(str(place[0]))
    # A machine that has addresses of both kinds is one balancer.
    return [join_address(each, port) for each in hosts.get(socket.AF_INET) or hosts[socket.AF_INET6]]


def _context(tls: BalancerTls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.private_key)
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(f"--tls-ca, --tls-cert, --tls-key: {error}; give PEM files that fit together") from error
    return context
