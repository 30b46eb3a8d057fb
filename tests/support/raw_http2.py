"""Requests over HTTP/2 that no client library would send: bodies that stop, and answers that nobody takes."""

import asyncio
import struct
from dataclasses import dataclass, field

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = END_STREAM = 1
END_HEADERS = 4
_INITIAL_WINDOW_SIZE = 4
_FRAME_BYTES = 16384
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
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
        self._writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
        block = _block(self.path, "application/grpc", self.headers)
        self._writer.write(frame(HEADERS, END_HEADERS, _STREAM, block))
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
                self._writer.write(frame(DATA, 0, _STREAM, bytes(left[:size])))
                await self._writer.drain()
                left = left[size:]
                for stream in self._windows:
                    self._windows[stream] -= size
        except ConnectionError:
            self.ended.set()
        return not self.ended.is_set()

    async def end(self) -> None:
        """Say that the body is over."""
        self._writer.write(frame(DATA, END_STREAM, _STREAM, b""))
        await self._writer.drain()

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0]
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if kind == SETTINGS and not flags & _ACK:
                    self._take_settings(payload)
                elif kind == PING and not flags & _ACK:
                    self._writer.write(frame(PING, _ACK, 0, payload))
                elif kind == WINDOW_UPDATE:
                    self._windows[stream] += struct.unpack(">I", payload)[0]
                    self._more.set()
                elif kind in (RST_STREAM, GOAWAY) or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    break
        except (OSError, EOFError):
            pass
        self.ended.set()
        self._more.set()

    def _take_settings(self, payload: bytes) -> None:
        for identifier, value in struct.iter_unpack(">HI", payload):
            if identifier == _INITIAL_WINDOW_SIZE:
                self._windows[_STREAM] += value - 65535
        self._writer.write(frame(SETTINGS, _ACK, 0, b""))
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
        settings = frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, self.window))
        self._writer.write(PREFACE + settings)
        self._next = 1

    async def ask(self, body: bytes, count: int, whole: bool = True) -> None:
        """So many requests; `whole`: their bodies end here. Bodies have 16 kB at most."""
        block = _block(self.path, self.content_type, self.headers)
        for _ in range(count):
            self._writer.write(frame(HEADERS, END_HEADERS, self._next, block))
            self._writer.write(frame(DATA, END_STREAM if whole else 0, self._next, body))
            self._next += 2
        await self._writer.drain()

    async def go_on(self, body: bytes) -> None:
        """The rest of the body of each."""
        for stream in range(1, self._next, 2):
            self._writer.write(frame(DATA, END_STREAM, stream, body))
        await self._writer.drain()

    async def stop(self) -> None:
        """Close the connection."""
        self._writer.close()


def grpc_head(message_bytes: int) -> bytes:
    """What precedes a gRPC message of so many bytes."""
    return b"\0" + struct.pack(">I", message_bytes)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame; one that would be longer than a receiver must take is cut."""
    payload = payload[: 2**24 - 1]
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(key: bytes, value: bytes) -> bytes:
    """A header as it stands: no table, no Huffman code (RFC 7541, 6.2.2)."""
    return b"\0" + _length(len(key)) + key + _length(len(value)) + value


def _block(path: str, content_type: str, more: tuple[tuple[str, str], ...]) -> bytes:
    headers = (
        *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "gateway")),
        *(("content-type", content_type), ("te", "trailers")),
        *more,
    )
    return b"".join(literal(key.encode("latin-1"), value.encode("latin-1")) for key, value in headers)


def _length(number: int) -> bytes:
    if number < 127:
        return bytes((number,))
    number -= 127
    made = [127]
    while number >= 128:
        made.append(number % 128 + 128)
        number //= 128
    return bytes((*made, number))
