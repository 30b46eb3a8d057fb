"""Prints requests a second, latency and CPU of each front end, beside the same Envoy choosing by itself.

    python -m benchmarks.frontends [POLICY [ROUNDS]]

Upstreams are four, in C, and answer at once, so that what is measured is the gateway. The client is h2load, in a closed
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from balancer.config.config import Config, from_mapping
from balancer.discovery.workers import WorkerSpec
from balancer.files.yaml_document import dump
from benchmarks.client import load, write_infer
from benchmarks.stack import without_balancer
from benchmarks.usage import CpuMeter
from tools.stack.child import Child
from tools.stack.envoyproxy import EnvoyProcess
from tools.stack.ports import free_port_range, free_ports

UPSTREAMS, TENSOR_BYTES = 4, 64
ALONE, PICK, NATIVE = "Envoy alone", "pick", "native"
ROUND_S, WARM_UP_S = 1.0, 0.5
LOADS = {"one client": (1, 1), "16 in flight": (8, 2)}
"""Connections, and requests in flight on each."""


@dataclass(frozen=True)
class Gateway:
    """An Envoy, and the balancer that it has; None: none."""

    envoy: EnvoyProcess
    balancer: Child | None


@dataclass(frozen=True)
class Round:
    """One measurement; CPU in microseconds a request."""

    rate_per_s: float
    p50_us: float
    envoy_us: float
    python_us: float
    not_ok: int


def config_of(frontend: str, policy: str, workers: Sequence[WorkerSpec], folder: Path) -> dict[str, Any]:
    """Of a balancer that takes its workers at their word."""
    listed = [
        {"name": w.name, "address": w.address, "grpc_port": w.grpc_port, "http_port": w.http_port} for w in workers
    ]
    return {
        "policy": {"name": policy},
        "telemetry": {"required": False},
        "discovery": {"workers": listed},
        "listen": {
            "envoy": f"127.0.0.1:{free_port_range(2)}",
            "reports": f"127.0.0.1:{free_port_range(1)}",
            "admin": f"127.0.0.1:{free_port_range(1)}",
        },
        "envoy": {
            "listen": f"127.0.0.1:{free_ports(1)[0]}",
            "admin": f"127.0.0.1:{free_ports(1)[0]}",
            "frontend": frontend,
            "shared_folder": str(folder / "shared"),
        },
    }


@contextlib.asynccontextmanager
async def gateways(policy: str, folder: Path) -> AsyncIterator[dict[str, Gateway]]:
    """All three, ready."""
    ports = free_ports(2 * UPSTREAMS)
    workers = [
        WorkerSpec(name=f"w{k}", address="127.0.0.1", grpc_port=ports[k], http_port=ports[UPSTREAMS + k])
        for k in range(UPSTREAMS)
    ]
    program, source = folder / "upstream", Path(__file__).with_name("upstream.c")
    subprocess.run(["cc", "-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-o", program, source], check=True)
    async with contextlib.AsyncExitStack() as stack:
        upstream = subprocess.Popen([program, *(str(worker.grpc_port) for worker in workers)])
        stack.callback(upstream.wait)
        stack.callback(upstream.kill)
        made: dict[str, Gateway] = {}
        for frontend in (PICK, NATIVE):
            data = config_of(frontend, policy, workers, folder)
            path = folder / f"{frontend}.yaml"
            path.write_text(dump(data), encoding="utf-8")
            balancer = Child(["serve", "--config", str(path)], log_path=folder / f"{frontend}.log")
            await balancer.start()
            stack.push_async_callback(balancer.stop)
            config: Config = from_mapping(data)
            envoy = EnvoyProcess(options=config.bootstrap_options(), log_path=folder / f"{frontend}-envoy.log")
            made[frontend] = Gateway(envoy, balancer)
            await envoy.start()
            stack.push_async_callback(envoy.stop)
            await envoy.wait_ready()
            await envoy.wait_asks()
        port, admin_port = free_ports(2)
        options = dataclasses.replace(made[PICK].envoy.options, listener_port=port, admin_port=admin_port)
        alone = EnvoyProcess(
            options=options, log_path=folder / "alone.log", bootstrap=without_balancer(options, workers)
        )
        await alone.start()
        stack.push_async_callback(alone.stop)
        await alone.wait_ready()
        yield {ALONE: Gateway(alone, None), **made}


async def one_round(gateway: Gateway, body: Path, clients: int, streams: int) -> Round:
    """Load on one of them, the others idle."""
    python = [] if gateway.balancer is None else [gateway.balancer.process.pid]
    meter = CpuMeter({"envoy": [gateway.envoy.process.pid], "python": python})
    answers = await load(gateway.envoy.endpoint, body, ROUND_S, clients, streams)
    spent_s = meter.spent_s()
    return Round(
        answers.rate_per_s,
        float(np.median(answers.latency_s)) * 1e6,
        spent_s["envoy"] / answers.count * 1e6,
        spent_s["python"] / answers.count * 1e6,
        answers.not_ok,
    )


async def measure(policy: str, rounds: int) -> None:
    """Print a table for each load."""
    with tempfile.TemporaryDirectory(prefix="frontends-") as name:
        folder = Path(name)
        body = folder / "infer"
        write_infer(body, TENSOR_BYTES)
        async with gateways(policy, folder) as all_of_them:
            for title, (clients, streams) in LOADS.items():
                found: dict[str, list[Round]] = {each: [] for each in all_of_them}
                for gateway in all_of_them.values():
                    await load(gateway.envoy.endpoint, body, WARM_UP_S, clients, streams)
                for number in range(rounds):
                    # Every other round the other way round: a drift within rounds then favours nobody.
                    order = list(all_of_them) if number % 2 == 0 else list(all_of_them)[::-1]
                    for each in order:
                        found[each].append(await one_round(all_of_them[each], body, clients, streams))
                show(f"{title}, {policy}, {rounds} rounds", found)


def show(title: str, found: dict[str, list[Round]]) -> None:
    """Medians over the rounds; shares are medians of those within each round."""
    heads = f"{'per s':>8}{'share':>8}{'range':>14}{'p50 µs':>9}{'times':>7}{'Envoy µs':>10}{'Python µs':>11}"
    print(f"\n{title}\n{'':14}{heads}")
    for name, rounds in found.items():
        pairs = list(zip(rounds, found[ALONE], strict=True))
        shares = [mine.rate_per_s / alone.rate_per_s for mine, alone in pairs]
        times = np.median([mine.p50_us / alone.p50_us for mine, alone in pairs])
        rate, p50, envoy, python = np.median(
            [(each.rate_per_s, each.p50_us, each.envoy_us, each.python_us) for each in rounds], axis=0
        )
        spread = f"{min(shares):.2f} to {max(shares):.2f}"
        failed = sum(each.not_ok for each in rounds)
        print(
            f"{name:14}{rate:8,.0f}{np.median(shares):8.2f}{spread:>14}{p50:9.0f}{times:7.2f}{envoy:10.1f}{python:11.1f}"
            + (f"   {failed} FAILED" if failed else "")
        )


def main() -> None:
    """Run it."""
    policy, rounds = (*sys.argv[1:], *("expected_latency", "7")[len(sys.argv) - 1 :])[:2]
    asyncio.run(measure(policy, int(rounds)))


if __name__ == "__main__":
    main()
