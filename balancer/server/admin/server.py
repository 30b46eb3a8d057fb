"""An HTTP server for pages that are only read: few connections, one short request each, an answer, and the end.

An answer may go on (server-sent events): then each part of it has the time that a whole answer has else.

Whoever holds a connection, sends slowly or does not read the answer loses it after `request_timeout_s`; where all
connections are taken, a newcomer gets the place of the one that has kept it longest. So probes and people get through
while somebody holds whatever they can.
"""

import asyncio
import base64
import hmac
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from balancer.errors import OperatorError
from balancer.files.regular import UnreadableError, read_regular
from balancer.files.schema import UNIX, split_address

MAX_LINE_BYTES = 4096
"""Of the request line. A model's name, a version and a key of 256 bytes fit, percent-encoded."""
MAX_FIELD_BYTES = 4096
MAX_HEADERS = 64
_READ_BYTES = 2**14
_BACKLOG = 128
_NO_TRACEBACK = logging.getLogger("balancer.server.admin.http")
# aiohttp writes a traceback for each request that is not HTTP, which any port scan sends.
_NO_TRACEBACK.disabled = True

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Closed = Literal["timeout", "full"]


class AdminServer(web.Server):
    def __init__(
        self, page: Page, max_connections: int, request_timeout_s: float, closed: Callable[[Closed], None]
    ) -> None:
        """`closed` is told of each connection that was cut off, and why."""
        super().__init__(
            self._answer,
            keepalive_timeout=request_timeout_s,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=0.0,
            read_bufsize=_READ_BYTES,
            auto_decompress=False,
            access_log=None,
            logger=_NO_TRACEBACK,
        )
        self._page = page
        self._max_connections = max_connections
        self._request_timeout_s = request_timeout_s
        self._closed = closed
        self._deadlines: dict[RequestHandler, asyncio.TimerHandle] = {}
        self._answering: set[RequestHandler] = set()
        self._listening: asyncio.Server | None = None

    async def start(self, address: str, tls: ssl.SSLContext | None) -> int:
        """Listen at `host:port` or `unix:PATH`; returns the port, 0 for a Unix socket. OSError where it cannot."""
        loop = asyncio.get_running_loop()
        handshake_s = None if tls is None else self._request_timeout_s
        how: dict[str, Any] = {"ssl": tls, "ssl_handshake_timeout": handshake_s, "backlog": _BACKLOG}
        if address.startswith(UNIX):
            path = address.removeprefix(UNIX)
            self._listening = await loop.create_unix_server(self, path, **how)
            return 0
        host, port = split_address(address)
        self._listening = await loop.create_server(self, host, port, **how)
        bound: int = self._listening.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self.pre_shutdown()
        await self.shutdown(1.0)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count it in; cut off the one that has kept its place longest where there are too many."""
        super().connection_made(handler, transport)
        if len(self._deadlines) >= self._max_connections:
            waiting = (other for other in self._deadlines if other not in self._answering)
            self._cut(next(waiting, next(iter(self._deadlines))), "full")
        self._set_deadline(handler)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._forget(handler)
        super().connection_lost(handler, exc)

    def _cut(self, handler: RequestHandler, cause: Closed) -> None:
        self._forget(handler)
        transport = handler.transport
        if transport is not None:
            self._closed(cause)
            # Closing would wait for whoever does not read the answer.
            transport.abort()

    def grant(self, request: web.BaseRequest) -> None:
        """Give the connection of a request its time anew: for the next part of an answer that goes on."""
        if (deadline := self._deadlines.get(request.protocol)) is not None:
            deadline.cancel()
            self._set_deadline(request.protocol)

    def _set_deadline(self, handler: RequestHandler) -> None:
        loop = asyncio.get_running_loop()
        self._deadlines[handler] = loop.call_later(self._request_timeout_s, self._cut, handler, "timeout")

    def _forget(self, handler: RequestHandler) -> None:
        deadline = self._deadlines.pop(handler, None)
        if deadline is not None:
            deadline.cancel()
        self._answering.discard(handler)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.protocol in self._deadlines:
            self._answering.add(request.protocol)
        response = await self._page(request)
        # The next request gets a connection, and its time, of its own.
        response.force_close()
        return response


logger = logging.getLogger(__name__)

_POLL_S = 1.0
LEAST_CHARACTERS = 16
"""Shorter tokens are guessed."""
MOST_BYTES = 1024


class TokenError(OperatorError):
    """The file holds no token."""


def read_token(path: Path) -> bytes:
    """The token in a file, without the white space around it.

    Raises:
        TokenError: naming field, file and remedy.
    """
    try:
        content = read_regular(path, MOST_BYTES)
    except UnreadableError as error:
        raise TokenError(f"admin.token_file: {path} {error}; or remove the field") from error
    token = content.strip()
    if len(token) < LEAST_CHARACTERS or not token.isascii() or b"\n" in token:
        raise TokenError(
            f"admin.token_file: {path} must hold one line of {LEAST_CHARACTERS} to {MOST_BYTES} ASCII characters; "
            "make a token with: openssl rand -hex 32"
        )
    return token


def _password(sent: bytes) -> bytes:
    """Of the scheme Basic, under any name; empty where it is none."""
    try:
        return base64.b64decode(sent, validate=True).partition(b":")[2]
    except ValueError:
        return b""


class Token:
    """The token in force: that of the file, the last good one where the file goes bad."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token: bytes | None = None
        self._problem = ""
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._token = await asyncio.to_thread(read_token, self._path)
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def allows(self, authorization: str) -> bool:
        """Whether the header `Authorization` has the token, as such or as the password that a browser asks a person
        for; in a time that does not depend on what the token is.
        """
        scheme, _, given = authorization.partition(" ")
        token, sent = self._token, given.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() == "basic":
            sent = _password(sent)
        is_it = hmac.compare_digest(sent, token or b"")
        return token is not None and scheme.lower() in ("bearer", "basic") and is_it

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                token = await asyncio.to_thread(read_token, self._path)
            except TokenError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    logger.error("the last good admin token stays in force: %s", error)
                continue
            self._problem = ""
            if token != self._token:
                self._token = token
                logger.info("admin token renewed")
