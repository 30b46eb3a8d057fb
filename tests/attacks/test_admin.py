"""What a stranger wants of the admin port of a real balancer process; no worker is needed for that."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest
from support.balancer_alone import WORKER, BalancerAlone
from support.running import running
from support.waiting import eventually

from balancer.files.schema import split_address

pytestmark = pytest.mark.integration

MANY = 300
TOKEN = "an honest operator's token"
PATIENCE_S = 30.0


class Balancer(BalancerAlone):
    """And raw requests to its admin port."""

    async def connect(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*split_address(self.admin), limit=2**24)
        writer.write(data)
        return reader, writer

    async def send(self, data: bytes) -> tuple[int, str]:
        """Status and body of what is answered; 0 where the connection is cut off."""
        reader, writer = await self.connect(data)
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, ""
        finally:
            writer.close()
        return int(head.split(b" ")[1]), body.decode()

    async def get(self, page: str, *headers: str) -> tuple[int, str]:
        lines = [f"GET {page} HTTP/1.1", "Host: x", "Connection: close", *headers]
        return await self.send("\r\n".join([*lines, "", ""]).encode())


@pytest.fixture
async def balancer(tmp_path: Path) -> AsyncIterator[Balancer]:
    balancer = Balancer(tmp_path)
    async with running(balancer):
        yield balancer


async def ended(reader: asyncio.StreamReader) -> None:
    """Return once the other end has ended the connection; TimeoutError where it does not."""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass


async def test_a_stranger_cannot_hold_all_connections(balancer: Balancer) -> None:
    before = balancer.process.num_fds()
    held = [await balancer.connect(b"GET /metrics HTTP/1.1\r\nHost: x\r\n") for _ in range(MANY)]
    # Probes and scrapes get through at once, and what is held is not much.
    assert (await balancer.get("/live"))[0] == 200
    assert (await balancer.get("/metrics"))[0] == 200
    await eventually(lambda: balancer.process.num_fds() < before + 70, "most of what was held is let go")
    await asyncio.gather(*(ended(reader) for reader, _ in held))
    for _, writer in held:
        writer.close()


async def test_a_stranger_cannot_send_a_request_for_ever(balancer: Balancer) -> None:
    reader, writer = await balancer.connect(b"GET /live HTTP/1.1\r\n")

    async def dribble() -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"X-A: 1\r\n")
                await writer.drain()
                await asyncio.sleep(0.5)

    dribbling = asyncio.create_task(dribble())
    try:
        await ended(reader)
    finally:
        dribbling.cancel()
        writer.close()


async def test_a_stranger_cannot_write(balancer: Balancer) -> None:
    for method, page in product(("POST", "PUT", "DELETE", "PATCH"), ("/config", "/workers", "/live")):
        status, body = await balancer.send(
            f"{method} {page} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        )
        assert status == 405
        assert "only read" in json.loads(body)["error"]


async def test_a_stranger_cannot_upload(balancer: Balancer) -> None:
    before = balancer.resident_bytes()
    head = b"GET /live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%s\r\n" % (2**16, b"x" * 2**16)
    for _ in range(5):
        reader, writer = await balancer.connect(head)
        with contextlib.suppress(OSError):
            for _ in range(500):
                writer.write(chunk)
                await writer.drain()
        await ended(reader)
        writer.close()
    assert (await balancer.send(head + chunk))[0] in (0, 413)
    assert balancer.resident_bytes() < before + 16 * 2**20
    assert (await balancer.get("/live"))[0] == 200


async def test_a_stranger_cannot_drain_with_what_is_no_question_of_this_machine(balancer: Balancer) -> None:
    """Bodies, names, pages of a browser: nothing is drained, nothing is kept, and the log stays as short."""
    worker = f"/drain?worker={WORKER['name']}"

    async def drained() -> bool:
        return bool(json.loads((await balancer.get(worker))[1])["drained_by_hand"])

    def post(path: str, *headers: str, body: str = "") -> bytes:
        return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *headers, "", body]).encode()

    log = balancer.log_path.stat().st_size
    huge = (["Content-Length: 10000000000"], ["Transfer-Encoding: chunked"])
    for headers in huge:
        assert (await balancer.send(post(worker, *headers, body="1\r\nx\r\n")))[0] in (0, 413)
    for origin in ("null", "http://evil.example", f"http://{balancer.admin}"):
        assert (await balancer.send(post(worker, f"Origin: {origin}")))[0] == 403
    for query, status in {
        "/drain": 400,
        "/drain?worker=": 400,
        f"/drain?worker={'w' * 300}": 400,
        "/drain?worker=w%00": 404,
        f"{worker}&force=1": 400,
        f"/undrain?worker={WORKER['name']}%0a": 404,
    }.items():
        assert (await balancer.send(post(query)))[0] == status, query
    for number in range(200):
        status, body = await balancer.send(post(f"/drain?worker=w%1b{number}"))
        assert (status, "\x1b" in body) == (404, False)
    assert not await drained()
    assert balancer.log_path.stat().st_size < log + 2000
    assert not await balancer.metric("balancer_handler_errors_total", handler="admin")
    # It is no mere refusal of everything.
    assert (await balancer.send(post(worker)))[0] == 200
    assert await drained()


async def test_whatever_a_stranger_accepts_is_answered_in_a_format_that_there_is(balancer: Balancer) -> None:
    for accept in (
        "application/openmetrics-text;version=x",
        "application/openmetrics-text;version=1.x",
        f"application/openmetrics-text;version={'9' * 4000}",
        f"{'application/openmetrics-text;' * 100}",
        "application/openmetrics-text;version=9.9.9;escaping=nothing",
        ",;,;==",
        "\xff\xfe",
    ):
        status, text = await balancer.get("/metrics", f"Accept: {accept}")
        assert status == 200
        assert text.startswith("# HELP")
        assert accept not in text


async def test_a_stranger_cannot_grow_the_metrics(balancer: Balancer) -> None:
    def names(text: str) -> set[str]:
        return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}

    await balancer.get("/explain?model=m&rows=0")
    before = names((await balancer.get("/metrics"))[1])
    for number in range(300):
        await balancer.get(f"/page{number}?{number}={number}")
        await balancer.get(f"/explain?model=m&field{number}=1")
        await balancer.get(f"/explain?model=m{number}&rows=0")
        await balancer.send(f"BREW{number} / HTTP/1.1\r\n\r\n".encode())
    await eventually(
        lambda: balancer.metric("balancer_refused_inputs_total", message="explain", field="rows"),
        "all were counted",
        until=lambda found: found == 301,
    )
    new = names((await balancer.get("/metrics"))[1]) - before
    assert new == {'balancer_refused_inputs_total{message="explain",field="parameter"}'}


async def test_a_stranger_cannot_read_without_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    balancer = Balancer(tmp_path, admin={"token_file": "token"})
    async with running(balancer):
        pages = (
            "/",
            "/config",
            "/metrics",
            "/workers",
            "/explain?model=m",
            "/recent",
            "/guard",
            "//config",
            "/nothing",
        )
        for page in pages:
            for headers in ((), ("Authorization: Bearer",), ("Authorization: Bearer x",), (f"Authorization: {TOKEN}",)):
                status, body = await balancer.get(page, *headers)
                assert status == 401, (page, headers)
                assert WORKER["name"] not in body
        drain = f"POST /drain?worker={WORKER['name']} HTTP/1.1\r\nHost: x\r\n\r\n"
        assert (await balancer.send(drain.encode()))[0] == 401
        assert (await balancer.get("/workers", f"Authorization: Bearer {TOKEN}"))[0] == 200
        # What asks whether it lives has no token.
        assert (await balancer.get("/live"))[0] == 200
        assert TOKEN not in (tmp_path / "balancer.log").read_text()


async def test_a_stranger_cannot_fill_the_log(balancer: Balancer) -> None:
    log = balancer.log_path
    before = log.stat().st_size
    for number in range(200):
        await balancer.send(b"\x16\x03\x01 no http at all\r\n\r\n")
        await balancer.send(b"GET / HTTP/1.1\r\nno header\r\n\r\n")
        await balancer.get(f"/explain?model={number}&rows=x")
    assert log.stat().st_size < before + 2000
