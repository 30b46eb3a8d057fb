"""What the pick costs a request: latency, CPU and throughput beside the same Envoy choosing by itself.

Both stand in front of the same Tritons and are measured in turn, round by round, so that whatever else the machine
does falls on both alike. A difference is the median over the rounds of the difference within each.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.client import Answers, load, write_infer
from benchmarks.results import Aim, Section, Table
from benchmarks.stack import Bench
from benchmarks.usage import CpuMeter

TENSORS = {"64 B": 64, "1 MiB": 2**20}
PICK, PLAIN, DIRECT = "pick", "Envoy alone", "Triton direct"
ROUNDS = 7
_ROUND_S = {"64 B": 1.5, "1 MiB": 2.0}
_WARM_UP_S = 1.0
_CLIENTS = 8
_IDLE_S = 2.0


@dataclass(frozen=True)
class Load:
    """How hard the client pushes."""

    name: str
    clients: int
    streams: int


ONE = Load("one client", 1, 1)


def saturating(tensor: str) -> Load:
    """As many requests in flight as keep every core busy; large tensors need fewer."""
    streams = 2 if tensor == "64 B" else 1
    return Load(f"saturated ({_CLIENTS * streams} in flight)", _CLIENTS, streams)


@dataclass(frozen=True)
class Round:
    """One measurement; CPU in microseconds a request."""

    target: str
    requests: int
    rate_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    picked_share: float
    """Of the requests, those that the balancer picked a worker for; 1 with the pick unless Envoy fell back."""
    envoy_us: float
    python_us: float
    tritons_us: float
    agents_us: float
    client_us: float


async def measure(bench: Bench) -> Section:
    """All loads, tensors and targets."""
    raw: dict[str, Any] = {"idle_python_share_of_core": await _idle(bench)}
    tables, aims = [], []
    for tensor, size in TENSORS.items():
        body = bench.directory / f"infer-{size}"
        answer_bytes = write_infer(body, size)
        for target in (PICK, PLAIN, DIRECT):
            await _load(bench, target, body, saturating(tensor), _WARM_UP_S)
        for pushed in (ONE, saturating(tensor)):
            targets = (PICK, PLAIN, DIRECT) if pushed is ONE else (PICK, PLAIN)
            rounds: dict[str, list[Round]] = {target: [] for target in targets}
            for number in range(bench.rounds(ROUNDS)):
                # Every other round the other way round: a drift within rounds then favours neither.
                for target in targets if number % 2 == 0 else targets[::-1]:
                    rounds[target].append(await _round(bench, target, body, answer_bytes, pushed, _ROUND_S[tensor]))
            summary = _summary(rounds)
            key = f"{tensor}, {'one client' if pushed is ONE else 'saturated'}"
            raw[key] = summary | {"rounds": [asdict(each) for target in targets for each in rounds[target]]}
            tables.append(_table(f"{tensor} tensor, {pushed.name}", rounds, summary))
            aims += _aims(key, summary)
    return Section(tables, raw, aims)


async def _load(bench: Bench, target: str, body: Path, pushed: Load, duration_s: float) -> Answers:
    endpoint = {
        PICK: bench.gateway.endpoint,
        PLAIN: bench.plain.endpoint,
        DIRECT: bench.tritons.servers[0].grpc_endpoint,
    }[target]
    return await load(endpoint, body, duration_s, pushed.clients, pushed.streams)


async def _round(bench: Bench, target: str, body: Path, answer_bytes: int, pushed: Load, duration_s: float) -> Round:
    gateway = bench.gateway
    picks = await gateway.picks()
    bench.check()
    meter = CpuMeter(
        {
            "envoy": [(gateway.envoy if target == PICK else bench.plain).process.pid],
            "python": [gateway.balancer.process.pid],
            "tritons": bench.tritons.pids,
            "agents": [agent.process.pid for agent in gateway.agents],
        }
    )
    answers = await _load(bench, target, body, pushed, bench.seconds(duration_s))
    bench.check()
    spent_s = meter.spent_s()
    picked = await gateway.picks() - picks
    p50_s, p99_s = np.percentile(answers.latency_s, [50, 99])
    return Round(
        target=target,
        requests=answers.count,
        rate_per_s=answers.rate_per_s,
        p50_ms=p50_s * 1e3,
        p99_ms=p99_s * 1e3,
        failed=answers.failed(answer_bytes),
        picked_share=picked / answers.count,
        envoy_us=spent_s["envoy"] / answers.count * 1e6 if target != DIRECT else 0.0,
        python_us=spent_s["python"] / answers.count * 1e6 if target == PICK else 0.0,
        tritons_us=spent_s["tritons"] / answers.count * 1e6,
        agents_us=spent_s["agents"] / answers.count * 1e6,
        client_us=answers.client_cpu_s / answers.count * 1e6,
    )


async def _idle(bench: Bench) -> float:
    """What the balancer process uses without requests: reports, ticks, health checks."""
    meter = CpuMeter({"python": [bench.gateway.balancer.process.pid]})
    await asyncio.sleep(_IDLE_S)
    return meter.spent_s()["python"] / _IDLE_S


def _median(rounds: list[Round], field: str) -> float:
    return float(np.median([getattr(each, field) for each in rounds]))


def _summary(rounds: dict[str, list[Round]]) -> dict[str, Any]:
    pairs = list(zip(rounds[PICK], rounds[PLAIN], strict=True))
    added_p50_ms = [pick.p50_ms - plain.p50_ms for pick, plain in pairs]
    added_p99_ms = [pick.p99_ms - plain.p99_ms for pick, plain in pairs]
    shares = [pick.rate_per_s / plain.rate_per_s for pick, plain in pairs]
    return {
        "added_p50_ms": float(np.median(added_p50_ms)),
        "added_p50_ms_rounds": added_p50_ms,
        "added_p99_ms": float(np.median(added_p99_ms)),
        "added_p99_ms_rounds": added_p99_ms,
        "throughput_share": float(np.median(shares)),
        "throughput_share_rounds": shares,
        "python_us": _median(rounds[PICK], "python_us"),
        "envoy_us": _median(rounds[PICK], "envoy_us"),
        "envoy_alone_us": _median(rounds[PLAIN], "envoy_us"),
    }


def _table(title: str, rounds: dict[str, list[Round]], summary: dict[str, Any]) -> Table:
    columns = ["", "p50 ms", "p99 ms", "per s", "Envoy", "Python", "Triton", "client", "failed"]
    table = Table(title, columns)
    fields = ("p50_ms", "p99_ms", "rate_per_s", "envoy_us", "python_us", "tritons_us", "client_us")
    for target, measured in rounds.items():
        numbers = [_median(measured, field) for field in fields]
        cells = [f"{n:.2f}" if field.endswith("ms") else f"{n:,.0f}" for n, field in zip(numbers, fields, strict=True)]
        table.rows.append([target, *cells, f"{sum(each.failed for each in measured)}"])
    least, most = min(summary["added_p50_ms_rounds"]), max(summary["added_p50_ms_rounds"])
    table.note = (
        f"The pick adds {summary['added_p50_ms']:.2f} ms at p50 ({least:.2f} to {most:.2f} over the rounds) and "
        f"{summary['added_p99_ms']:.2f} ms at p99; throughput {summary['throughput_share']:.0%} of Envoy alone; "
        f"{min(each.picked_share for each in rounds[PICK]):.1%} of the requests were picked for. "
        "Envoy to client: CPU a request, in µs."
    )
    return table


def _aims(key: str, summary: dict[str, Any]) -> list[Aim]:
    aims = [Aim(f"Python CPU a request, {key}", summary["python_us"], "µs", 220)]
    if key.endswith(ONE.name):
        aims.insert(0, Aim(f"p50 added, {key}", summary["added_p50_ms"], "ms", 0.6))
    return aims
