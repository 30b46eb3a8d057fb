"""Who may read which page, and what happens where one fails."""

import asyncio
import base64
import json
import logging
import math
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.certificates import Authority
from support.fleets import make_router
from support.waiting import eventually

from balancer.config.config import Config
from balancer.config.sections import AdminSection
from balancer.config.watch import ConfigState
from balancer.discovery.workers import WorkerSpec
from balancer.extproc.picker import Picker
from balancer.kernel.settings import SplitSettings
from balancer.scheduler.canary.split import Splits
from balancer.server.admin.pages import Admin
from balancer.server.admin.server import TokenError, read_token
from balancer.server.metrics import Metrics
from balancer.server.page.page_data import AdminSources
from balancer.server.tally import Recent
from balancer.server.workers.drains import Drains
from policies.base import Request

TOKEN = "0123456789abcdef"
SECRET_PAGES = (
    "/",
    "/metrics",
    "/workers",
    "/explain?model=m",
    "/guard",
    "/recent",
    "/config",
    "/page.json",
    "/nothing",
)
OPEN_PAGES = ("/live", "/ready")


class Served:
    """An admin interface of a fleet of three that can be drained, and its metrics."""

    def __init__(self) -> None:
        self.router = make_router(3)
        clock = asyncio.get_running_loop().time
        self.metrics = Metrics(self.router, clock)
        self.drains = Drains(self.router, clock, lambda _: None)
        named = enumerate(self.router.fleet.names)
        self.drains.over(
            tuple(WorkerSpec(name=name, address="10.0.0.1", grpc_port=1 + n, http_port=11 + n) for n, name in named)
        )
        self.splits = Splits()
        self.not_ready = ""
        self.port = 0
        self.read_prompt = Picker(self.router, lambda: 0.1).read_prompt

    async def start(self, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1:0", **options: Any) -> None:
        sources = AdminSources(
            self.router,
            self.metrics,
            lambda: 0.1,
            readiness=lambda: self.not_ready,
            recent=Recent,
            config=ConfigState(Config(), "defaults", 0.0),
            drains=self.drains,
            splits=self.splits,
            read_prompt=self.read_prompt,
        )
        self.admin = Admin(sources, **options)
        self.port = await self.admin.start(address, tls)

    async def ask(
        self, page: str, method: str = "GET", tls: ssl.SSLContext | None = None, **options: Any
    ) -> tuple[int, str]:
        scheme = "http" if tls is None else "https"
        url = f"{scheme}://localhost:{self.port}{page}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, ssl=tls or True, **options) as response,
        ):
            return response.status, await response.text()

    async def change(self, page: str, method: str = "POST", **options: Any) -> tuple[int, Any]:
        status, text = await self.ask(page, method, **options)
        return status, json.loads(text)

    def drained(self) -> list[str]:
        return [name for name in self.router.fleet.names if name in self.drains]

    def errors(self) -> float:
        return self.metrics.handler_errors.labels("admin").value


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    yield served
    await served.admin.stop()


async def test_a_prompt_is_explained_by_the_body_that_its_client_would_send(served: Served) -> None:
    await served.start()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "tide " * 200}]})
    sent = served.router.route(served.read_prompt({}, body.encode()), 0.0)
    status, page = await served.change("/explain", data=body)
    assert status == 200
    assert page["prompt_tokens"] == pytest.approx(len(body) / 4)
    matched = {each["worker"]: each["sees"]["matched_tokens"] for each in page["workers"]}
    assert matched.pop(sent.worker) > 200
    assert set(matched.values()) == {0.0}
    other = await served.change("/explain", data=body, headers={"x-tenant": "other"})
    assert {each["sees"]["matched_tokens"] for each in other[1]["workers"]} == {0.0}


@pytest.mark.parametrize(
    ("query", "body", "status", "words"),
    [
        ("", b"", 400, "is empty"),
        ("", b"[]", 400, "is no JSON"),
        ("", b'{"prompt": "x"}', 400, "is the name of a model"),
        ("?model=m", b'{"model": "m"}', 400, "the body says what is asked"),
        ("", b'{"model": "' + b"m" * 2**20 + b'"}', 413, "too large"),
    ],
)
async def test_a_body_that_cannot_be_explained_is_refused(
    served: Served, query: str, body: bytes, status: int, words: str
) -> None:
    await served.start()
    got, page = await served.change(f"/explain{query}", data=body)
    assert got == status
    assert words in page["error"]


async def test_every_page_is_there_for_get_and_head(served: Served) -> None:
    await served.start()
    for page in (*SECRET_PAGES[:-1], *OPEN_PAGES):
        assert (await served.ask(page))[0] == 200
        assert await served.ask(page, "HEAD") == (200, "")
    assert (await served.ask("/nothing"))[0] == 404


async def test_splits_are_shown_and_explained(served: Served) -> None:
    splits = served.splits
    splits.configure({"m": SplitSettings("1", "2", 1.0)})
    draw = splits.draw(Request("m"))
    assert draw is not None
    splits.ended(draw, math.nan, False, 0.0)
    await served.start()
    (recent,) = json.loads((await served.ask("/recent"))[1])["splits"]
    counted = [{"version": "1", "requests": 0, "errors": 0}, {"version": "2", "requests": 1, "errors": 1}]
    assert recent == {"model": "m", "versions": counted, "returned": ""}
    for page in ("/explain?model=m", "/page.json?model=m"):
        answer = json.loads((await served.ask(page))[1])
        assert answer.get("why", answer)["split"]["gets"] == "2"


