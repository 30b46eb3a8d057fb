"""The balancer gone: how soon Envoy chooses by itself, what clients feel meanwhile, and that nothing fails.

With `native` the shared state's counts say who decides. With `pick` the latency tells it: requests wait for a balancer
that hangs until Envoy's health check has failed.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from balancer.kernel.compiled.library import Library
from balancer.native.envoy_module import Module
from balancer.native.layouts import COUNTS
from balancer.native.state import CONTROL
from balancer.stack.stack import READY_S, OwnStack
from dev.bench.client import Answers, load_until, write_infer
from dev.bench.frontends.gateways import ANSWER_BYTES, NATIVE, PICK, Gateway, gateways, new_workers, upstream
from dev.bench.results import Options, Table

TIMES = 10
_CLIENTS = 4
_BETWEEN_S = 0.5
_AWAY_S = 0.3
"""For which a stopped balancer stays so, at least."""
_POLL_S = 0.002
_PATIENCE_S = 30.0
_PHASE_S = 2.0
_DETECTED_S = 0.8
"""Envoy's health check of the balancer has failed by then (0.25 s between checks, 0.5 s for an answer)."""


class _Counts:
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
        async with asyncio.timeout(_PATIENCE_S):
            while self.state() in (0, state):
                await asyncio.sleep(_POLL_S)

    async def grows(self, name: str, beyond: int) -> float:
        async with asyncio.timeout(_PATIENCE_S):
            while self.of(name) <= beyond:
                await asyncio.sleep(_POLL_S)
        return time.monotonic()


def measure(options: Options) -> list[Table]:
    with tempfile.TemporaryDirectory(prefix="away-") as folder:
        return asyncio.run(_measure(options, Path(folder)))


async def _measure(options: Options, folder: Path) -> list[Table]:
    workers, body = new_workers(), folder / "infer"
    write_infer(body, 64)
    with upstream("upstream.c", [worker.grpc_port for worker in workers], folder):
        async with gateways(workers, folder) as made:

            async def under_load(gateway: Gateway, work: Callable[[OwnStack], Awaitable[Any]]) -> tuple[Any, Answers]:
                assert gateway.stack is not None
                stop = asyncio.Event()
                loading = asyncio.create_task(load_until(stop, gateway.envoy.endpoint, body, _CLIENTS))
                try:
                    found = await work(gateway.stack)
                finally:
                    stop.set()
                    answers = await loading
                return found, answers

            times = options.often(TIMES)
            faults, native = await under_load(made[NATIVE], lambda stack: _faults(stack, times))
            marks, pick = await under_load(made[PICK], _phases)
    return _tables(faults, native.failed(ANSWER_BYTES), marks, pick)


def _tables(
    faults: dict[str, list[tuple[float, float]]], native_failed: int, marks: Sequence[tuple[str, float]], pick: Answers
) -> list[Table]:
    columns = ["", "times", "until Envoy chooses, ms", "largest", "until it decides again, ms", "largest"]
    title = f"`native`, the balancer gone, {_CLIENTS} clients sending"
    gone = Table(title, columns, note=f"Requests failed: {native_failed}.")
    for name, seconds in faults.items():
        gone_ms, back_ms = np.array(seconds).T * 1e3
        figures = (np.median(gone_ms), gone_ms.max(), np.median(back_ms), back_ms.max())
        gone.rows.append([name, f"{len(seconds)}", *(f"{each:,.0f}" for each in figures)])
    title = f"The balancer gone, {_CLIENTS} clients sending"
    note = f"Requests failed: {pick.failed(ANSWER_BYTES)}."
    unanswered = Table(title, ["", "requests", "p50 ms", "p99 ms", "largest ms"], note=note)
    ends = [at_s for _, at_s in marks[1:]] + [np.inf]
    for (name, from_s), to_s in zip(marks, ends, strict=True):
        latency_ms = pick.latency_s[(pick.started_s >= from_s) & (pick.started_s < to_s)] * 1e3
        if len(latency_ms):
            p50, p99, most = np.percentile(latency_ms, [50, 99, 100])
            unanswered.rows.append([name, f"{len(latency_ms):,}", f"{p50:.2f}", f"{p99:.2f}", f"{most:.0f}"])
    return [gone, unanswered]


async def _phases(stack: OwnStack) -> list[tuple[str, float]]:
    await asyncio.sleep(_AWAY_S)
    marks = [("picked", time.time())]
    await asyncio.sleep(_PHASE_S)
    stack.balancer.process.send_signal(signal.SIGSTOP)
    marks += [("stopped, not noticed yet", time.time()), ("stopped", time.time() + _DETECTED_S)]
    await asyncio.sleep(_DETECTED_S + _PHASE_S)
    stack.balancer.process.send_signal(signal.SIGCONT)
    # Envoy needs a health check to come back.
    marks.append(("continued", time.time() + _DETECTED_S))
    await asyncio.sleep(_DETECTED_S + _PHASE_S)
    await stack.balancer.kill()
    marks.append(("killed", time.time()))
    await asyncio.sleep(_PHASE_S)
    marks.append(("killed, starting again", time.time()))
    await stack.start_balancer()
    await stack.envoy.wait_asks(READY_S)
    return marks


async def _faults(stack: OwnStack, times: int) -> dict[str, list[tuple[float, float]]]:
    """Of each fault: until Envoy chooses, and until it decides again by the balancer's state."""
    counts = _Counts(Path(stack.settings["envoy"]["shared_folder"]))

    async def stop() -> None:
        stack.balancer.process.send_signal(signal.SIGSTOP)

    async def cont() -> None:
        stack.balancer.process.send_signal(signal.SIGCONT)

    async def kill() -> None:
        await stack.balancer.kill()

    found: dict[str, list[tuple[float, float]]] = {"stopped": [], "killed": []}
    for _ in range(times):
        found["stopped"].append(await _one(stop, cont, counts, new_state=False))
        found["killed"].append(await _one(kill, stack.start_balancer, counts, new_state=True))
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
