"""`balancer up` as a user runs it: all starts together, and all stops together, with the reason."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest
from support.waiting import eventually

from balancer.front.folder import default_folder
from tools.stack.ports import free_ports

pytestmark = pytest.mark.integration


@dataclass
class Up:
    process: asyncio.subprocess.Process
    port: int
    admin_port: int
    output: Path

    def parts(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    async def ready(self) -> bool:
        assert self.process.returncode is None, self.output.read_text()
        try:
            url = f"http://127.0.0.1:{self.admin_port}/ready"
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def up(directory: Path, *arguments: str) -> AsyncIterator[Up]:
    port, admin_port = free_ports(2)
    output = directory / "output"
    options = ["--workers", "1", "--port", str(port), "--admin-port", str(admin_port), *arguments]
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "balancer", "up", *options, "--run-dir", str(directory / "run")),
            stdout=file,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield Up(process, port, admin_port, output)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def said(running: Up) -> str:
    return " ".join(running.output.read_text().split())


def alive(parts: list[psutil.Process]) -> list[psutil.Process]:
    return [part for part in parts if part.is_running() and part.status() != psutil.STATUS_ZOMBIE]


async def test_ready_means_that_requests_are_served_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    async with up(tmp_path, "--policy", "wlpr") as running:
        await eventually(running.ready, "ready")
        await eventually(lambda: "policy: wlpr, decided by: Envoy (native)" in said(running), "it says what runs")
        shared = default_folder(str((tmp_path / "run").resolve()))
        assert shared.exists()
        url = f"http://127.0.0.1:{running.port}/v2/models/digits/ready"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert response.status == 200
        parts = running.parts()
        assert {"envoy", "tritonserver"} <= {part.name() for part in parts}
        running.process.send_signal(signal.SIGINT)
        assert await running.process.wait() == 0
    assert not alive(parts)
    assert not shared.exists()


async def test_the_end_of_a_part_stops_all_and_says_which_and_why(tmp_path: Path) -> None:
    async with up(tmp_path) as running:
        await eventually(running.ready, "ready")
        parts = running.parts()
        next(part for part in parts if part.name() == "tritonserver").kill()
        assert await running.process.wait() == 1
    assert not alive(parts)
    said = running.output.read_text()
    assert "worker-0 was killed by SIGKILL, so all is stopped" in said
    assert "Traceback" not in said


async def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with up(tmp_path, "--port", port) as running:
            assert await running.process.wait() == 1
    assert f"--port {port} cannot be used" in running.output.read_text()


async def test_a_second_stack_in_the_same_place_is_refused(tmp_path: Path) -> None:
    async with up(tmp_path) as running:
        await eventually(running.ready, "ready")
        command = [sys.executable, "-m", "balancer", "up", "--run-dir", str(tmp_path / "run")]
        second = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await second.communicate()
        assert second.returncode == 1
        assert "belongs to a running balancer up" in said.decode()
