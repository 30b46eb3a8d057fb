"""What the admin server allows a connection, tried with raw sockets."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import pytest
from aiohttp import web

from balancer.server.admin.server import MAX_LINE_BYTES, AdminServer

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"x" * 20_000_000


class Served(NamedTuple):
    port: int
    closed: Counter[str]


Start = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers = []

    async def page(request: web.BaseRequest) -> web.Response:
        return web.Response(body=LARGE if request.path == "/large" else b"ok")

    async def begin(max_connections: int = 4, request_timeout_s: float = 30.0) -> Served:
        closed: Counter[str] = Counter()
        server = AdminServer(page, max_connections, request_timeout_s, lambda cause: closed.update([cause]))
        servers.append(server)
        return Served(await server.start("127.0.0.1:0", None), closed)

    yield begin
    for server in servers:
        await server.stop()


async def send(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def end(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server ends the connection."""
    found = []
    with contextlib.suppress(ConnectionResetError):
        while part := await asyncio.wait_for(reader.read(2**20), 30):
            found.append(part)
    return b"".join(found)


async def ask(port: int, data: bytes = GET) -> bytes:
    reader, writer = await send(port, data)
    answer = await end(reader)
    writer.close()
    return answer


async def test_a_connection_carries_one_request(start: Start) -> None:
    served = await start()
    answer = await ask(served.port, GET + GET)
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in answer
    assert not served.closed


async def test_who_waits_for_an_answer_keeps_its_place_before_who_has_not_asked(start: Start) -> None:
    served = await start(max_connections=2)
    asking, asking_writer = await send(served.port, GET.replace(b"/ ", b"/large ", 1))
    assert await asking.readexactly(15) == b"HTTP/1.1 200 OK"
    idle, idle_writer = await send(served.port, b"")
    assert b"200 OK" in await ask(served.port)
    assert await end(idle) == b""
    assert served.closed == {"full": 1}
    assert len(await end(asking)) > len(LARGE)
    for writer in (asking_writer, idle_writer):
        writer.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * MAX_LINE_BYTES + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-A: " + b"a" * MAX_LINE_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(65)) + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
async def test_what_is_too_large_or_no_http_is_refused_without_a_line_in_the_log(
    start: Start, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    served = await start()
    answer = await ask(served.port, request_)
    assert answer.startswith(b"HTTP/1.0 400") or answer.startswith(b"HTTP/1.1 400"), answer[:100]
    assert not caplog.records
