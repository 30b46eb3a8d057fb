"""What scrapes of /metrics cost requests: round trips of picks, over a bare socket, with and without scrapers.

Client and scrapers run in processes of their own, `pick PORT SECONDS` and `scrape PORT SECONDS SCRAPERS PAUSE_S`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from itertools import count
from typing import Any, cast

import numpy as np
import uvloop

from balancer.config.config import Config
from balancer.config.watch import ConfigState
from balancer.scheduler.events import Finished, ModelReport, Report, WorkerAdded
from balancer.scheduler.router import Router
from balancer.server.admin import Admin, AdminSources
from balancer.server.metrics import Metrics
from balancer.server.tally import Recent
from dev.bench.results import Options, Table
from policies.base import Request
from policies.expected_latency import ExpectedLatency

WORKERS, MODELS = 64, 20
SCRAPERS = ((0, 0.0), (8, 0.1), (8, 0.0))
"""How many, and the seconds for which each pauses between two scrapes."""
_DURATION_S = 9.0
_PICK_EVERY_S = 0.001


class _Picks(asyncio.Protocol):
    def __init__(self, router: Router) -> None:
        self._router = router
        self._numbers = count()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        decision = self._router.route(Request(f"model-{next(self._numbers) % MODELS}"), now_s)
        self._router.observe(Finished(decision.number, decision.worker, 0.005, True), now_s)
        self._transport.write(data)


def _fleet() -> tuple[Router, Metrics]:
    router = Router(ExpectedLatency())
    metrics = Metrics(router, time.monotonic)
    models = tuple(ModelReport(model=f"model-{number}", version="1", ready=True) for number in range(MODELS))
    for number in range(WORKERS):
        router.observe(WorkerAdded(f"worker-{number}"), time.monotonic())
        report = Report(worker=f"worker-{number}", incarnation=1, number=1, ready=True, models=models)
        router.observe(report, time.monotonic())
        for model in models:
            metrics.requests_of(model.model, f"worker-{number}", "grpc_0").inc()
            metrics.latency_of(model.model, f"worker-{number}").observe(0.01)
    return router, metrics


async def _beside(*arguments: object) -> dict[str, Any]:
    command = (sys.executable, "-m", "dev.bench.scrape", *map(str, arguments))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(output)
    return found


async def _measure(seconds: float) -> list[dict[str, Any]]:
    router, metrics = _fleet()
    state = ConfigState(Config(), "defaults", 0.0)
    admin = Admin(AdminSources(router, metrics, time.monotonic, lambda: "", Recent, state))
    port = await admin.start("127.0.0.1:0")
    picks = await asyncio.get_running_loop().create_server(lambda: _Picks(router), "127.0.0.1", 0)
    pick_port = picks.sockets[0].getsockname()[1]
    rows = []
    for scrapers, pause_s in SCRAPERS:
        begun_cpu_s = time.process_time()
        picked, scraped = await asyncio.gather(
            _beside("pick", pick_port, seconds), _beside("scrape", port, seconds, scrapers, pause_s)
        )
        rows.append(
            {
                "scrapers": scrapers,
                "pause_s": pause_s,
                **picked,
                "scrapes_per_s": scraped["scrapes"] / seconds,
                "page_bytes": scraped["bytes"],
                "cpu_share": (time.process_time() - begun_cpu_s) / seconds,
            }
        )
    picks.close()
    await admin.stop()
    return rows


def measure(options: Options) -> list[Table]:
    """Picks beside no scrapers, beside eight that ask ten times a second, and eight that ask all the time."""
    rows = uvloop.run(_measure(options.seconds(_DURATION_S)))
    return [
        Table(
            f"Round trips of picks beside scrapers of /metrics, {WORKERS} workers, {MODELS} models",
            ["scrapers", "p50, µs", "p99, µs", "longest, ms", "scrapes/s", "page, kB", "CPU of the process"],
            [
                [
                    f"{row['scrapers']}" + (" without pause" if row["scrapers"] and not row["pause_s"] else ""),
                    f"{row['p50_us']:,.0f}",
                    f"{row['p99_us']:,.0f}",
                    f"{row['max_us'] / 1000:.1f}",
                    f"{row['scrapes_per_s']:.1f}",
                    f"{row['page_bytes'] / 1000:,.0f}",
                    f"{row['cpu_share']:.0%}",
                ]
                for row in rows
            ],
        )
    ]


def _pick(port: int, seconds: float) -> dict[str, Any]:
    taken_s = []
    until_s = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.monotonic() < until_s:
            begun_s = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            taken_s.append(time.perf_counter() - begun_s)
            time.sleep(_PICK_EVERY_S)
    p50_us, p99_us = np.percentile(taken_s, [50, 99]) * 1e6
    return {"p50_us": p50_us, "p99_us": p99_us, "max_us": max(taken_s) * 1e6, "picks": len(taken_s)}


async def _scrape(port: int, seconds: float, scrapers: int, pause_s: float) -> dict[str, Any]:
    until_s = time.monotonic() + seconds
    sizes = []

    async def scraper() -> None:
        while time.monotonic() < until_s:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n")
            answer = await reader.read()
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a scrape was answered {answer[:100]!r}")
            sizes.append(len(answer))
            writer.close()
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(scraper() for _ in range(scrapers)))
    return {"scrapes": len(sizes), "bytes": sizes[-1] if sizes else 0}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["pick", at_port, for_s]:
            print(json.dumps(_pick(int(at_port), float(for_s))))
        case ["scrape", at_port, for_s, scrapers, pause_s]:
            print(json.dumps(asyncio.run(_scrape(int(at_port), float(for_s), int(scrapers), float(pause_s)))))
