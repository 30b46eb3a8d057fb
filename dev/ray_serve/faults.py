"""What it costs when a part of a Ray cluster dies, hangs or is taken away while requests come."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from balancer.stack.stack import OwnStack
from dev.ray_serve.cluster import RayCluster
from dev.ray_serve.stack import Ended, before_ray, drive, until_ready

SECONDS, REPLICAS = (0.03, 0.06), 4
RATE_PER_S, _LOAD_S, _BEFORE_S, _HANGS_S = 40.0, 8.0, 1.0, 3.0
_POLL_S = 0.02
_GIVE_UP_S = 60.0


@dataclass(slots=True)
class Outcomes:
    """What one kind of fault did, each time that it was made."""

    failed: list[int] = field(default_factory=list)
    longest_s: list[float] = field(default_factory=list)
    noticed_s: list[float] = field(default_factory=list)
    well_again_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parts:
    stack: OwnStack
    cluster: RayCluster

    def process(self, title: str) -> psutil.Process:
        """The first process of the cluster of that title."""
        for process in psutil.Process(self.cluster.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if title in " ".join(process.cmdline()):
                    return process
        raise LookupError(f"the cluster has no process {title}")

    async def ready(self) -> int:
        page = await self.stack.get("/workers")
        return sum(worker["ready"] for worker in page["workers"])


Fault = Callable[[Parts], contextlib.AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def _killed(parts: Parts) -> AsyncIterator[None]:
    os.kill((await parts.cluster.replicas())[0]["pid"], signal.SIGKILL)
    yield


@contextlib.asynccontextmanager
async def _hangs(parts: Parts) -> AsyncIterator[None]:
    with _stopped((await parts.cluster.replicas())[0]["pid"]):
        yield


@contextlib.asynccontextmanager
async def _taken_away(parts: Parts) -> AsyncIterator[None]:
    await parts.cluster.configure(REPLICAS - 1, SECONDS)
    yield
    await parts.cluster.configure(REPLICAS, SECONDS)


@contextlib.asynccontextmanager
async def _controller_killed(parts: Parts) -> AsyncIterator[None]:
    parts.process("ServeController").kill()
    yield


@contextlib.asynccontextmanager
async def _dashboard_hangs(parts: Parts) -> AsyncIterator[None]:
    with _stopped(parts.process("dashboard/dashboard.py").pid):
        yield


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


FAULTS: dict[str, tuple[Fault, bool]] = {
    "replica killed": (_killed, True),
    "replica hangs": (_hangs, True),
    "Serve takes one away, and starts one": (_taken_away, True),
    "Serve's controller killed": (_controller_killed, False),
    "the dashboard hangs": (_dashboard_hangs, False),
}
"""By name, and whether the balancer has fewer replicas meanwhile."""


async def measured(times: int) -> dict[str, Outcomes]:
    found = {name: Outcomes() for name in FAULTS}
    with tempfile.TemporaryDirectory(prefix="ray-faults-") as folder:
        async with before_ray(Path(folder), REPLICAS, SECONDS) as (stack, cluster):
            for number in range(times):
                for name, (fault, fewer) in FAULTS.items():
                    await _one(Parts(stack, cluster), fault, fewer, number, found[name])
    return found


async def _one(parts: Parts, fault: Fault, fewer: bool, seed: int, outcomes: Outcomes) -> None:
    load = asyncio.ensure_future(drive(f"http://{parts.stack.url}", RATE_PER_S, _LOAD_S, seed))
    await asyncio.sleep(_BEFORE_S)
    began_s = time.monotonic()
    async with fault(parts):
        if fewer:
            outcomes.noticed_s.append(await _until(lambda: _is(parts, REPLICAS - 1), began_s))
        await asyncio.sleep(max(began_s + _HANGS_S - time.monotonic(), 0.0))
    again_s = time.monotonic()
    await asyncio.wait_for(until_ready(parts.stack, REPLICAS), _GIVE_UP_S)
    outcomes.well_again_s.append(time.monotonic() - again_s)
    ended: Sequence[Ended] = await load
    outcomes.failed.append(sum(each.status != 200 for each in ended))
    outcomes.longest_s.append(max(each.took_s for each in ended))


async def _is(parts: Parts, ready: int) -> bool:
    return await parts.ready() == ready


async def _until(condition: Callable[[], Awaitable[bool]], began_s: float) -> float:
    async with asyncio.timeout(_GIVE_UP_S):
        while not await condition():
            await asyncio.sleep(_POLL_S)
    return time.monotonic() - began_s
