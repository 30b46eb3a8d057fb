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

from balancer.config.config import Config, from_mapping
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


def _config_of(frontend: str, policy: str, workers: Sequence[WorkerSpec], folder: Path) -> dict[str, Any]:
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
        made: dict[str, Gateway] = {}

        async def start(name: str, options: BootstrapOptions, balancer: Child | None, threads: int) -> None:
            envoy = EnvoyProcess(
                options=options,
                log_path=folder / f"{name}.envoy.log",
                concurrency=threads,
                bootstrap=None if balancer else without_balancer(options, workers),
            )
            stack.push_async_callback(envoy.stop)
            await envoy.start()
            await envoy.wait_ready()
            if balancer:
                await envoy.wait_asks()
            made[name] = Gateway(envoy, balancer)

        def elsewhere(options: BootstrapOptions) -> BootstrapOptions:
            port, admin_port = free_ports(2)
            return dataclasses.replace(options, listener_port=port, admin_port=admin_port)

        asked: dict[str, tuple[str, Mapping[str, Any]]] = {frontend: (frontend, {}) for frontend in (PICK, NATIVE)}
        for name, (frontend, sections) in (asked | {name: (PROXY, each) for name, each in proxies.items()}).items():
            data = {**_config_of(frontend, policy, workers, folder), **sections}
            path = folder / f"{name}.yaml"
            path.write_text(dump(data), encoding="utf-8")
            balancer = Child(["serve", "--config", str(path)], log_path=folder / f"{name}.log")
            stack.push_async_callback(balancer.stop)
            await balancer.start()
            config: Config = from_mapping(data)
            await start(name, config.bootstrap_options(), balancer, THREADS)
        options = {ALONE: made[PICK].envoy.options, NATIVE: made[NATIVE].envoy.options}
        await start(ALONE, elsewhere(options[ALONE]), None, THREADS)
        if one_thread:
            await start(ALONE + ONE_THREAD, elsewhere(options[ALONE]), None, 1)
            await start(NATIVE + ONE_THREAD, elsewhere(options[NATIVE]), made[NATIVE].balancer, 1)
        yield dict(sorted(made.items(), key=lambda item: (ONE_THREAD in item[0], item[0])))
