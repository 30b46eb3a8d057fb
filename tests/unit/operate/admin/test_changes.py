"""Who may drain a worker at the admin port, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.fleets import make_router

from balancer.config.sections import AdminSection
from balancer.discovery.workers import WorkerSpec
from balancer.operate.admin import Admin
from balancer.operate.drains import Drains
from balancer.operate.metrics import Metrics
from balancer.operate.recent import Recent

TOKEN = "0123456789abcdef"


class Served:
    """An admin port whose fleet can be drained."""

    def __init__(self) -> None:
        self.router = make_router(3)
        clock = asyncio.get_running_loop().time
        self.metrics = Metrics(self.router, clock)
        self.drains = Drains(self.router, clock, lambda _: None)
        named = enumerate(self.router.fleet.names)
        self.drains.over(
            tuple(WorkerSpec(name=name, address="10.0.0.1", grpc_port=1 + n, http_port=11 + n) for n, name in named)
        )

    async def start(self, **options: Any) -> None:
        self.admin = Admin(
            self.router,
            self.metrics,
            lambda: 0.1,
            readiness=lambda: "",
            recent=lambda: Recent().summary(0.1),
            config=lambda: {"last_error": None},
            drains=self.drains,
            **options,
        )
        self.port = await self.admin.start("127.0.0.1:0")

    async def ask(self, page: str, method: str = "POST", **options: Any) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.port}{page}"
        async with aiohttp.ClientSession() as session, session.request(method, url, **options) as response:
            return response.status, json.loads(await response.text())

    def drained(self) -> list[str]:
        return [name for name in self.router.fleet.names if name in self.drains]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    yield served
    await served.admin.stop()


async def test_a_worker_is_drained_and_undrained_and_the_pages_say_so(served: Served) -> None:
    await served.start()
    status, answer = await served.ask("/drain?worker=w1")
    assert (status, answer["worker"], answer["drained_by_hand"]) == (200, "w1", True)
    assert (await served.ask("/drain?worker=w1", "GET"))[1]["drained_by_hand"]
    _, page = await served.ask("/workers", "GET")
    assert [each["drained_by_hand"] for each in page["workers"]] == [False, True, False]
    assert (await served.ask("/undrain?worker=w1"))[0] == 200
    assert not (await served.ask("/drain?worker=w1", "GET"))[1]["drained_by_hand"]


async def test_asking_changes_nothing(served: Served) -> None:
    await served.start()
    assert (await served.ask("/drain?worker=w1", "GET"))[0] == 200
    status, answer = await served.ask("/undrain?worker=w1", "GET")
    assert (status, answer["error"]) == (405, "'GET' is refused; here it is: POST")
    assert (await served.ask("/drain?worker=w1", "PUT"))[0] == 405
    assert not served.drained()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "worker: '' is refused; it must be given: /drain?worker=NAME"),
        ("?worker=", "must be given"),
        (f"?worker={'w' * 300}", "256 bytes"),
        ("?worker=w1&force=1", "parameter: 'force' is refused; it must be worker"),
    ],
)
async def test_what_is_no_question_is_refused_in_words(served: Served, query: str, words: str) -> None:
    await served.start()
    status, answer = await served.ask(f"/drain{query}")
    assert status == 400
    assert words in answer["error"]
    assert not served.drained()


async def test_an_unknown_worker_is_refused_with_the_known_ones(served: Served) -> None:
    await served.start()
    status, answer = await served.ask("/drain?worker=w9")
    assert (status, answer["error"]) == (404, "worker: discovery lists no 'w9'; it lists w0, w1, w2")


async def test_a_web_page_in_a_browser_of_this_machine_changes_nothing(served: Served) -> None:
    await served.start()
    status, answer = await served.ask("/drain?worker=w1", headers={"Origin": f"http://127.0.0.1:{served.port}"})
    assert status == 403
    assert "web pages" in answer["error"]
    assert not served.drained()


async def test_without_the_token_nobody_drains(served: Served, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    await served.start(section=AdminSection(token_file=str(tmp_path / "token")), local=False)
    assert (await served.ask("/drain?worker=w1"))[0] == 401
    assert not served.drained()
    assert (await served.ask("/drain?worker=w1", headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 200
    assert served.drained() == ["w1"]


async def test_where_strangers_reach_the_port_unasked_they_read_and_do_not_drain(served: Served) -> None:
    await served.start(local=False)
    assert (await served.ask("/workers", "GET"))[0] == 200
    status, answer = await served.ask("/drain?worker=w1")
    assert status == 403
    assert "set admin.token_file" in answer["error"]
    assert not served.drained()
