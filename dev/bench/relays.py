"""What the reports of many agents cost a balancer, by streams of their own and by relays of 64 agents each.

The balancer is this process: its collectors, and its estimators behind them, with no requests. Agents are emulated:
streams of one other process, each with the reports of three busy models.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import psutil
import uvloop

from balancer.kernel.compiled.library import Compiled, Library
from balancer.reports.collector import SERVER_OPTIONS, Collector
from balancer.reports.intake import Intake
from balancer.reports.relayed import RelayCollector
from balancer.reports.relaying import Relay
from balancer.scheduler.events import Event, Report, WorkerAdded
from balancer.scheduler.router import Router
from balancer.stack.process import Child, free_ports
from dev.bench import reports
from dev.bench.machine import CpuMeter
from dev.bench.results import Options, Table
from policies.expected_latency import ExpectedLatency

RACK = 64
_AGENTS = ((64, 20.0), (1000, 1.0))
"""And the reports of each a second: as many as two cores can send beside what is measured."""
_BEYOND = (1000, 10.0)
"""Workers and reports of each that are more than the balancer lets relays bring."""
_PERIOD_S = 0.05
_DURATION_S = 12.0
_ALL_REPORTED_S = 120.0
_SETTLES_S = 5.0

_Sending = Callable[[str, int, float, int], AbstractAsyncContextManager[list[int]]]
"""Given the balancer, workers, reports of each a second, and relays: sends them; the processes of the relays."""


def measure(options: Options) -> list[Table]:
    """CPU time of the balancer and of its relays, and how old reports are once they are taken in."""
    rows = []
    for agents, rate_hz in _AGENTS:
        for way, relays in (("directly", 0), ("by relays", -(-agents // RACK))):
            figures = uvloop.run(_measured(_by_agents, agents, rate_hz, relays, options))
            rows.append([f"{agents:,} agents, {rate_hz:g} a second each, {way}", *figures])
    workers, rate_hz = _BEYOND
    figures = uvloop.run(_measured(_by_relays_alone, workers, rate_hz, -(-workers // RACK), options))
    rows.append([f"{workers:,} workers, {rate_hz:g} a second each, by relays without agents", *figures])
    columns = ["", "taken in a second", "age, ms: p50", "p99", "CPU of the balancer, %", "µs a report", "of a relay, %"]
    return [Table("Reports directly and by relays of 64 agents each", columns, rows)]


@asynccontextmanager
async def _by_agents(balancer: str, workers: int, rate_hz: float, relays: int) -> AsyncIterator[list[int]]:
    """Emulated agents, and real relays between them and the balancer as far as there are any; the relays' ids."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(relays)]
        parts = [
            Child(["relay", "--listen", address, "--balancer", balancer], log_path=Path(folder) / f"{number}.log")
            for number, address in enumerate(addresses)
        ]
        try:
            await asyncio.gather(*(part.start() for part in parts))
            targets = ",".join(addresses or [balancer])
            async with _sender(reports.__name__, targets, workers, 1.0 / rate_hz):
                yield [part.process.pid for part in parts]
        finally:
            await asyncio.gather(*(part.stop() for part in parts if part.started))


@asynccontextmanager
async def _by_relays_alone(balancer: str, workers: int, rate_hz: float, relays: int) -> AsyncIterator[list[int]]:
    """Relays in one process, which are given reports as if agents had sent them."""
    async with _sender(__name__, balancer, workers, rate_hz, relays):
        yield []


@asynccontextmanager
async def _sender(*arguments: object) -> AsyncIterator[None]:
    sender = await asyncio.create_subprocess_exec(sys.executable, "-m", *map(str, arguments))
    try:
        yield
    finally:
        if sender.returncode is None:
            sender.kill()
        await sender.wait()


async def _measured(sending: _Sending, workers: int, rate_hz: float, relays: int, options: Options) -> list[str]:
    router, ages_ms, heard = Router(ExpectedLatency(), kernel=Compiled(Library())), list[float](), set[str]()
    for index in range(workers):
        router.observe(WorkerAdded(f"worker-{index}"), 0.0)
    clock = asyncio.get_running_loop().time

    def on_event(event: Event) -> None:
        if isinstance(event, Report):
            ages_ms.append(time.monotonic_ns() / 1e6 - event.memory_used_bytes / 1e3)
            heard.add(event.worker)
        router.observe(event, clock())

    intake = Intake(on_event)
    server = grpc.aio.server(options=[*SERVER_OPTIONS, ("grpc.so_reuseport", 0)])
    for collector in (Collector(intake, silence_s=60.0), RelayCollector(intake, silence_s=60.0)):
        collector.add_to(server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with sending(address, workers, rate_hz, relays) as pids:
            async with asyncio.timeout(_ALL_REPORTED_S):
                while len(heard) < workers:
                    await asyncio.sleep(0.1)
            await asyncio.sleep(_SETTLES_S)
            meter = CpuMeter({"relays": pids})
            before, began_s, cpu_s = len(ages_ms), clock(), _own_cpu_s()
            await asyncio.sleep(options.seconds(_DURATION_S))
            lasted_s, cpu_s, relays_s = clock() - began_s, _own_cpu_s() - cpu_s, meter.spent_s()["relays"]
            taken = ages_ms[before:]
    finally:
        await server.stop(None)
    p50_ms, p99_ms = np.percentile(taken, (50, 99)).tolist()
    return [
        f"{len(taken) / lasted_s:,.0f}",
        f"{p50_ms:.0f}",
        f"{p99_ms:.0f}",
        f"{100 * cpu_s / lasted_s:.0f}",
        f"{1e6 * cpu_s / len(taken):.0f}",
        f"{100 * relays_s / lasted_s / relays:.0f}" if pids else "",
    ]


def _own_cpu_s() -> float:
    spent = psutil.Process().cpu_times()
    return float(spent.user + spent.system)


async def _relay(balancer: str, workers: int, rate_hz: float, relays: int) -> None:
    """Relays without agents, until killed."""
    async with asyncio.TaskGroup() as group:
        for rack in range(relays):
            relay = Relay([balancer], None, _PERIOD_S)
            group.create_task(relay.run())
            names = [f"worker-{index}" for index in range(rack * workers // relays, (rack + 1) * workers // relays)]
            group.create_task(_report(relay, names, rate_hz))


async def _report(relay: Relay, workers: list[str], rate_hz: float) -> None:
    streams = [reports.busy_reports(worker) for worker in workers]
    while True:
        now_us = time.monotonic_ns() // 1000
        for stream in streams:
            relay.observe(replace(next(stream), memory_used_bytes=now_us))
        await asyncio.sleep(1.0 / rate_hz)


if __name__ == "__main__":
    uvloop.run(_relay(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