async def test_a_page_that_fails_says_nothing_of_how_and_is_logged_once_a_second(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    await served.start()
    served.router.fleet.workers = None  # type: ignore[assignment]  # to break it
    for _ in range(5):
        status, text = await served.ask("/workers")
        assert status == 500
        assert "Traceback" not in text
        assert "NoneType" not in text
    assert served.errors() == 5
    (record,) = (record for record in caplog.records if record.name == "balancer.server.internal_errors")
    assert record.exc_info
    assert (await served.ask("/live"))[0] == 200


async def test_a_browser_is_asked_to_prompt_a_person_for_the_token(served: Served, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    await served.start(section=AdminSection(token_file=str(tmp_path / "token")))
    async with aiohttp.ClientSession() as session, session.get(f"http://localhost:{served.port}/") as response:
        schemes = {value.split()[0] for value in response.headers.getall("WWW-Authenticate")}
    assert schemes == {"Bearer", "Basic"}
    for wrong in ("Basic", "Basic !!!", f"Basic {base64.b64encode(TOKEN.encode()).decode()}", "Basic Og=="):
        assert (await served.ask("/", headers={"Authorization": wrong}))[0] == 401


async def test_a_renewed_token_holds_and_a_bad_one_does_not(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    await served.start(section=AdminSection(token_file=str(file)))

    def renew(text: str) -> None:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").rename(file)

    async def status(token: str) -> int:
        return (await served.ask("/workers", headers={"Authorization": f"Bearer {token}"}))[0]

    async def holds(token: str) -> bool:
        return await status(token) == 200

    renew("f" * 20)
    await eventually(lambda: holds("f" * 20), "the new token holds")
    assert await status(TOKEN) == 401
    renew("")
    file.unlink()
    assert await status("f" * 20) == 200
    assert await status("") == 401
    renew("e" * 20)
    await eventually(lambda: holds("e" * 20), "the third token holds")


@pytest.mark.parametrize("content", ["", "\n", "short", "a" * 20 + "\n" + "b" * 20, "ä" * 20, "a" * 2000, None])
def test_a_file_without_a_token_is_refused_with_the_remedy_and_not_logged(
    content: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TokenError, match=r"admin.token_file: .*(openssl rand|name another|remove the field)") as error:
        read_token(file)
    assert "short" not in str(error.value)
    assert not caplog.records


async def test_a_certificate_without_the_name_is_refused(served: Served, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    _, context = authority.issue("server", dns="localhost").server(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    await served.start(context, client_san="prometheus")

    async def status(*names: str) -> int:
        client = ssl.create_default_context(cafile=str(authority.file))
        if names:
            shown = authority.issue("client", dns=names)
            client.load_cert_chain(shown.cert, shown.key)
        return (await served.ask("/live", tls=client))[0]

    assert await status() == 403
    assert await status("prometheus.evil.example", "prometheus2") == 403
    assert await status("other", "prometheus") == 200


async def test_it_listens_at_a_unix_socket(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    await served.start(address=f"unix:{path}")
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.get("http://admin/live") as response,
    ):
        assert response.status == 200


async def test_the_lag_of_the_event_loop_is_shown(served: Served) -> None:
    await served.start()

    def looked() -> float:
        return sum(served.metrics.loop_lag.counts)

    await eventually(lambda: looked() >= 2, "the loop's lag was looked at")


async def test_a_worker_is_drained_and_undrained_and_the_pages_say_so(served: Served) -> None:
    await served.start()
    status, answer = await served.change("/drain?worker=w1")
    assert (status, answer["worker"], answer["drained_by_hand"]) == (200, "w1", True)
    assert (await served.change("/drain?worker=w1", "GET"))[1]["drained_by_hand"]
    _, page = await served.change("/workers", "GET")
    assert [each["drained_by_hand"] for each in page["workers"]] == [False, True, False]
    assert (await served.change("/undrain?worker=w1"))[0] == 200
    assert not (await served.change("/drain?worker=w1", "GET"))[1]["drained_by_hand"]


@pytest.mark.parametrize(
    ("page", "method", "status", "words"),
    [
        ("/drain?worker=w1", "GET", 200, ""),
        ("/undrain?worker=w1", "GET", 405, "'GET' is refused; here it is: POST"),
        ("/drain?worker=w1", "PUT", 405, "here it is: GET or HEAD or POST"),
        ("/drain", "POST", 400, "worker: '' is refused; it must be given: /drain?worker=NAME"),
        (f"/drain?worker={'w' * 300}", "POST", 400, "256 bytes"),
        ("/drain?worker=w1&force=1", "POST", 400, "parameter: 'force' is refused; it must be worker"),
        ("/drain?worker=w9", "POST", 404, "worker: discovery lists no 'w9'; it lists w0, w1, w2"),
    ],
)
async def test_what_is_no_change_changes_nothing(
    served: Served, page: str, method: str, status: int, words: str
) -> None:
    await served.start()
    found, answer = await served.change(page, method)
    assert (found, words in answer.get("error", "")) == (status, True)
    assert not served.drained()


async def test_where_strangers_reach_the_port_unasked_they_read_and_do_not_drain(served: Served) -> None:
    await served.start(local=False)
    assert (await served.change("/workers", "GET"))[0] == 200
    status, answer = await served.change("/drain?worker=w1")
    assert (status, "set admin.token_file" in answer["error"], served.drained()) == (403, True, [])
