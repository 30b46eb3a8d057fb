"""Targets measured in turn, round by round; what they are compared by are ratios within each round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from balancer.proxy.messages import INFER
from dev.bench.client import load
from dev.bench.frontends.gateways import ALONE
from dev.bench.machine import CpuMeter
from dev.bench.results import Table

WARM_UP_S = 0.5


@dataclass(frozen=True)
class Target:
    endpoint: str
    body: Path
    answer_bytes: int
    processes: Mapping[str, Sequence[int]]
    """Ids, by what the table calls them; what they started counts too."""
    path: str = INFER
    http1: bool = False


@dataclass(frozen=True)
class Load:
    clients: int
    streams: int


@dataclass(frozen=True)
class Round:
    rate_per_s: float
    p50_us: float
    cpu_us: Mapping[str, float]
    not_ok: int


Found = Mapping[str, Sequence[Round]]


async def in_turn(targets: Mapping[str, Target], pushed: Load, rounds: int, round_s: float) -> Found:
    for target in targets.values():
        await _one(target, pushed, WARM_UP_S)
    found: dict[str, list[Round]] = {name: [] for name in targets}
    for number in range(rounds):
        # Every other round the other way round: a drift within rounds then favours nobody.
        for name in list(targets) if number % 2 == 0 else list(targets)[::-1]:
            found[name].append(await _one(targets[name], pushed, round_s))
    return found


async def _one(target: Target, pushed: Load, duration_s: float) -> Round:
    meter = CpuMeter(target.processes)
    answers = await load(
        target.endpoint, target.body, duration_s, pushed.clients, pushed.streams, target.path, target.http1
    )
    return Round(
        answers.rate_per_s,
        float(np.median(answers.latency_s)) * 1e6,
        {name: spent_s / answers.count * 1e6 for name, spent_s in meter.spent_s().items()},
        answers.failed(target.answer_bytes),
    )


def _compared(pairs: Sequence[tuple[float, float]]) -> str:
    ratios = np.array([mine / other for mine, other in pairs])
    return f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


def table(title: str, found: Found, note: str = "", alone: Mapping[str, str] = MappingProxyType({})) -> Table:
    """Medians over the rounds; of ratios, the median of those within each round, with their range; `alone`: what a
    target is compared with where that is not `ALONE`."""
    processes = list(dict.fromkeys(process for rounds in found.values() for process in rounds[0].cpu_us))
    columns = ["", "per s", "of Envoy alone", "p50 µs", "of Envoy alone", *processes, "not OK"]
    made = Table(title, columns, note=note)
    for name, rounds in found.items():
        cpu = [
            f"{np.median([each.cpu_us[process] for each in rounds]):.1f}" if process in rounds[0].cpu_us else ""
            for process in processes
        ]
        rate_per_s, p50_us = np.median([(each.rate_per_s, each.p50_us) for each in rounds], axis=0)
        pairs = list(zip(rounds, found[alone.get(name, ALONE)], strict=True))
        rates = _compared([(mine.rate_per_s, other.rate_per_s) for mine, other in pairs])
        slower = _compared([(mine.p50_us, other.p50_us) for mine, other in pairs])
        if name == alone.get(name, ALONE):
            rates = slower = ""
        times = [rates, f"{p50_us:,.0f}", slower]
        made.rows.append([name, f"{rate_per_s:,.0f}", *times, *cpu, f"{sum(each.not_ok for each in rounds)}"])
    return made
