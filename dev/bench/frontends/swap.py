"""How soon a policy decides after its config file was put in place, under load: by the log of the decisions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import cycle
from typing import Any, TextIO

import numpy as np

from benchmarks.client import load_until, write_infer
from benchmarks.results import Aim, Section, Table
from benchmarks.stack import POLICY, Bench

SWAPS = 20
_BETWEEN_S = 0.3
_CLIENTS = 4
_PATIENCE_S = 5.0
_POLL_S = 0.002
_POLICIES = ("round_robin", "peak_ewma", "consistent_hash", "least_requests")


async def measure(bench: Bench) -> Section:
    """Swap again and again while requests flow, and note when the first decision by each new policy was made."""
    gateway = bench.gateway
    swaps = bench.rounds(SWAPS)
    body = bench.directory / "infer-swap"
    answer_bytes = write_infer(body, 64)
    everything = {"log": {"decisions_share": 1.0}}
    gateway.write_config(POLICY, **everything)
    stop = asyncio.Event()
    loading = asyncio.create_task(load_until(stop, gateway.endpoint, body, _CLIENTS))
    taken_s = []
    try:
        with gateway.log_path.open() as log:
            await _first_decision(log, POLICY)
            for _, policy in zip(range(swaps), cycle(_POLICIES), strict=False):
                await asyncio.sleep(_BETWEEN_S)
                log.seek(0, 2)
                renamed_s = time.time()
                gateway.write_config(policy, **everything)
                # The log has milliseconds, rounded down.
                taken_s.append(await _first_decision(log, policy) + 0.001 - renamed_s)
    finally:
        stop.set()
        answers = await loading
        gateway.write_config(POLICY)
    p50_s, most_s = float(np.median(taken_s)), max(taken_s)
    failed = answers.failed(answer_bytes)
    raw: dict[str, Any] = {
        "swaps": swaps,
        "taken_s": taken_s,
        "requests": answers.count,
        "failed": failed,
    }
    row = [f"{swaps}", f"{p50_s * 1e3:.0f}", f"{most_s * 1e3:.0f}", f"{answers.count:,}", f"{failed}"]
    title = f"From renaming the config file to the first decision by the new policy, {_CLIENTS} clients sending"
    table = Table(title, ["swaps", "p50 ms", "largest ms", "requests", "failed"], [row])
    return Section([table], raw, [Aim("Policy swap in force, slowest", most_s, "s", 0.2), _none_failed(failed)])


def _none_failed(failed: int) -> Aim:
    return Aim("Requests failed by swaps", failed, "requests", 0)


async def _first_decision(log: TextIO, policy: str) -> float:
    """When the first decision from here on that `policy` made was logged, seconds since the epoch."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            for record in _new_records(log):
                if record.get("message") == "decision" and record["policy"] == policy:
                    return datetime.fromisoformat(record["time"]).timestamp()
            await asyncio.sleep(_POLL_S)


def _new_records(log: TextIO) -> Iterator[dict[str, Any]]:
    """Whole lines written since the last look."""
    while True:
        at = log.tell()
        line = log.readline()
        if not line.endswith("\n"):
            log.seek(at)
            return
        if line.startswith("{"):
            yield json.loads(line)
