"""Steady load in the background of a test, every request of which is accounted for."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from balancer.load.result import OK, LoadResult, joined
from balancer.load.runner import DriveOptions, Progress, drive
from balancer.load.workload import LoadWorkload
from support.waiting import PATIENCE_S, eventually

_LONGEST_S = 600.0


@dataclass
class Load:
    """A closed loop of clients; `result` is there once the load has ended."""

    result: LoadResult | None = None
    began_s: float = 0.0
    """On `time.monotonic`."""
    marks: list[tuple[str, float]] = field(default_factory=list)
    finished: int = 0
    """Requests answered so far."""

    async def more(self, requests: int, what: str) -> None:
        """Wait until so many more are answered; `what` they show."""
        before = self.finished
        await eventually(lambda: self.finished > before + requests, what)

    def mark(self, label: str) -> None:
        """A phase begins now."""
        self.marks.append((label, time.monotonic() - self.began_s))

    def phases(self) -> dict[str, LoadResult]:
        """What was sent between each mark and the next, or the end, by label; equal labels are joined."""
        assert self.result is not None
        parts: dict[str, list[LoadResult]] = {}
        for (label, from_s), (_, to_s) in pairwise([*self.marks, ("", self.result.duration_s)]):
            parts.setdefault(label, []).append(self.result.between(from_s, to_s))
        return {label: joined(results) for label, results in parts.items()}

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
        load.began_s, load.finished = time.monotonic() - now.elapsed_s, now.finished
        if now.finished:
            flowing.set()

    options = DriveOptions(
        protocol=protocol, concurrency=clients, duration_s=_LONGEST_S, progress_every_s=0.05, timeout_s=PATIENCE_S
    )
    task = asyncio.create_task(drive(url, workload, options, on_progress=progress, stop=stop))
    try:
        waiting = asyncio.create_task(flowing.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        yield load
    finally:
        stop.set()
        load.result = await task
