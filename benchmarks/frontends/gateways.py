"""Upstreams in C, and an Envoy of each kind in front of them."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from balancer.config.config import from_mapping
from balancer.discovery.workers import WorkerSpec
from balancer.files.yaml_document import dump
from balancer.gateway.bootstrap import BootstrapOptions
from balancer.native.compiler import compiler
from benchmarks.stack import without_balancer
from tools.stack.child import Child
from tools.stack.envoyproxy import EnvoyProcess
from tools.stack.ports import free_port_range, free_ports

UPSTREAMS = 4
THREADS = 2
"""Of Envoy, unless the name says another number."""
ALONE, PICK, NATIVE, PROXY = "Envoy alone", "pick", "native", "proxy"
ONE_THREAD = ", one thread"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Gateway:
    """An Envoy, and the balancer that it has; None: none."""

    envoy: EnvoyProcess
    balancer: Child | None

    @property
    def processes(self) -> dict[str, list[int]]:
        """Ids, by what tables call them."""
        return {
            "Envoy": [self.envoy.process.pid],
            "Python": [] if self.balancer is None else [self.balancer.process.pid],
        }


def new_workers() -> list[WorkerSpec]:
    """On ports that are free."""
    ports = free_ports(2 * UPSTREAMS)
    return [
        WorkerSpec(name=f"w{k}", address="127.0.0.1", grpc_port=ports[k], http_port=ports[UPSTREAMS + k])
        for k in range(UPSTREAMS)
    ]


@contextlib.contextmanager
def upstream(source: str, ports: Sequence[int], folder: Path) -> Iterator[None]:
    """One process that listens on all of them, by a program of this folder."""
    program = folder / source.removesuffix(".c")
    subprocess.run([*compiler(), "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", program, _HERE / source], check=True)
    with subprocess.Popen([program, *map(str, ports)]) as process:
        try:
            yield
        finally:
            process.kill()


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
            "fleet": f"127.0.0.1:{free_port_range(2)}",
        },
        "envoy": {
            "listen": f"127.0.0.1:{free_ports(1)[0]}",
            "admin": f"127.0.0.1:{free_ports(1)[0]}",
            "frontend": frontend,
            "shared_folder": str(folder / "shared"),
        },
    }


@contextlib.asynccontextmanager
async def gateways(
    policy: str,
    workers: Sequence[WorkerSpec],
    folder: Path,
    one_thread: bool = False,
    proxies: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> AsyncIterator[dict[str, Gateway]]:
    """Envoy alone, `pick` and `native`, ready; `one_thread`: all but `pick` once more, with one worker thread;
    `proxies`: gateways with the front end `proxy`, further sections of their configs by name."""
    async with contextlib.AsyncExitStack() as stack:
        asked: dict[str, tuple[str, Mapping[str, Any]]] = {frontend: (frontend, {}) for frontend in (PICK, NATIVE)}
        asked |= {name: (PROXY, sections) for name, sections in proxies.items()}
        made = {
            name: await balanced(stack, name, config_of(frontend, policy, workers, folder) | dict(sections), folder)
            for name, (frontend, sections) in asked.items()
        }

        async def beside(name: str, other: str, threads: int) -> None:
            """One as `other`, on ports of its own; without a balancer, or with the same."""
            port, admin_port = free_ports(2)
            options = dataclasses.replace(made[other].envoy.options, listener_port=port, admin_port=admin_port)
            balancer = made[NATIVE].balancer if other == NATIVE else None
            bootstrap = None if balancer else without_balancer(options, workers)
            made[name] = Gateway(await _envoy(stack, name, options, folder, threads, bootstrap), balancer)

        await beside(ALONE, PICK, THREADS)
        if one_thread:
            await beside(ALONE + ONE_THREAD, PICK, 1)
            await beside(NATIVE + ONE_THREAD, NATIVE, 1)
        yield dict(sorted(made.items(), key=lambda item: (ONE_THREAD in item[0], item[0])))


async def balanced(
    stack: contextlib.AsyncExitStack, name: str, data: Mapping[str, Any], folder: Path, threads: int = THREADS
) -> Gateway:
    """A balancer with this config and its Envoy, ready; the stack stops both."""
    path = folder / f"{name}.yaml"
    path.write_text(dump(data), encoding="utf-8")
    balancer = Child(["serve", "--config", str(path)], log_path=folder / f"{name}.log")
    stack.push_async_callback(balancer.stop)
    await balancer.start()
    return Gateway(await _envoy(stack, name, from_mapping(data).bootstrap_options(), folder, threads), balancer)


async def _envoy(
    stack: contextlib.AsyncExitStack,
    name: str,
    options: BootstrapOptions,
    folder: Path,
    threads: int,
    bootstrap: str | None = None,
) -> EnvoyProcess:
    """Ready; `bootstrap`: of one that asks no balancer."""
    log_path = folder / f"{name}.envoy.log"
    envoy = EnvoyProcess(options=options, log_path=log_path, concurrency=threads, bootstrap=bootstrap)
    stack.push_async_callback(envoy.stop)
    await envoy.start()
    await envoy.wait_ready()
    if bootstrap is None:
        await envoy.wait_asks()
    return envoy
