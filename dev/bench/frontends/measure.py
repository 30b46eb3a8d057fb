"""Envoy alone, `pick` and `native` over the same upstreams: throughput, latency, and CPU a request."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dev.bench.client import write_infer
from dev.bench.frontends.gateways import (
    ALONE,
    ANSWER_BYTES,
    NATIVE,
    ONE_THREAD,
    PICK,
    THREADS,
    TWO_PROCESSES,
    UPSTREAMS,
    gateways,
    new_workers,
    upstream,
)
from dev.bench.frontends.rounds import Compared, Found, Load, Target, cpu_added_us, in_turn, p50, rate, table
from dev.bench.results import Aim, Options, Section

ROUNDS, ROUND_S = 11, 1.0


@dataclass(frozen=True)
class _Case:
    title: str
    tensor_bytes: int
    pushed: Load
    one_thread: bool = False
    """Envoys of one worker thread too, and two balancer processes."""


_ONE = _Case("64 B, one client", 64, Load(1, 1))
_FULL = _Case("64 B, saturated (16 in flight)", 64, Load(8, 2), one_thread=True)
_LARGE = _Case("1 MiB, saturated (8 in flight)", 2**20, Load(8, 1))


def measure(options: Options) -> Section:
    with tempfile.TemporaryDirectory(prefix="frontends-") as folder:
        found = asyncio.run(_measure(options, Path(folder)))
    note = (
        f"{UPSTREAMS} upstreams in C; {options.policy}; rounds: {options.often(ROUNDS)}; Envoy of {THREADS} threads. "
        "Ratios: the median of those within each round, and their range. Envoy, Python: CPU a request, in µs."
    )
    tables = [table(case.title, rounds, note) for case, rounds in found.items()]
    raw = {
        case.title: {name: [asdict(each) for each in rounds] for name, rounds in of_case.items()}
        for case, of_case in found.items()
    }
    return Section(tables, raw, _aims(found))


async def _measure(options: Options, folder: Path) -> dict[_Case, Found]:
    workers = new_workers()
    found: dict[_Case, Found] = {}
    with upstream("upstream.c", [worker.grpc_port for worker in workers], folder):
        async with gateways(options.policy, workers, folder, one_thread=True) as all_of_them:
            for case in (_ONE, _FULL, _LARGE):
                body = folder / f"infer-{case.tensor_bytes}"
                write_infer(body, case.tensor_bytes)
                targets = {
                    name: Target(gateway.envoy.endpoint, body, ANSWER_BYTES, gateway.processes)
                    for name, gateway in all_of_them.items()
                    if case.one_thread or (ONE_THREAD not in name and name != TWO_PROCESSES)
                }
                found[case] = await in_turn(targets, case.pushed, options.often(ROUNDS), options.seconds(ROUND_S))
    return found


def _aims(found: dict[_Case, Found]) -> list[Aim]:
    one, full, large = found[_ONE], found[_FULL], found[_LARGE]
    gained = rate(full, NATIVE, NATIVE + ONE_THREAD).values / rate(full, ALONE, ALONE + ONE_THREAD).values
    python_us = [each.cpu_us["Python"] for each in full[NATIVE]]
    not_ok = sum(each.not_ok for of_case in found.values() for rounds in of_case.values() for each in rounds)

    def aim(name: str, value: Compared, unit: str, limit: float, **how: Any) -> Aim:
        return Aim(f"{name} ({value.values.min():.3g} to {value.values.max():.3g})", value.median, unit, limit, **how)

    return [
        aim("Native, 64 B saturated: throughput of Envoy's own", rate(full, NATIVE), "times", 0.93, at_least=True),
        aim("Native, 64 B saturated: throughput of pick's", rate(full, NATIVE, PICK), "times", 8, at_least=True),
        aim("Native, 64 B, one client: p50 of Envoy's own", p50(one, NATIVE), "times", 1.06),
        aim("Native, 64 B saturated: CPU added in Envoy", cpu_added_us(full, NATIVE, "Envoy"), "µs", 4),
        aim("Native, 64 B saturated: CPU in Python", Compared(np.array(python_us)), "µs", 3),
        aim("Native, 1 MiB saturated: throughput of Envoy's own", rate(large, NATIVE), "times", 0.95, at_least=True),
        aim("Native: gain by a second thread, of Envoy's own gain", Compared(gained), "times", 0.95, at_least=True),
        Aim("Requests not answered well, all front ends", not_ok, "requests", 0),
    ]
