"""The bearer token of the admin pages: read from a file, and again when that changes."""

import asyncio
import base64
import hmac
import logging
from pathlib import Path

from balancer.errors import OperatorError
from balancer.files.regular import UnreadableError, read_regular

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
