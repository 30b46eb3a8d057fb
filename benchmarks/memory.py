"""Resident memory: of the balancer by the size of its fleet, and of what else a machine or pod carries."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from balancer.discovery.file import dump_workers
from balancer.discovery.workers import WorkerSpec
from balancer.files.yaml_document import dump
from benchmarks import reports
from benchmarks.results import Section, Table
from benchmarks.stack import Bench
from benchmarks.usage import resident_bytes
from tools.stack.child import Child
from tools.stack.ports import free_port_range, free_ports

FLEETS = (8, 64, 1000)
_READY_S = 60.0
_POLL_S = 0.1
_MIB = 2**20


async def measure(bench: Bench) -> Section:
    """Everything, with the stack as the other parts have left it."""
    parts = {
        "envoy": bench.gateway.envoy.process.pid,
        "envoy alone": bench.plain.process.pid,
        "agent": bench.gateway.agents[0].process.pid,
        "balancer, 2 workers, after the traffic since its start": bench.gateway.balancer.process.pid,
    }
    raw: dict[str, Any] = {name: resident_bytes(pid) for name, pid in parts.items()}
    for workers in FLEETS:
        raw[f"balancer, {workers:,} workers"] = await _balancer_bytes(bench.directory / f"fleet-{workers}", workers)
    rows = [[name, f"{size / _MIB:,.0f}"] for name, size in raw.items()]
    title = "Resident memory, MiB; the fleets of 8, 64 and 1,000 report 3 models each, over a connection each"
    return Section([Table(title, ["process", "MiB"], rows)], {f"{name}, bytes": size for name, size in raw.items()})


async def _balancer_bytes(directory: Path, workers: int) -> int:
    """Of `balancer serve` once every worker of a fleet has reported."""
    directory.mkdir()
    reports_port, admin_port = free_ports(2)
    specs = tuple(
        WorkerSpec(name=f"worker-{n}", address="127.0.0.1", grpc_port=1 + 2 * n, http_port=2 + 2 * n)
        for n in range(workers)
    )
    (directory / "workers.yaml").write_text(dump_workers(specs))
    config = {
        "listen": {
            "envoy": f"127.0.0.1:{free_port_range(2)}",
            "reports": f"127.0.0.1:{reports_port}",
            "admin": f"127.0.0.1:{admin_port}",
        },
        "discovery": {"file": "workers.yaml"},
    }
    (directory / "balancer.yaml").write_text(dump(config))
    url = f"http://127.0.0.1:{admin_port}"
    balancer = Child(["serve", "--config", str(directory / "balancer.yaml")], log_path=directory / "balancer.log")
    sender: asyncio.subprocess.Process | None = None
    try:
        await balancer.start()
        await _until(_serves, url)
        sender = await asyncio.create_subprocess_exec(
            sys.executable,
            reports.__file__,
            *("--send-to", f"127.0.0.1:{reports_port}"),
            *("--workers", str(workers)),
            *("--pause", "0.5"),
        )
        await _until(_all_reported, url)
        return resident_bytes(balancer.process.pid)
    finally:
        if sender is not None:
            if sender.returncode is None:
                sender.kill()
            await sender.wait()
        await balancer.stop()


async def _until(condition: Callable[[aiohttp.ClientSession, str], Awaitable[bool]], url: str) -> None:
    async with asyncio.timeout(_READY_S), aiohttp.ClientSession() as session:
        while True:
            # Refused until it listens.
            with contextlib.suppress(aiohttp.ClientError):
                if await condition(session, url):
                    return
            await asyncio.sleep(_POLL_S)


async def _serves(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(f"{url}/live") as response:
        return response.status == 200


async def _all_reported(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(f"{url}/workers") as response:
        workers = (await response.json())["workers"]
        return bool(workers) and all(worker["ready"] for worker in workers)
