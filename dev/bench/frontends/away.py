"""`native` while the balancer is gone: how soon Envoy chooses, for how long, and that nothing fails."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from balancer.front.folder import CONTROL
from balancer.front.layouts import COUNTS
from balancer.front.module import Module
from balancer.native.library import Library
from benchmarks.client import load_until, write_infer
from benchmarks.frontends.gateways import NATIVE, gateways, new_workers, upstream
from benchmarks.options import Options
from benchmarks.results import Aim, Section, Table
from tools.stack.child import Child

TIMES = 10
_CLIENTS = 4
_BETWEEN_S = 0.5
_AWAY_S = 0.3
"""For which a stopped balancer stays so, at least."""
_POLL_S = 0.002
_PATIENCE_S = 30.0
_TAKES_OVER_S = 0.1


class _Counts:
    """Of the state that the balancer shares now."""

    def __init__(self, folder: Path) -> None:
        self._path, self._module = folder / CONTROL, Module(Library())

    def of(self, name: str) -> int:
        """One of them; 0 where there is no state."""
        try:
            with self._path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
                place = ctypes.c_char.from_buffer(memory)
                count = self._module.call("count", ctypes.addressof(place), list(COUNTS).index(name))
                del place
        except (FileNotFoundError, ValueError):
            return 0
        return int(count)

    def state(self) -> int:
        """Tells the state from another one; 0: there is none."""
        return self._path.stat().st_ino if self._path.exists() else 0

    async def is_another(self, state: int) -> None:
        """Return once there is one that is not that."""
        async with asyncio.timeout(_PATIENCE_S):
            while self.state() in (0, state):
                await asyncio.sleep(_POLL_S)

    async def grows(self, name: str, beyond: int) -> float:
        """Return the time once it is larger."""
        async with asyncio.timeout(_PATIENCE_S):
            while self.of(name) <= beyond:
                await asyncio.sleep(_POLL_S)
        return time.monotonic()


def measure(options: Options) -> Section:
    """Stopped and killed, again and again, under load."""
    with tempfile.TemporaryDirectory(prefix="away-") as folder:
        return asyncio.run(_measure(options, Path(folder)))


async def _measure(options: Options, folder: Path) -> Section:
    workers = new_workers()
    body = folder / "infer"
    answer_bytes = write_infer(body, 64) + 5
    with upstream("upstream.c", [worker.grpc_port for worker in workers], folder):
        async with gateways(options.policy, workers, folder) as all_of_them:
            gateway = all_of_them[NATIVE]
            assert gateway.balancer is not None
            stop = asyncio.Event()
            loading = asyncio.create_task(load_until(stop, gateway.envoy.endpoint, body, _CLIENTS))
            try:
                found = await _faults(gateway.balancer, _Counts(folder / "shared"), options.often(TIMES), folder)
            finally:
                stop.set()
                answers = await loading
    failed = answers.failed(answer_bytes)
    columns = ["", "times", "until Envoy chooses, ms", "largest", "until it decides again, ms", "largest"]
    table = Table(f"`native`, the balancer gone, {_CLIENTS} clients sending", columns)
    for name, seconds in found.items():
        gone_ms, back_ms = np.array(seconds).T * 1e3
        figures = (np.median(gone_ms), gone_ms.max(), np.median(back_ms), back_ms.max())
        table.rows.append([name, f"{len(seconds)}", *(f"{each:,.0f}" for each in figures)])
    slowest_s = max(gone_s for seconds in found.values() for gone_s, _ in seconds)
    aims = [
        Aim("Native: Envoy chooses after the balancer's death, slowest", slowest_s, "s", _TAKES_OVER_S),
        Aim("Native: requests failed while the balancer was gone", failed, "requests", 0),
    ]
    return Section([table], {"seconds": found, "requests": answers.count, "failed": failed}, aims)


async def _faults(balancer: Child, counts: _Counts, times: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Of each fault: until Envoy chooses, and until it decides again by the balancer's state."""
    alive = balancer

    async def stop() -> None:
        alive.process.send_signal(signal.SIGSTOP)

    async def cont() -> None:
        alive.process.send_signal(signal.SIGCONT)

    async def kill() -> None:
        await alive.kill()

    async def start() -> None:
        nonlocal alive
        alive = Child(["serve", "--config", str(folder / f"{NATIVE}.yaml")], log_path=folder / f"{NATIVE}.log")
        await alive.start()

    found: dict[str, list[tuple[float, float]]] = {"stopped": [], "killed": []}
    try:
        for _ in range(times):
            found["stopped"].append(await _one(stop, cont, counts, new_state=False))
            found["killed"].append(await _one(kill, start, counts, new_state=True))
    finally:
        if alive is not balancer:
            await alive.stop()
    return found


async def _one(
    fault: Callable[[], Awaitable[Any]], mend: Callable[[], Awaitable[Any]], counts: _Counts, *, new_state: bool
) -> tuple[float, float]:
    await asyncio.sleep(_BETWEEN_S)
    await counts.grows("picked", counts.of("picked"))
    before, began_s = counts.of("least_stale"), time.monotonic()
    await fault()
    gone_s = await counts.grows("least_stale", before)
    await asyncio.sleep(_AWAY_S)
    picked, state = counts.of("picked"), counts.state()
    await mend()
    if new_state:
        await counts.is_another(state)
        picked = 0
    back_s = await counts.grows("picked", picked)
    return gone_s - began_s, back_s - began_s
