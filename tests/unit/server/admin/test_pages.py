"""Who may read which page, and what happens where one fails."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from support.fleets import make_router
from support.waiting import eventually

from balancer.config.config import Config
from balancer.config.sections import AdminSection
from balancer.config.watch import ConfigState
from balancer.core.settings import SplitSettings
from balancer.core.trials.split import Splits
from balancer.operate.admin import Admin
from balancer.operate.admin.token import TokenError, read_token
from balancer.operate.metrics import Metrics
from balancer.operate.recent import Recent
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
Ask = Callable[..., Awaitable[tuple[int, Any]]]


class Served:
    """An admin interface of a fleet of three, and its metrics."""

    def __init__(self) -> None:
        self.router = make_router(3)
        self.metrics = Metrics(self.router, lambda: asyncio.get_running_loop().time())
        self.not_ready = ""
        self.port = 0

    async def start(self, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        self.admin = Admin(
            self.router,
            self.metrics,
            lambda: 0.1,
            readiness=lambda: self.not_ready,
            recent=Recent,
            config=ConfigState(Config(), "defaults", 0.0),
            **options,
        )
        self.port = await self.admin.start("127.0.0.1:0", tls)

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

    def errors(self) -> float:
        return self.metrics.registry.get_sample_value("balancer_handler_errors_total", {"handler": "admin"}) or 0.0


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    yield served
    await served.admin.stop()


async def test_every_page_is_there_for_get_and_head(served: Served) -> None:
    await served.start()
    for page in (*SECRET_PAGES[:-1], *OPEN_PAGES):
        assert (await served.ask(page))[0] == 200
        assert await served.ask(page, "HEAD") == (200, "")
    assert (await served.ask("/nothing"))[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
async def test_all_other_methods_are_refused(served: Served, method: str) -> None:
    await served.start()
    for page in ("/live", "/config", "/nothing"):
        status, text = await served.ask(page, method)
        assert status == 405
        assert f"{method}' is refused; these pages are only read: GET or HEAD" in text


async def test_splits_are_told_of_and_explained(served: Served) -> None:
    splits = Splits()
    splits.configure({"m": SplitSettings("1", "2", 1.0)})
    lot = splits.draw(Request("m"))
    assert lot is not None
    splits.ended(lot, math.nan, False, 0.0)
    await served.start(splits=splits)
    (recent,) = json.loads((await served.ask("/recent"))[1])["splits"]
    counted = [{"version": "1", "requests": 0, "errors": 0}, {"version": "2", "requests": 1, "errors": 1}]
    assert recent == {"model": "m", "versions": counted, "returned": ""}
    for page in ("/explain?model=m", "/page.json?model=m"):
        told = json.loads((await served.ask(page))[1])
        assert told.get("why", told)["split"]["gets"] == "2"


async def test_a_body_is_refused(served: Served) -> None:
    await served.start()
    assert (await served.ask("/live", data=b"x" * 10))[0] == 413


async def test_a_page_that_fails_says_nothing_of_how_and_is_told_once_a_second(
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
    (record,) = (record for record in caplog.records if record.name == "balancer.operate.mistakes")
    assert record.exc_info
    assert (await served.ask("/live"))[0] == 200


async def test_without_the_token_nobody_reads_but_probes(served: Served, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    await served.start(section=AdminSection(token_file=str(tmp_path / "token")))
    served.not_ready = "no worker"
    for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):
        for page in SECRET_PAGES:
            status, text = await served.ask(page, headers=wrong)
            assert status == 401
            assert TOKEN not in text
        assert (await served.ask("/live", headers=wrong))[0] == 200
        assert (await served.ask("/ready", headers=wrong))[0] == 503
    as_password = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    for right in (f"Bearer {TOKEN}", f"Basic {as_password}"):
        found = [(await served.ask(page, headers={"Authorization": right}))[0] for page in SECRET_PAGES]
        assert found == [*[200] * 8, 404]


async def test_a_browser_is_told_to_ask_a_person_for_the_token(served: Served, tmp_path: Path) -> None:
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
def test_a_file_without_a_token_is_refused_with_the_remedy(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TokenError, match=r"admin.token_file: .*token (must|cannot)"):
        read_token(file)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    import os  # noqa: PLC0415  # of this test alone

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TokenError, match="no regular file"):
        read_token(tmp_path / "pipe")


async def test_a_certificate_without_the_name_is_refused(served: Served) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    await served.start(context, client_san="prometheus")

    async def status(*names: str) -> int:
        client = ssl.create_default_context()
        authority.configure_trust(client)
        if names:
            authority.issue_cert(*names).configure_cert(client)
        return (await served.ask("/live", tls=client))[0]

    assert await status() == 403
    assert await status("prometheus.evil.example", "prometheus2") == 403
    assert await status("other", "prometheus") == 200


async def test_it_listens_at_a_unix_socket(served: Served, tmp_path: Path) -> None:
    await served.start()
    await served.admin.stop()
    served.admin = Admin(
        served.router, served.metrics, lambda: 0.1, lambda: "", Recent, ConfigState(Config(), "defaults", 0.0)
    )
    path = tmp_path / "admin.sock"
    await served.admin.start(f"unix:{path}")
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.get("http://admin/live") as response,
    ):
        assert response.status == 200


async def test_the_lag_of_the_event_loop_is_told(served: Served) -> None:
    await served.start()

    def looked() -> float:
        return served.metrics.registry.get_sample_value("balancer_event_loop_lag_seconds_count") or 0.0

    await eventually(lambda: looked() >= 2, "the loop's lag was looked at")


def test_tokens_are_logged_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "token").write_text("secret")
    with pytest.raises(TokenError) as error:
        read_token(tmp_path / "token")
    assert "secret" not in str(error.value)
    assert not caplog.records
