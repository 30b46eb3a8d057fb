"""Triton's perf_analyzer against one Triton, and through each front end: what it measures, and what it complains of."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from balancer.discovery.workers import WorkerSpec
from benchmarks.frontends.gateways import NATIVE, PICK, PROXY, gateways
from benchmarks.options import Options
from benchmarks.results import Aim, Section, Table
from benchmarks.stack import REPOSITORY
from tools.perf_analyzer import PerfAnalyzer, Report, find_perf_analyzer
from tools.stack.ports import free_ports
from tools.stack.tritonserver import TritonServer

TRITON = "one Triton"
FLEET = 2
"""Tritons behind each front end."""
RESPONSES = 32
"""To one request of the decoupled model."""
_CONCURRENCY = "1:8:7"
"""One and eight requests in flight."""
_WINDOW_MS = 1500
_STABLE_PERCENT = 50
"""How far three windows may lie apart; more only says that others use the machine."""
_MOST_WINDOWS = 10
_SHOWN_WARNINGS = 20


@dataclass(frozen=True)
class _Case:
    title: str
    model: str
    protocol: str
    arguments: tuple[str, ...]


def _cases(folder: Path) -> tuple[_Case, ...]:
    counts = folder / "counts.json"
    counts.write_text(json.dumps({"data": [{"COUNT": [RESPONSES]}]}))
    streaming = ("--async", "--streaming")
    return (
        _Case("gRPC, sync", "digits", "grpc", ("--sync",)),
        _Case("gRPC, async", "digits", "grpc", ("--async",)),
        _Case("gRPC, streaming", "digits", "grpc", streaming),
        _Case("REST, sync", "digits", "http", ("--sync",)),
        _Case("REST, async", "digits", "http", ("--async",)),
        _Case(f"{RESPONSES} responses", "decoupled_count", "grpc", (*streaming, "--input-data", str(counts))),
        _Case("sequences", "sequence_sum", "grpc", streaming),
    )


def measure(options: Options) -> Section:
    """Every case through every front end."""
    program = find_perf_analyzer()
    with tempfile.TemporaryDirectory(prefix="analyzed-") as folder:
        found = asyncio.run(_measure(options, program, Path(folder)))
    note = (
        f"{FLEET} Tritons behind each front end; {options.policy}. Latency of several responses: the first one's. "
        "Queue and compute: means, as the servers say. Counted: requests by the servers' statistics, as a share of the "
        "client's; requests in flight at the ends of a window are in one of both."
    )
    table = Table(
        "perf_analyzer: digits, a decoupled model and sequences",
        ["", "front end", "in flight", "per s", "p50 µs", "p99 µs", "queue µs", "compute µs", "counted", "warnings"],
        note=note,
    )
    complaints = Table("perf_analyzer's warnings", ["", "front end", "line"])
    for (case, name), report in found.items():
        for level in report.levels:
            table.rows.append(
                [
                    case,
                    name,
                    f"{level.concurrency}",
                    f"{level.rate_per_s:,.0f}",
                    *(f"{us:,.0f}" for us in (level.p50_us, level.p99_us, level.queue_us, level.compute_us)),
                    f"{level.served / level.requests:.3f}" if level.requests else "",
                    f"{len(report.warnings)}",
                ]
            )
        complaints.rows += [[case, name, line] for line in report.warnings]
    del complaints.rows[_SHOWN_WARNINGS:]
    warned = sum(len(report.warnings) for report in found.values())
    aborted = sum(report.status != 0 or len(report.levels) < 2 for report in found.values())
    aims = [
        Aim("perf_analyzer: warnings, all front ends", warned, "lines", 0),
        Aim("perf_analyzer: runs that ended early, all front ends", aborted, "runs", 0),
    ]
    raw: dict[str, Any] = {}
    for (case, name), report in found.items():
        raw.setdefault(case, {})[name] = asdict(report)
    return Section([table, *([complaints] if complaints.rows else [])], raw, aims)


async def _measure(options: Options, program: PerfAnalyzer, folder: Path) -> dict[tuple[str, str], Report]:
    found: dict[tuple[str, str], Report] = {}
    cases = _cases(folder)
    async with _tritons(folder, {case.model for case in cases}) as specs:
        one = {"grpc": specs[0].grpc_endpoint, "http": f"{specs[0].address}:{specs[0].http_port}"}
        async with gateways(options.policy, specs, folder, proxies={PROXY: {}}) as made:
            for case in cases:
                for name in (TRITON, NATIVE, PICK, PROXY):
                    endpoint = one[case.protocol] if name == TRITON else made[name].envoy.endpoint
                    found[case.title, name] = await program.run(*_arguments(case, endpoint, options))
    return found


def _arguments(case: _Case, endpoint: str, options: Options) -> list[str]:
    settings = {
        "--service-kind": "triton",
        "-m": case.model,
        "-i": case.protocol,
        "-u": endpoint,
        "--concurrency-range": _CONCURRENCY,
        "--measurement-interval": str(int(options.seconds(_WINDOW_MS))),
        "--stability-percentage": str(_STABLE_PERCENT),
        "--max-trials": str(_MOST_WINDOWS),
    }
    return [*(text for pair in settings.items() for text in pair), *case.arguments]


@asynccontextmanager
async def _tritons(folder: Path, models: set[str]) -> AsyncIterator[list[WorkerSpec]]:
    """Servers with all the models."""
    repository = folder / "models"
    repository.mkdir()
    for source in (REPOSITORY / "triton").glob("*models/*"):
        if source.name in models:
            (repository / source.name).symlink_to(source)
    ports = free_ports(3 * FLEET)
    async with AsyncExitStack() as running:
        servers = []
        for number in range(FLEET):
            grpc_port, http_port, metrics_port = ports[3 * number : 3 * number + 3]
            server = TritonServer(
                name=f"worker-{number}",
                model_repository=repository,
                grpc_port=grpc_port,
                http_port=http_port,
                metrics_port=metrics_port,
                log_path=folder / f"worker-{number}.log",
            )
            running.push_async_callback(server.kill)
            await server.start()
            servers.append(server)
        await asyncio.gather(*(server.wait_ready() for server in servers))
        yield [
            WorkerSpec(name=s.name, address=s.address, grpc_port=s.grpc_port, http_port=s.http_port) for s in servers
        ]
