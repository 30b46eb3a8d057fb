"""What the answers of HTTP servers need wherever one is asked: a bound, and the key that lets us in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp

from balancer.errors import OperatorError
from balancer.files.regular import UnreadableError, read_regular

_MOST_KEY_BYTES = 4096
EVENT_BREAK = b"\n\n"
_BREAK = re.compile(rb"\r?\n\r?\n")


class TooLongError(ValueError):
    """An answer has more bytes than are taken; the message says how many are."""


class EventSplitter:
    """Cuts what comes of a stream of server-sent events into them."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: that an event may have."""
        self._most_bytes = most_bytes
        self.left = b""
        """That no empty line ended so far."""

    def split(self, part: bytes) -> list[bytes]:
        """Events that end in it, without the empty lines after them.

        Raises:
            TooLongError: one has more bytes.
        """
        *whole, self.left = _BREAK.split(self.left + part)
        if len(self.left) > self._most_bytes:
            raise TooLongError(f"an event has more than {self._most_bytes} bytes")
        return whole


async def whole_body(
    response: aiohttp.ClientResponse, most_bytes: int, feed: Callable[[bytes], None] = lambda _: None
) -> bytes:
    """All of it; `feed` gets its parts as they come.

    Raises:
        TooLongError: it has more.
        aiohttp.ClientError: it breaks off.
    """
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        feed(part)
        if len(body) > most_bytes:
            raise TooLongError(f"the answer has more than {most_bytes} bytes")
    return bytes(body)


def bearer_of(path: Path, whose: str) -> Mapping[str, str]:
    """The header with the key that a file holds; blocks. `whose`: of what, such as `the server's key`.

    Raises:
        OperatorError: there is none in it; the message names the file.
    """
    try:
        key = read_regular(path, _MOST_KEY_BYTES).decode("ascii").strip()
    except (UnreadableError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path} {error}") from error
    if not key or not key.isprintable():
        raise OperatorError(f"{path} must hold {whose}: one line of printable characters")
    return {"Authorization": f"Bearer {key}"}
