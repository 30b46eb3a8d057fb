"""What the parts take of a machine: resident memory, by the size of the fleet, and CPU time while no requests flow."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from balancer.discovery.workers import WorkerSpec
from balancer.stack.stack import READY_S, OwnStack
from dev.bench import reports
from dev.bench.client import load, write_infer
from dev.bench.machine import CpuMeter, resident_bytes
from dev.bench.results import Options, Table
from dev.stack import new_tritons

FLEETS = (8, 64, 1000)
_UNTIL_QUIET_S = 5.0
_IDLE_S = 30.0
_LOADED_S = 10.0
_POLL_S = 0.1
_ALL_REPORTED_S = 180.0
_MIB = 2**20


def idle(options: Options) -> list[Table]:
    """CPU time of what waits for requests: the balancer of two workers, an agent, Envoy."""
    return asyncio.run(_idle(options))


async def _idle(options: Options) -> list[Table]:
    async with _running() as stack:
        parts = stack.parts()
        names = {"balancer, 2 workers": "balancer", "agent": "worker-0-agent", "envoy": "envoy"}
        await asyncio.sleep(_UNTIL_QUIET_S)
        meter = CpuMeter({title: [parts[name].process.pid] for title, name in names.items()})
        duration_s = options.seconds(_IDLE_S)
        await asyncio.sleep(duration_s)
        percent = {title: 100 * spent_s / duration_s for title, spent_s in meter.spent_s().items()}
        stack.check()
    rows = [[title, f"{value:.2f}"] for title, value in percent.items()]
    title = f"CPU time while no requests flow, over {duration_s:.0f} s"
    return [Table(title, ["process", "% of a core"], rows)]


def memory(options: Options) -> list[Table]:
    """Of the balancer by the size of its fleet, and of what else a machine or pod carries."""
    raw = asyncio.run(_memory(options))
    rows = [[name, f"{size / _MIB:,.0f}"] for name, size in raw.items()]
    title = "Resident memory, MiB; the fleets of 8, 64 and 1,000 report 3 models each, over a connection each"
    return [Table(title, ["process", "MiB"], rows)]


async def _memory(options: Options) -> dict[str, int]:
    async with _running() as stack:
        body = stack.directory / "infer"
        write_infer(body, 64)
        await load(stack.url, body, options.seconds(_LOADED_S), clients=8)
        parts = stack.parts()
        names = {"envoy": "envoy", "agent": "worker-0-agent", "balancer, 2 workers, after some traffic": "balancer"}
        sizes = {title: resident_bytes(parts[name].process.pid) for title, name in names.items()}
        for workers in FLEETS:
            directory = stack.directory / f"fleet-{workers}"
            sizes[f"balancer, {workers:,} workers"] = await _balancer_bytes(directory, workers)
    return sizes


@contextlib.asynccontextmanager
async def _running() -> AsyncIterator[OwnStack]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        async with OwnStack(Path(name) / "stack", tritons=new_tritons(Path(name))) as stack:
            yield stack


async def _balancer_bytes(directory: Path, workers: int) -> int:
    """Of `balancer serve` once every worker of a fleet has reported."""
    listed = [
        WorkerSpec(name=f"worker-{n}", address="127.0.0.1", grpc_port=1 + 2 * n, http_port=2 + 2 * n)
        for n in range(workers)
    ]
    stack = OwnStack(directory, listed=listed, settings={"envoy": {"frontend": "pick"}})
    # No Envoy is there that it could wait for.
    del stack.addresses["envoy"]["ready_after_listener"]
    sender: asyncio.subprocess.Process | None = None
    try:
        stack.prepare()
        await stack.start_balancer()
        await stack.balancer.answers(f"{stack.admin()}/live", READY_S)
        sender = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", reports.__name__, stack.config.listen.reports_address(0), str(workers), "0.5")
        )
        async with asyncio.timeout(_ALL_REPORTED_S):
            while not await _all_reported(stack):
                await asyncio.sleep(_POLL_S)
        return resident_bytes(stack.balancer.process.pid)
    finally:
        if sender is not None:
            if sender.returncode is None:
                sender.kill()
            await sender.wait()
        await stack.stop()


async def _all_reported(stack: OwnStack) -> bool:
    page: Any = await stack.get("/workers")
    return bool(page and page["workers"]) and all(worker["ready"] for worker in page["workers"])
