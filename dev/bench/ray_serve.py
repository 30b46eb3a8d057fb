"""Envoy and the balancer before replicas of Ray Serve, beside Serve's own proxy, which chooses the same replicas by the
power of two choices, in turns."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from balancer.stack.stack import OwnStack
from dev.bench.results import Options, Table
from dev.ray_serve import faults
from dev.ray_serve.cluster import RayCluster
from dev.ray_serve.stack import Ended, before_ray, drive, until_ready

_FLEETS = {"equal": (0.06,), "two kinds": (0.04, 0.12)}
_REPLICAS = 4
_LOADS = (0.5, 0.8)
_AT_ONCE = (1, 2, 8)
"""`max_ongoing_requests`: with 1, Serve keeps requests back until a replica is idle."""
_POLICIES = ("expected_latency", "power_of_two")
"""The balancer's; the other one tells what Serve's proxy adds from what its choice does."""
_ROUNDS, _S, _WARM_S = 3, 6.0, 2.0
_TIMES = 5
"""That each part dies."""


def measure(options: Options) -> list[Table]:
    """Milliseconds, by fleet, load and how many requests Serve lets into a replica; and what faults cost."""
    return [asyncio.run(_measure(options)), _faults(asyncio.run(faults.measured(options.often(_TIMES))))]


async def _measure(options: Options) -> Table:
    heads = [f"{what} {who}" for what in ("mean, ms:", "p99, ms:", "failed:") for who in (*_POLICIES, "Serve")]
    table = Table(
        f"Ray Serve, {_REPLICAS} replicas on emulated GPUs: the balancer's policies, and Serve's power of two choices",
        ["fleet, load, max_ongoing_requests", *heads],
    )
    for fleet, seconds in _FLEETS.items():
        with tempfile.TemporaryDirectory(prefix="bench-ray-") as folder:
            async with before_ray(Path(folder), _REPLICAS, seconds) as (stack, cluster):
                for at_once in _AT_ONCE:
                    await cluster.deploy(_REPLICAS, seconds, at_once=at_once)
                    await until_ready(stack, _REPLICAS)
                    for load in _LOADS:
                        rate_per_s = load * sum(1 / seconds[n % len(seconds)] for n in range(_REPLICAS))
                        cells = await _compared(stack, cluster, rate_per_s, options)
                        table.rows.append([f"{fleet}, {load:g}, {at_once}", *cells])
    table.note = f"Medians of {options.often(_ROUNDS)} rounds of {options.seconds(_S):g} s, the same arrivals for all."
    return table


async def _compared(stack: OwnStack, cluster: RayCluster, rate_per_s: float, options: Options) -> list[str]:
    async def once(policy: str, seed: int) -> tuple[float, float, int]:
        if policy:
            await stack.swap(policy)
        url = f"http://{stack.url}" if policy else cluster.proxy
        await drive(url, rate_per_s, options.seconds(_WARM_S), seed=0)
        return _figures(await drive(url, rate_per_s, options.seconds(_S), seed))

    rounds = [[await once(policy, seed) for policy in (*_POLICIES, "")] for seed in range(options.often(_ROUNDS))]
    mean_ms, p99_ms, failed = np.median(rounds, axis=0).T
    return [*(f"{each:.0f}" for each in (*mean_ms, *p99_ms)), *(f"{each:g}" for each in failed)]


def _faults(found: Mapping[str, faults.Outcomes]) -> Table:
    columns = ["what happens", "failed", "longest, ms", "noticed, ms", "well again, s"]
    table = Table("Ray Serve: when a part dies", columns)
    for name, of in found.items():
        noticed = f"{1e3 * max(of.noticed_s):.0f}" if of.noticed_s else ""
        longest = f"{1e3 * max(of.longest_s):.0f}"
        table.rows.append([name, f"{sum(of.failed)}", longest, noticed, f"{max(of.well_again_s):.1f}"])
    rate = f"{faults.RATE_PER_S:g} requests a second"
    table.note = f"Each {len(of.failed)} times, at {rate}; the worst of them, and all that failed."
    return table


def _figures(ended: list[Ended]) -> tuple[float, float, int]:
    """Mean and p99 in milliseconds, and how many failed."""
    took_ms = [1e3 * each.took_s for each in ended]
    return float(np.mean(took_ms)), float(np.percentile(took_ms, 99)), sum(each.status != 200 for each in ended)
