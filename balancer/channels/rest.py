"""The workers' HTTP ports: a connection for each request, since an idle one delays the end of a Triton."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import aiohttp
from yarl import URL

from balancer.balancer_tls import BalancerTls
from balancer.channels.channels import UnknownWorkerError
from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError

_CONNECTED_WITHIN_S = 1.0
MOST_ANSWER_BYTES = 16 * 2**20
"""Statistics of many models and batch sizes are some megabytes."""


class Response(NamedTuple):
    status: int
    body: bytes


class RestPorts:
    """Belongs to one event loop, in which it is first used."""

    def __init__(self, tls: BalancerTls | None = None) -> None:
        """`tls`: of the workers' HTTP ports; None: plain text. Reads its files, so it blocks.

        Raises:
            OperatorError: a file cannot be used.
        """
        self._tls = tls
        self._name = None if tls is None else tls.server_name
        self._context = None if tls is None else _context(tls)
        self._endpoints: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None

    def update(self, workers: Iterable[WorkerSpec]) -> None:
        self._endpoints = {worker.name: worker.http_endpoint for worker in workers}

    async def renew(self) -> None:
        """Read the certificates again, for requests from now on.

        Raises:
            OperatorError: a file cannot be used; those before stay in use.
        """
        if self._tls is not None:
            self._context = await asyncio.to_thread(_context, self._tls)

    async def ask(self, worker: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send one request; `path` goes out as it is.

        Raises:
            UnknownWorkerError: it is not listed.
            aiohttp.ClientError: it did not answer, or more than `MOST_ANSWER_BYTES`.
        """
        endpoint = self._endpoints.get(worker)
        if endpoint is None:
            raise UnknownWorkerError(worker)
        if self._session is None:
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECTED_WITHIN_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        scheme = "http" if self._context is None else "https"
        async with self._session.request(
            method,
            URL(f"{scheme}://{endpoint}{path}", encoded=True),
            data=body,
            headers=headers,
            ssl=self._context or True,
            server_hostname=self._name,
            allow_redirects=False,
        ) as response:
            parts, size = [], 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > MOST_ANSWER_BYTES:
                    raise aiohttp.ClientPayloadError(f"the answer has more than {MOST_ANSWER_BYTES} bytes")
                parts.append(part)
            return Response(response.status, b"".join(parts))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _context(tls: BalancerTls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(tls.ca))
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.private_key)
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(f"{tls.ca} or {tls.certificate} cannot be used: {error}; name PEM files") from error
    return context
