"""Steady load in the background of a test, every request of which is accounted for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from balancer.load.result import OK, LoadResult, Marks
from balancer.load.runner import DriveOptions, Progress, drive
from balancer.load.workload import LoadWorkload
from support.waiting import PATIENCE_S, eventually

_LONGEST_S = 600.0


@dataclass
class Load:
    """A closed loop of clients; `result` is there once the load has ended."""

    result: LoadResult | None = None
    marks: Marks = field(default_factory=Marks)
    """Cut the result into phases."""
    finished: int = 0
    """Requests answered so far."""

    async def more(self, requests: int, what: str) -> None:
        """Wait until so many more are answered; `what` they show."""
        before = self.finished
        await eventually(lambda: self.finished > before + requests, what)

    def failures(self) -> Counter[str]:
        """Requests that failed, by code."""
        assert self.result is not None
        codes = Counter(self.result.codes[code] for code in self.result.code)
        codes.pop(OK, None)
        return codes


@asynccontextmanager
async def steady_load(
    url: str, model: str = "emulated_tft", clients: int = 6, protocol: Literal["grpc", "http"] = "grpc"
) -> AsyncIterator[Load]:
    """Keep `clients` requests in flight while the block runs; then wait for the last answers."""
    workload = LoadWorkload((model,), np.zeros(1), np.zeros(1, np.int64), np.ones(1, np.int64), np.full(1, np.inf))
    load, stop, flowing = Load(), asyncio.Event(), asyncio.Event()

    def progress(now: Progress) -> None:
        load.finished = now.finished
        if now.finished:
            flowing.set()

    options = DriveOptions(
        protocol=protocol, concurrency=clients, duration_s=_LONGEST_S, progress_every_s=0.05, timeout_s=PATIENCE_S
    )
    task = asyncio.create_task(drive(url, workload, options, marks=load.marks, on_progress=progress, stop=stop))
    try:
        waiting = asyncio.create_task(flowing.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        yield load
    finally:
        stop.set()
        load.result = await task
