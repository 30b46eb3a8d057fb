"""`balancer check --against` and `balancer top`, asking real admin pages."""

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import socket
import struct
import sys
import termios
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result
from support.fleets import model, report
from support.page_fleet import PageFleet

from balancer.cli import main as cli
from balancer.cli.admin_client import balancers_of
from balancer.config.changes import changes, words_of
from balancer.config.config import from_mapping
from balancer.config.sections import AdminSection
from balancer.server.page.document import DOCUMENT

TOKEN = "0123456789abcdef"
_NO_TLS = "tls_ca", "tls_name", "tls_cert", "tls_key"
Served = tuple[PageFleet, str]


async def run(*arguments: str) -> Result:
    """In a thread: the pages are served by this one."""
    return await asyncio.to_thread(CliRunner().invoke, cli.main, arguments)


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    fleet = PageFleet(3, names={0: "\x1b[2Jevil[bold]"})
    fleet.traffic()
    fleet.break_some()
    monkeypatch.setattr("balancer.server.page.page_data.FRESH_S", 0.0)  # the fleet's clock stands still
    async with fleet.served() as (_, url):
        yield fleet, url


async def test_of_several_balancers_those_that_answer_are_heard_and_the_others_named(served: Served) -> None:
    _, url = served
    said, unheard = await balancers_of((url, "127.0.0.1:1"), None, **dict.fromkeys(_NO_TLS)).get_all("/page.json")
    assert [DOCUMENT.validate_json(page).workers_left_out for page in said] == [0]
    assert len(unheard) == 1
    assert "127.0.0.1:1" in unheard[0]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ({}, 0),
        ({"seed": 1}, 3),
        ({"models": {"m": {"split": {"old": 1, "new": 2}}}}, 3),
        ({"seed": 1, "processes": 2}, 4),
        ({"listen": {"admin": "127.0.0.1:1"}}, 4),
    ],
)
async def test_check_against_says_what_changes_in_the_words_of_the_page(
    served: Served, tmp_path: Path, data: dict[str, Any], status: int
) -> None:
    fleet, url = served
    file = tmp_path / "balancer.yaml"
    new = from_mapping(data)
    file.write_text(str(data))
    result = await run("check", str(file), "--against", url)
    assert result.exit_code == status
    set_fields = new.model_dump(mode="json", exclude_defaults=True)
    words = words_of(changes(fleet.state.config.model_dump(mode="json"), new.model_dump(mode="json"), set_fields))
    assert result.stdout.splitlines() == (words or ["nothing changes"])
    if fleet.state.accept(new, 2.0):
        assert list(fleet.state.history[-1].changes) == words


async def test_what_the_command_line_of_the_balancer_sets_stays(served: Served, tmp_path: Path) -> None:
    fleet, url = served
    fleet.state.overrides = {"seed": 7}
    fleet.state.accept(from_mapping({"seed": 7}), 2.0)
    file = tmp_path / "balancer.yaml"
    file.write_text("seed: 3")
    result = await run("check", str(file), "--against", url)
    assert (result.exit_code, result.stdout) == (0, "nothing changes\n")


async def test_a_bad_file_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "balancer.yaml"
    file.write_text("seed: x")
    result = await run("check", str(file), "--against", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "seed" in result.stderr


@pytest.mark.parametrize("command", [("top", "--once", "--balancer"), ("check", "-", "--against")])
async def test_who_does_not_answer_is_named(command: tuple[str, ...]) -> None:
    result = await asyncio.to_thread(CliRunner().invoke, cli.main, [*command, "127.0.0.1:1"], input="{}")
    assert result.exit_code == 1
    assert "127.0.0.1:1: " in result.stderr
    assert "is listen.admin of a balancer there?" in result.stderr


@pytest.mark.parametrize("body", [b"", b"[]", b'{"config": 3, "overrides": 4}', b"\xff", b"\x1b[2J"])
@pytest.mark.parametrize("status", [200, 302, 500])
async def test_an_answer_that_is_no_balancers_is_refused_and_not_obeyed(body: bytes, status: int) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=body, status=status, headers={"Location": "http://127.0.0.1:1/"})

    async with TestServer(_application(handler)) as server:
        for command in (("top", "--once", "--balancer"), ("check", "-", "--against")):
            url = str(server.make_url(""))
            result = await asyncio.to_thread(CliRunner().invoke, cli.main, [*command, url], input="{}")
            assert result.exit_code == 1
            assert "\x1b" not in result.output
            assert "Traceback" not in result.output


