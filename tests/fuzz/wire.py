"""Bytes for a socket, HTTP/1 and HTTP/2 as no library would send them, and a client that sends them."""

import asyncio
import contextlib
from random import Random

from support.raw_http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    literal,
)

from fuzz import hostile, inputs

_ANSWER_S = 0.5
_PARTS_S = 0.05
_READ_BYTES = 65_536
_NO_TABLE = bytes.fromhex("000100000000")
"""SETTINGS_HEADER_TABLE_SIZE = 0: then every answer's status is in its first bytes, as below."""
_STATUSES = {0x88: "200", 0x89: "204", 0x8A: "206", 0x8B: "304", 0x8C: "400", 0x8D: "404", 0x8E: "500"}
_QUESTIONS = ("rows=1e308", "rows=nan", "rows=-1e6", "rows=\u00b2", "x=1", "priority=" + "9" * 5000, "deadline_ms=-1")
_ADMIN_PATHS = (
    *("/", "/ready", "/live", "/metrics", "/workers", "/guard", "/recent", "/config", "/explain", "/../etc/passwd"),
    *("/%00", "*", "//", "/quit", "/metrics?name[]=x", "/explain?model=", "/explain?model=%ff", "/" + "x" * 9000),
    *(f"/explain?model=identity{what}" for what in ("", "&key=" + "k" * 5000, *(f"&{each}" for each in _QUESTIONS))),
)
_METHODS = ("GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "G\x00T", "")


def admin_request(rng: Random) -> bytes:
    """A request for the admin pages, mostly no good one."""
    if rng.random() < 0.1:
        return hostile.octets(rng, 2000)
    version = rng.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/9", ""))
    lines = [f"{rng.choice(_METHODS)} {rng.choice(_ADMIN_PATHS)} {version}".encode()]
    lines += [b"Host: x", b"Connection: close"] if rng.random() < 0.9 else []
    return _ended(rng, b"\r\n".join([*lines, *_lines(rng), b"", b""]))


def http1_request(rng: Random) -> bytes:
    """A request for Envoy's listener in HTTP/1, with a body that may end early."""
    if rng.random() < 0.05:
        return hostile.octets(rng, 2000)
    large = b"x" * 100_000 if rng.random() < 0.05 else b"y"
    body = rng.choice((b"", b"{}", b'{"inputs": []}', hostile.octets(rng, 3000), large))
    method, path = rng.choice(("POST", "POST", "POST", *_METHODS, "PRI")), rng.choice(hostile.REST_PATHS)
    kind = rng.choice((b"application/json", b"application/grpc", b"", b"\xb2", b"application/grpc+x"))
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: x", b"Connection: close", b"Content-Type: " + kind]
    chunked = rng.random() < 0.1
    if chunked or rng.random() < 0.02:
        lines.append(b"Transfer-Encoding: chunked")
    if chunked:
        body = b"%x\r\n%b\r\n%b" % (len(body), body, rng.choice((b"0\r\n\r\n", b"", b"ffffffffffffffff\r\n")))
    else:
        length = rng.choice((len(body), len(body), len(body), len(body) + 1000, 0, -1, 2**63, 10**30))
        lines.append(f"Content-Length: {length}".encode())
    return _ended(rng, b"\r\n".join([*lines, *_lines(rng), b"", body]))


def _lines(rng: Random) -> list[bytes]:
    return [key.encode() + b": " + text for key, text in (hostile.header(rng) for _ in range(rng.randrange(4)))]


def _ended(rng: Random, request: bytes) -> bytes:
    """Whole, mostly."""
    if rng.random() < 0.05:
        return hostile.garbled(rng, request)
    return request if rng.random() < 0.9 else request[: rng.randrange(len(request))]


def http2_call(rng: Random) -> bytes:
    """A gRPC or REST call in HTTP/2, header by header as given: a library would refuse to send most of them."""
    grpc = rng.random() < 0.8
    path = rng.choice(hostile.GRPC_PATHS if grpc else hostile.REST_PATHS)
    content = inputs.inference(rng) if grpc else hostile.octets(rng, 2000)
    body = b"\0" + len(content).to_bytes(4, "big") + content if grpc else content
    kind = rng.choice((b"application/grpc",) * 8 + (b"application/grpc-web", b"application/grpc\xb2", b""))
    headers = [
        *((b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"x")),
        *((b"content-type", kind if grpc else b"application/json"), (b"te", b"trailers")),
        *((key.encode(), text) for key, text in (hostile.header(rng) for _ in range(rng.randrange(4)))),
    ]
    frames = [frame(HEADERS, END_HEADERS, 1, b"".join(literal(*each) for each in headers))]
    frames += [frame(DATA, 0, 1, body[at : at + 16_384]) for at in range(0, len(body), 16_384)]
    if rng.random() < 0.8:
        frames.append(frame(DATA, END_STREAM, 1, b""))
    elif rng.random() < 0.5:
        frames.append(frame(RST_STREAM, 0, 1, rng.choice((0, 1, 8, 2**32 - 1)).to_bytes(4, "big")))
    sent = PREFACE + frame(SETTINGS, 0, 0, _NO_TABLE) + b"".join(frames)
    return hostile.garbled(rng, sent) if rng.random() < 0.05 else sent


def http2_frames(rng: Random) -> bytes:
    """Frames in any order with any content, after a good preface."""
    sent = PREFACE + frame(SETTINGS, 0, 0, rng.choice((_NO_TABLE, b"", hostile.octets(rng, 60))))
    for _ in range(rng.randrange(1, 12)):
        kind, stream = rng.choice((rng.randrange(12), HEADERS, DATA)), rng.choice((0, 1, 1, 3, 2**31 - 1))
        sent += frame(kind, rng.randrange(256), stream, hostile.octets(rng, 300))
    return sent


async def exchange(address: str, request: bytes) -> str:
    """Send the bytes, and say how they were answered: a status, what HTTP/2 said, or `closed` or `no answer`."""
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return "refused"
    answer = b""
    try:
        writer.write(request)
        # Who sends half a request is answered when the other side tires of it; that is not waited for.
        whole = b"\r\n\r\n" in request
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_ANSWER_S if whole else _PARTS_S):
                await writer.drain()
                while not (said := _spoken(answer)):
                    if not (more := await reader.read(_READ_BYTES)):
                        return "closed"
                    answer += more
                return said
        return "no answer"
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await writer.wait_closed()


def _spoken(answer: bytes) -> str:
    """What an answer says, of either protocol; empty while it says nothing yet."""
    if answer.startswith(b"HTTP/"):
        line = answer.partition(b"\r\n")[0].split(b" ")
        return line[1].decode(errors="replace") if len(line) > 1 else ""
    while len(answer) >= 9:
        size, kind, payload = int.from_bytes(answer[:3], "big"), answer[3], answer[9:]
        if kind == HEADERS and payload:
            # An encoder may first say that it will use no table (RFC 7541, 6.3).
            first = payload[1] if payload[0] & 0xE0 == 0x20 and len(payload) > 1 else payload[0]
            return f"h2 {_STATUSES.get(first, 'other status')}"
        if kind in {RST_STREAM, GOAWAY} and len(payload) >= size:
            return f"h2 {'reset' if kind == RST_STREAM else 'goaway'}"
        answer = payload[size:]
    return ""
