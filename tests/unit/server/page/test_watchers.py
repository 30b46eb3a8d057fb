"""Server-sent events: how many may watch, what a slow reader costs, and that nothing is made for nobody."""

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest
from support.page_fleet import PageFleet
from support.waiting import eventually

from balancer.server.admin.pages import Admin

EVENTS = "/page/events"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> PageFleet:
    monkeypatch.setattr("balancer.server.page.html.PERIOD_S", 0.01)
    monkeypatch.setattr("balancer.server.page.page_data.FRESH_S", 0.0)
    return PageFleet(3)


def made(admin: Admin) -> int:
    return admin._page_data.made


async def event(response: aiohttp.ClientResponse) -> Any:
    """The next one."""
    while not (line := await response.content.readline()).startswith(b"data: "):
        assert line, "the stream ended"
    return json.loads(line.removeprefix(b"data: "))


async def test_events_go_on_and_nothing_is_made_once_nobody_watches(fleet: PageFleet) -> None:
    async with fleet.served() as (admin, url), aiohttp.ClientSession() as session:
        assert made(admin) == 0
        async with session.get(f"{url}{EVENTS}?model=n") as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            for _ in range(3):
                assert (await event(response))["why"]["model"] == "n"
        await eventually(lambda: not len(admin._streams), "it is gone")
        before = made(admin)
        async with session.get(f"{url}/live") as response:
            assert response.status == 200
        await asyncio.sleep(0)
        assert made(admin) == before


async def test_one_too_many_is_refused_in_words(fleet: PageFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.server.admin.pages.MOST_STREAMS", 1)
    async with (
        fleet.served() as (_, url),
        aiohttp.ClientSession() as session,
        session.get(f"{url}{EVENTS}") as watching,
    ):
        await event(watching)
        async with session.get(f"{url}{EVENTS}") as refused:
            assert refused.status == 503
            assert (await refused.json())["error"].startswith("1 pages are open and updated, which is as many as")
        async with session.get(f"{url}/page.json") as answered:
            assert answered.status == 200


async def test_who_does_not_read_is_cut_off_and_makes_nothing_grow(
    fleet: PageFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("balancer.server.admin.pages.REQUEST_TIMEOUT_S", 3.0)
    for number in range(100):  # documents that soon fill what the system keeps for a reader
        fleet.events.add("worker", "info", f"{number} {'x' * 390}")
    async with fleet.served() as (admin, url):
        port = int(url.rpartition(":")[2])
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", port))
        silent.sendall(f"GET {EVENTS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await eventually(lambda: len(admin._streams) == 1, "it watches")
        made_at = -1

        async def waits() -> bool:
            """Whether nothing more is made for it."""
            nonlocal made_at
            before, made_at = made_at, made(admin)
            await asyncio.sleep(0.5)
            return before == made_at

        await eventually(waits, "it is waited for")
        await eventually(lambda: len(admin._streams) == 0, "it is cut off")
        silent.close()
        assert fleet.metrics.admin_closed.totals() == {"timeout": 1}


async def test_who_reads_may_stay_longer_than_one_answer_may_take(fleet: PageFleet) -> None:
    async with fleet.served() as (admin, url), aiohttp.ClientSession() as session:

        def cut_off_s() -> float:
            """When the connection is to be cut off, on the loop's clock."""
            (deadline,) = admin._server._deadlines.values()
            return deadline.when()

        async with session.get(f"{url}{EVENTS}") as response:
            assert await event(response)
            first_s = cut_off_s()
            assert await event(response)
            assert await event(response)
            assert cut_off_s() > first_s


async def test_the_end_of_the_balancer_ends_them_at_once(fleet: PageFleet) -> None:
    async with aiohttp.ClientSession() as session:
        async with fleet.served() as (_, url):
            response = await session.get(f"{url}{EVENTS}")
            await event(response)
        async with asyncio.timeout(30):
            while await response.content.readline():
                pass


async def test_a_head_opens_no_stream_and_what_is_out_of_bounds_is_refused(fleet: PageFleet) -> None:
    async with fleet.served() as (admin, url), aiohttp.ClientSession() as session:
        async with session.head(f"{url}{EVENTS}") as response:
            assert response.status == 200
        for page in (EVENTS, "/page.json"):
            async with session.get(f"{url}{page}?model={'m' * 300}") as response:
                assert response.status == 400
                assert "256 bytes" in (await response.json())["error"]
        assert made(admin) == 0


async def test_the_page_of_another_site_reads_nothing_but_may_link_here(fleet: PageFleet) -> None:
    async with fleet.served() as (admin, url), aiohttp.ClientSession() as session:
        for page in (EVENTS, "/page.json", "/config"):
            headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
            async with session.get(f"{url}{page}", headers=headers) as response:
                assert response.status == 403
        assert made(admin) == 0
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        async with session.get(f"{url}/", headers=headers) as response:
            assert response.status == 200