DEEP = 900
"""As deep as JSON may be in Python; what goes over it goes deeper."""
HOSTILE = {
    "deep sections": b'{"overrides": {}, "config": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "deeper than can be read": b'{"config": ' + b"[" * 100_000,
    "empty sections without number": b'{"overrides": {}, "config": {"seed": 1'
    + b"".join(b', "%d": {}' % number for number in range(250_000))
    + b"}}",
    "a name of many parts": b'{"overrides": {}, "config": {"' + b"a." * 200_000 + b'": {}}}',
    "overrides without number": b'{"config": {}, "overrides": {"x": 1'
    + b"".join(b', "%d": 1' % number for number in range(10_000))
    + b"}}",
    "a long override": b'{"config": {}, "overrides": {"' + b"seed" * 100_000 + b'": 1}}',
    "an override that a terminal would obey": b'{"config": {}, "overrides": {"models.\\u001b[2J": 3}}',
    "an override of a file": b'{"config": {}, "overrides": {"policy": {"name": "learned", "file": "/dev/zero"}}}',
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", HOSTILE)
async def test_an_answer_made_to_hang_or_break_the_command_is_refused_in_words(kind: str) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=HOSTILE[kind])

    async with TestServer(_application(handler)) as server:
        arguments = ["check", "-", "--against", str(server.make_url(""))]
        result = await asyncio.to_thread(CliRunner().invoke, cli.main, arguments, input="{}")
    assert result.exit_code == 1, result.output[-500:]
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert len(result.output) < 5_000
    assert all(character.isprintable() or character == "\n" for character in result.output)


def _application(handler: Any) -> web.Application:
    application = web.Application()
    application.router.add_route("*", "/{page}", handler)
    return application


async def test_top_prints_one_table_to_a_pipe(served: Served) -> None:
    _, url = served
    result = await run("top", "--balancer", url, "--once", "--model", "n")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("policy wlpr; decided by the balancer")
    assert any("worker-1" in line and "silent" in line and "its report stream broke" in line for line in lines)
    assert any("worker-2" in line and "not ready" in line for line in lines)
    assert any("gets n" in line for line in lines)
    assert any(line.split()[:2] == ["m", "wlpr"] for line in lines)
    assert any("no report for more than 1 s: worker-1" in line for line in lines)


async def test_top_shows_the_tokens_of_language_models_where_there_are_such(served: Served) -> None:
    fleet, url = served
    assert "prompt tokens" not in (await run("top", "--balancer", url, "--once")).stdout
    fleet.now_s += 60.0
    tells = model("n", memory_tokens=1000, held_tokens=250)
    fleet.router.observe(report(fleet.names[1], 99, [tells], incarnation=9), fleet.now_s)
    shown = (await run("top", "--balancer", url, "--once")).stdout
    assert "prompt tokens" in shown
    assert any(fleet.names[1] in line and " 25% " in line for line in shown.splitlines())


async def test_names_reach_a_terminal_as_text(served: Served) -> None:
    _, url = served
    result = await run("top", "--balancer", url, "--once")
    assert "\x1b" not in result.stdout
    assert "[2Jevil[bold]" in result.stdout


async def test_in_a_terminal_it_goes_on_until_ctrl_c_and_leaves_the_screen_as_it_was(served: Served) -> None:
    fleet, url = served
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    command = (sys.executable, "-m", "balancer", "top", "--balancer", url)
    process = await asyncio.create_subprocess_exec(*command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while fleet.names[2].encode() not in shown:
            shown += await asyncio.to_thread(os.read, ours, 65536)
        fleet.not_ready = "this is new"
        while b"this is new" not in shown:
            shown += await asyncio.to_thread(os.read, ours, 65536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the other end is closed
            while part := await asyncio.to_thread(os.read, ours, 65536):
                shown += part
        assert await process.wait() == 0
    finally:
        os.close(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1
    assert b"Traceback" not in shown


@pytest.mark.parametrize(
    ("address", "options", "says"),
    [
        ("https://127.0.0.1:1", (), "is TLS; give --tls-ca and --tls-name"),
        ("http://127.0.0.1:1", ("--tls-ca", __file__, "--tls-name", "x"), "is plain text; leave --tls-ca out"),
        ("ftp://127.0.0.1:1", (), "is no address of a balancer; write it as 127.0.0.1:8090"),
        ("http://127.0.0.1:1/config", (), "write host:port"),
        ("nowhere", (), "write host:port"),
        ("127.0.0.1:1", ("--tls-ca", __file__), "--tls-ca and --tls-name go together"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [("drain", "w", "--balancer"), ("undrain", "w", "--balancer"), ("top", "--balancer"), ("check", "-", "--against")],
)
def test_an_address_that_is_none_is_refused_alike_by_every_command(
    command: tuple[str, ...], address: str, options: tuple[str, ...], says: str
) -> None:
    result = CliRunner().invoke(cli.main, [*command, address, *options], input="{}")
    assert result.exit_code == 2, result.output
    assert says in result.stderr


@pytest.mark.parametrize("command", [("drain", "w"), ("undrain", "w"), ("top", "--once")])
async def test_a_token_goes_to_nobody_whom_an_answer_names(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    arguments: list[str] = []

    async def elsewhere(request: web.BaseRequest) -> web.Response:
        arguments.append(request.path)
        return web.Response(text="{}")

    async with TestServer(_application(elsewhere)) as thief:

        async def sends_on(request: web.BaseRequest) -> web.Response:
            return web.Response(status=307, headers={"Location": str(thief.make_url("/taken"))})

        async with TestServer(_application(sends_on)) as server:
            address = f"{server.host}:{server.port}"
            result = await run(*command, "--balancer", address, "--token-file", str(file))
    assert (result.exit_code, arguments) == (1, [])
    assert "answers 307" in result.stderr


@pytest.mark.parametrize("command", [("drain", "w"), ("top", "--once")])
async def test_an_answer_without_an_end_is_not_kept(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.cli.admin_client._MOST_BYTES", 1 << 20)

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"x" * 65_536)
        return response

    async with TestServer(_application(endless)) as server:
        result = await run(*command, "--balancer", f"{server.host}:{server.port}")
    assert result.exit_code == 1
    assert "answers with more than 1048576 bytes" in result.stderr


async def test_what_a_balancer_says_of_a_drain_reaches_a_terminal_as_text() -> None:
    async def says(request: web.BaseRequest) -> web.Response:
        return web.json_response({"why": "\x1b[2Jcleared", "draining": True})

    async with TestServer(_application(says)) as server:
        arguments = ("--balancer", f"{server.host}:{server.port}", "--wait", "--timeout", "0")
        result = await run("drain", "w", *arguments)
    assert result.exit_code == 3
    assert "[2Jcleared" in result.stderr
    assert "\x1b" not in result.output


@pytest.mark.parametrize("silent", ["balancer", "name server"])
async def test_waiting_for_a_drain_ends_at_its_timeout_whoever_is_silent(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, enough = 0, threading.Event()

    async def says(request: web.BaseRequest) -> web.Response:
        nonlocal looks
        looks += 1
        if silent == "balancer" and looks > 1:
            await asyncio.Event().wait()
        return web.json_response({"why": "3 in flight", "draining": True})

    def find(host: str, port: int, **how: Any) -> list[Any]:
        if silent == "name server" and looks:
            enough.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    monkeypatch.setattr("balancer.cli.admin_client.socket.getaddrinfo", find)
    async with TestServer(_application(says)) as server:
        arguments = ("--balancer", f"{server.host}:{server.port}", "--wait", "--timeout", "2")
        result = await asyncio.wait_for(run("drain", "w", *arguments), 60)
    enough.set()
    assert result.exit_code == 3, result.output
    assert "not drained after 2 s: " in result.stderr
    assert "3 in flight" in result.stderr


async def test_the_token_is_sent_where_one_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with PageFleet(1).served(section=AdminSection(token_file=str(file))) as (_, url):
        refused = await run("top", "--balancer", url, "--once")
        assert refused.exit_code == 1
        assert "answers 401" in refused.stderr
        result = await run("top", "--balancer", url, "--once", "--token-file", str(file))
        assert result.exit_code == 0
        assert TOKEN not in result.output
