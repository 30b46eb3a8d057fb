"""A balancer with its Envoy before a cluster's replicas, and requests to them at random times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np

from balancer.stack.process import free_ports
from balancer.stack.stack import OwnStack
from dev.ray_serve.cluster import MODEL, RayCluster

_TENSOR = {"name": "INPUT", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}
BODY = json.dumps({"inputs": [_TENSOR]}).encode()
INFER = f"/v2/models/{MODEL}/infer"
_TIMEOUT_S = 30.0
_READY_S = 30.0


@contextlib.asynccontextmanager
async def before_ray(
    folder: Path, replicas: int, seconds: Sequence[float], *, at_once: int = 4
) -> AsyncIterator[tuple[OwnStack, RayCluster]]:
    """Both run within, and so many replicas are ready; `seconds` as of `RayCluster.deploy`."""
    stack = OwnStack(folder / "stack", settings={"listen": {"fleet": f"127.0.0.1:{free_ports(1)[0]}"}})
    cluster = RayCluster(log_path=folder / "ray.log", balancers=(stack.addresses["listen"]["reports"],))
    stack.addresses["discovery"] = {"ray": {"dashboard": cluster.dashboard}}
    try:
        await cluster.start()
        await cluster.wait_ready()
        await cluster.deploy(replicas, seconds, at_once=at_once)
        async with stack:
            await until_ready(stack, replicas)
            yield stack, cluster
    finally:
        await cluster.stop()


async def until_ready(stack: OwnStack, replicas: int) -> None:
    """Wait until the balancer knows so many replicas, all ready."""
    async with asyncio.timeout(_READY_S):
        while True:
            page = await stack.get("/workers")
            ready = [worker for worker in (page or {}).get("workers", ()) if worker["ready"]]
            if len(ready) == replicas == len(page["workers"]):
                return
            await asyncio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Ended:
    began_s: float
    """When it was to be sent, on the monotonic clock."""
    took_s: float
    status: int
    """0: there was no answer."""


async def drive(url: str, rate_per_s: float, seconds: float, seed: int) -> list[Ended]:
    """What requests ended as that come at random times, whatever became of earlier ones."""
    gaps_s = np.random.default_rng(seed).exponential(1 / rate_per_s, int(rate_per_s * seconds))
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def send(began_s: float) -> Ended:
            try:
                headers = {"Content-Type": "application/json"}
                async with session.post(f"{url}{INFER}", data=BODY, headers=headers) as response:
                    await response.read()
                    status = response.status
            except (aiohttp.ClientError, TimeoutError):
                status = 0
            return Ended(began_s, time.monotonic() - began_s, status)

        sent, due_s = [], time.monotonic()
        for gap_s in gaps_s:
            due_s += gap_s
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            sent.append(asyncio.ensure_future(send(due_s)))
        return await asyncio.gather(*sent)
