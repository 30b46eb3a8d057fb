"""What clients feel while the balancer hangs, is killed, and is back: latency in each time, and that nothing fails."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import numpy as np

from benchmarks.client import load_until, write_infer
from benchmarks.results import Aim, Section, Table
from benchmarks.stack import Bench

_CLIENTS = 4
_PHASE_S = 2.0
_DETECTED_S = 0.8
"""Envoy's health check of the balancer has failed by then (0.25 s between checks, 0.5 s for an answer)."""
_LEAD_S = 0.3


async def measure(bench: Bench) -> Section:
    """One run through all of it."""
    gateway = bench.gateway
    body = bench.directory / "infer-fallback"
    answer_bytes = write_infer(body, 64)
    marks: list[tuple[str, float]] = []
    stop = asyncio.Event()
    loading = asyncio.create_task(load_until(stop, gateway.endpoint, body, _CLIENTS))
    try:
        await asyncio.sleep(_LEAD_S)
        marks.append(("picked", time.time()))
        await asyncio.sleep(_PHASE_S)
        gateway.balancer.process.send_signal(signal.SIGSTOP)
        marks += [("stopped, not noticed yet", time.time()), ("stopped", time.time() + _DETECTED_S)]
        await asyncio.sleep(_DETECTED_S + _PHASE_S)
        gateway.balancer.process.send_signal(signal.SIGCONT)
        # Envoy needs a health check to come back.
        marks.append(("continued", time.time() + _DETECTED_S))
        await asyncio.sleep(_DETECTED_S + _PHASE_S)
        await gateway.balancer.kill()
        marks.append(("killed", time.time()))
        await asyncio.sleep(_PHASE_S)
        marks.append(("killed, starting again", time.time()))
        await gateway.start_balancer()
        await gateway.wait_ready()
    finally:
        stop.set()
        answers = await loading
    ends = [at_s for _, at_s in marks[1:]] + [np.inf]
    table = Table(f"The balancer gone, {_CLIENTS} clients sending", ["", "requests", "p50 ms", "p99 ms", "largest ms"])
    raw: dict[str, Any] = {}
    for (name, from_s), to_s in zip(marks, ends, strict=True):
        latency_ms = answers.latency_s[(answers.started_s >= from_s) & (answers.started_s < to_s)] * 1e3
        if not len(latency_ms):
            continue
        p50, p99, most = np.percentile(latency_ms, [50, 99, 100])
        raw[name] = {"requests": len(latency_ms), "p50_ms": p50, "p99_ms": p99, "max_ms": most}
        table.rows.append([name, f"{len(latency_ms):,}", f"{p50:.2f}", f"{p99:.2f}", f"{most:.0f}"])
    failed = answers.failed(answer_bytes)
    return Section([table], raw | {"failed": failed}, [Aim("Requests failed without balancer", failed, "requests", 0)])
