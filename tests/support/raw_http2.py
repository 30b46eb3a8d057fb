"""Requests over HTTP/2 that no client library would send: bodies that stop, and answers that nobody takes."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW_SIZE = 4
_FRAME_BYTES = 16384
_STREAM = 1


@dataclass
class Upload:
    """One connection with one request, to `path` as gRPC; begun by `start`."""

    endpoint: str
    path: str = "/inference.GRPCInferenceService/ModelInfer"
    headers: tuple[tuple[str, str], ...] = ()
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Once the server has ended the request: an answer, a reset, or no connection any more."""
    _windows: dict[int, int] = field(default_factory=lambda: {0: 65535, _STREAM: 65535})
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Connect and send the headers."""
        host, _, port = self.endpoint.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        headers = (
            *((":method", "POST"), (":scheme", "http"), (":path", self.path), (":authority", "gateway")),
            *(("content-type", "application/grpc"), ("te", "trailers")),
            *self.headers,
        )
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)
        self._writer.write(_frame(_HEADERS, _END_HEADERS, _STREAM, block))
        self._task = asyncio.create_task(self._read())

    async def stop(self) -> None:
        """Close the connection."""
        self._task.cancel()
        self._writer.close()

    async def send(self, data: bytes) -> bool:
        """Send so much of the body, as fast as the server allows; False: it ended the request before."""
        left = memoryview(data)
        try:
            while left and not self.ended.is_set():
                size = min(len(left), _FRAME_BYTES, *self._windows.values())
                if size <= 0:
                    self._more.clear()
                    await self._more.wait()
                    continue
                self._writer.write(_frame(_DATA, 0, _STREAM, bytes(left[:size])))
                await self._writer.drain()
                left = left[size:]
                for stream in self._windows:
                    self._windows[stream] -= size
        except ConnectionError:
            self.ended.set()
        return not self.ended.is_set()

    async def end(self) -> None:
        """Say that the body is over."""
        self._writer.write(_frame(_DATA, _END_STREAM, _STREAM, b""))
        await self._writer.drain()

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0]
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if kind == _SETTINGS and not flags & _ACK:
                    self._take_settings(payload)
                elif kind == _PING and not flags & _ACK:
                    self._writer.write(_frame(_PING, _ACK, 0, payload))
                elif kind == _WINDOW_UPDATE:
                    self._windows[stream] += struct.unpack(">I", payload)[0]
                    self._more.set()
                elif kind in (_RST_STREAM, _GOAWAY) or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                    break
        except (OSError, EOFError):
            pass
        self.ended.set()
        self._more.set()

    def _take_settings(self, payload: bytes) -> None:
        for identifier, value in struct.iter_unpack(">HI", payload):
            if identifier == _INITIAL_WINDOW_SIZE:
                self._windows[_STREAM] += value - 65535
        self._writer.write(_frame(_SETTINGS, _ACK, 0, b""))
        self._more.set()


@dataclass
class Unread:
    """One connection that takes no more of its answers than `window` bytes each; begun by `start`."""

    endpoint: str
    path: str = "/inference.GRPCInferenceService/ModelInfer"
    window: int = 0
    content_type: str = "application/grpc"
    headers: tuple[tuple[str, str], ...] = ()

    async def start(self) -> None:
        """Connect."""
        host, _, port = self.endpoint.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        settings = _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, self.window))
        self._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        self._next = 1

    async def ask(self, body: bytes, count: int, whole: bool = True) -> None:
        """So many requests; `whole`: their bodies end here. Bodies have 16 kB at most."""
        headers = (
            *((":method", "POST"), (":scheme", "http"), (":path", self.path), (":authority", "gateway")),
            *(("content-type", self.content_type), ("te", "trailers")),
            *self.headers,
        )
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)
        for _ in range(count):
            self._writer.write(_frame(_HEADERS, _END_HEADERS, self._next, block))
            self._writer.write(_frame(_DATA, _END_STREAM if whole else 0, self._next, body))
            self._next += 2
        await self._writer.drain()

    async def go_on(self, body: bytes) -> None:
        """The rest of the body of each."""
        for stream in range(1, self._next, 2):
            self._writer.write(_frame(_DATA, _END_STREAM, stream, body))
        await self._writer.drain()

    async def stop(self) -> None:
        """Close the connection."""
        self._writer.close()


def grpc_head(message_bytes: int) -> bytes:
    """What precedes a gRPC message of so many bytes."""
    return b"\0" + struct.pack(">I", message_bytes)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _text(text: str) -> bytes:
    """A string literal of HPACK, not compressed; up to some 16 kB."""
    data = text.encode("latin-1")
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest = len(data) - 127
    size = [127]
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes((*size, rest)) + data
