"""How soon a policy decides after its config file was put in place, under load: by the log of the decisions."""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from balancer.stack.stack import OwnStack
from dev.bench.client import load_until, write_infer
from dev.bench.frontends.gateways import ANSWER_BYTES, PICK, balanced, new_workers, upstream
from dev.bench.results import Options, Table
from dev.stack import POLICY

SWAPS = 20
_BETWEEN_S = 0.3
_CLIENTS = 4
_PATIENCE_S = 5.0
_POLL_S = 0.002
_POLICIES = ("round_robin", "peak_ewma", "consistent_hash", "least_requests")


def measure(options: Options) -> list[Table]:
    """Swap again and again while requests flow, and note when the first decision by each new policy was made."""
    with tempfile.TemporaryDirectory(prefix="swap-") as folder:
        return asyncio.run(_measure(options, Path(folder)))


async def _measure(options: Options, folder: Path) -> list[Table]:
    workers, body, stop = new_workers(), folder / "infer", asyncio.Event()
    write_infer(body, 64)
    everything = {"log": {"decisions_share": 1.0}}
    async with AsyncExitStack() as running:
        running.enter_context(upstream("upstream.c", [worker.grpc_port for worker in workers], folder))
        gateway = await balanced(running, PICK, PICK, workers, folder, everything)
        assert gateway.stack is not None
        loading = asyncio.create_task(load_until(stop, gateway.envoy.endpoint, body, _CLIENTS))
        try:
            taken_s = await _swaps(gateway.stack, options)
        finally:
            stop.set()
            answers = await loading
    p50_s, most_s = float(np.median(taken_s)), max(taken_s)
    failed = answers.failed(ANSWER_BYTES)
    row = [f"{len(taken_s)}", f"{p50_s * 1e3:.0f}", f"{most_s * 1e3:.0f}", f"{answers.count:,}", f"{failed}"]
    title = f"From renaming the config file to the first decision by the new policy, {_CLIENTS} clients sending"
    return [Table(title, ["swaps", "p50 ms", "largest ms", "requests", "failed"], [row])]


async def _swaps(stack: OwnStack, options: Options) -> list[float]:
    taken_s = []
    with stack.log_path.open() as log:
        await _first_decision(log, POLICY)
        for _, policy in zip(range(options.often(SWAPS)), cycle(_POLICIES), strict=False):
            await asyncio.sleep(_BETWEEN_S)
            log.seek(0, 2)
            renamed_s = time.time()
            stack.write_config({"name": policy})
            # The log has milliseconds, rounded down.
            taken_s.append(await _first_decision(log, policy) + 0.001 - renamed_s)
    return taken_s


async def _first_decision(log: TextIO, policy: str) -> float:
    """When the first decision from here on that `policy` made was logged, seconds since the epoch."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            for record in _new_records(log):
                if record.get("message") == "decision" and record["policy"] == policy:
                    return datetime.fromisoformat(record["time"]).timestamp()
            await asyncio.sleep(_POLL_S)


def _new_records(log: TextIO) -> Iterator[dict[str, Any]]:
    while True:
        at = log.tell()
        line = log.readline()
        if not line.endswith("\n"):
            log.seek(at)
            return
        if line.startswith("{"):
            yield json.loads(line)
