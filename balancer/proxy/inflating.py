"""Room for what clients compressed: a bound on what all of it takes inflated.

A few kilobytes inflate to megabytes, so the largest that a message may become is taken before it is read, and what it
did not need is given back as soon as its size is known. gRPC's own code inflates, and says beforehand neither how much
it will be nor that it begins: Envoy tells by a header which requests are concerned.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NoReturn

from aiohttp import web

from balancer import bounds
from balancer.bounds import RefusedInputError, shown
from balancer.extproc.names import COMPRESSED_HEADER
from balancer.proxy.messages import RESOURCE_EXHAUSTED, Metadata, ProxyAnswer, pushback

_MOST_WAIT_S = 5.0
_MOST_WAITING = 256
_RETRY_S = 1.0
_PIECE_BYTES = 2**18
_WINDOW = zlib.MAX_WBITS + 32
"""Of gzip and zlib, which the first byte tells apart."""
_PLAIN = "identity"
_ENCODINGS = ("gzip", "deflate")
_WORDS = (
    f"compressed messages take all of the {bounds.MAX_INFLATED_TOTAL_BYTES} bytes that they may inflated; "
    "retry later, or send it uncompressed"
)


class NoRoomError(Exception):
    def __init__(self) -> None:
        super().__init__(_WORDS)
        self.answer = pushback(ProxyAnswer(RESOURCE_EXHAUSTED, _WORDS, unexecuted=True), _RETRY_S)


class Room:
    def __init__(self, of: Inflating, size_bytes: int) -> None:
        self._of, self._bytes = of, size_bytes

    def shrink(self, size_bytes: int) -> None:
        given_back = max(0, self._bytes - size_bytes)
        self._bytes -= given_back
        self._of.give_back(given_back)


class Inflating:
    def __init__(
        self,
        most_bytes: int,
        counts: Counter[tuple[str, str]],
        total_bytes: int = bounds.MAX_INFLATED_TOTAL_BYTES,
        most_wait_s: float = _MOST_WAIT_S,
    ) -> None:
        self.most_bytes = most_bytes
        self._message_bytes = min(most_bytes, total_bytes)
        self._free_bytes = total_bytes
        self._counts, self._most_wait_s = counts, most_wait_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        # One place stays for those that end soon.
        self._free_of_streams = max(1, total_bytes // self._message_bytes - 1)

    @asynccontextmanager
    async def room(self) -> AsyncIterator[Room]:
        """Room for one message, until it is over.

        Raises:
            NoRoomError: none came free in time.
        """
        if self._free_bytes >= self._message_bytes and not self._waiting:
            self._free_bytes -= self._message_bytes
        else:
            await self._wait()
        self._counts["compressed", "read"] += 1
        room = Room(self, self._message_bytes)
        try:
            yield room
        finally:
            room.shrink(0)

    @asynccontextmanager
    async def room_of_stream(self) -> AsyncIterator[Room]:
        """Room for one message at a time, until the stream is over, which may be never: not all of it goes to streams.

        Raises:
            NoRoomError: streams have all that they may, or none came free in time.
        """
        if not self._free_of_streams:
            self._refuse()
        self._free_of_streams -= 1
        try:
            async with self.room() as room:
                yield room
        finally:
            self._free_of_streams += 1

    def give_back(self, size_bytes: int) -> None:
        """So many bytes are free again: for those who wait, in their order."""
        self._free_bytes += size_bytes
        while self._waiting and self._free_bytes >= self._message_bytes:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free_bytes -= self._message_bytes
                turn.set_result(None)

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= _MOST_WAITING:
            self._refuse()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._most_wait_s):
                await asyncio.shield(turn)
        except BaseException as error:
            if turn.done():
                self.give_back(self._message_bytes)
            turn.cancel()
            if isinstance(error, TimeoutError):
                self._refuse()
            raise

    def _refuse(self) -> NoReturn:
        self._counts["compressed", "refused"] += 1
        raise NoRoomError

    async def body(self, request: web.BaseRequest, room: Room | None) -> bytes:
        """The body of a request by HTTP, inflated in pieces where it is compressed, which needs `room`.

        Raises:
            RefusedInputError: it is too large, or not of its encoding.
        """
        parts, size = [], 0
        unpacker = None if room is None else zlib.decompressobj(_WINDOW)
        async for part in _parts(request):
            pieces = [part] if unpacker is None else _inflated(unpacker, part, request)
            for piece in pieces:
                size += len(piece)
                if size > self.most_bytes:
                    words = f"the request has more than {self.most_bytes} bytes; send a smaller one"
                    raise RefusedInputError("size", words)
                parts.append(piece)
                if unpacker is not None:
                    # Others have their turn.
                    await asyncio.sleep(0)
        if unpacker is not None:
            # What it has read, and not yet said.
            parts.append(unpacker.flush())
            size += len(parts[-1])
            if not unpacker.eof:
                raise _not_of_its_encoding(request)
        if room is not None:
            room.shrink(size)
        return b"".join(parts)


async def _parts(request: web.BaseRequest) -> AsyncIterator[bytes]:
    try:
        async for part in request.content.iter_any():
            yield part
    except web.RequestPayloadError as error:
        raise _not_of_its_encoding(request) from error


def _inflated(unpacker: zlib._Decompress, part: bytes, request: web.BaseRequest) -> Iterator[bytes]:
    while part:
        try:
            piece = unpacker.decompress(part, _PIECE_BYTES)
        except zlib.error as error:
            raise _not_of_its_encoding(request) from error
        if unpacker.unused_data:
            raise _not_of_its_encoding(request)
        part = unpacker.unconsumed_tail
        yield piece


def _not_of_its_encoding(request: web.BaseRequest) -> RefusedInputError:
    encoding = request.headers.get("content-encoding", "none")
    return RefusedInputError("encoding", f"the request's body is not of its encoding, {shown(encoding)}")


def is_compressed(metadata: Metadata) -> bool:
    return any(name == COMPRESSED_HEADER and value != _PLAIN for name, value in metadata)


def encoding_of(request: web.BaseRequest) -> str:
    """What a body by HTTP is compressed by; empty: it is not.

    Raises:
        RefusedInputError: by something else than what is read here.
    """
    encoding = request.headers.get("content-encoding", "").lower()
    if encoding in ("", _PLAIN):
        return ""
    if encoding not in _ENCODINGS:
        words = f"Content-Encoding: {shown(encoding)} is not read; send {', '.join(_ENCODINGS)} or none"
        raise RefusedInputError("encoding", words)
    return encoding
