"""Upstreams in C, and an Envoy of each kind in front of them."""

import contextlib
import dataclasses
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from balancer.bootstrap.bootstrap import BootstrapOptions, render
from balancer.bootstrap.nodes import manager_of
from balancer.discovery.workers import WorkerProtocol, WorkerSpec
from balancer.kernel.compiled.c_compiler import compiler
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.process import free_port_range, free_ports
from balancer.stack.stack import OwnStack, merged
from dev.stack import POLICY

UPSTREAMS = 4
THREADS = 2
ALONE, PICK, NATIVE, PROXY = "Envoy alone", "pick", "native", "proxy"
ANSWER_BYTES = 5 + 64
"""A message of upstream.c, as gRPC frames it."""
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Gateway:
    """An Envoy, and the stack whose balancer it asks; None: none."""

    envoy: EnvoyProcess
    stack: OwnStack | None

    @property
    def processes(self) -> dict[str, list[int]]:
        python = [] if self.stack is None else [self.stack.balancer.process.pid]
        return {"Envoy": [self.envoy.process.pid], "Python": python}


def new_workers(count: int = UPSTREAMS, protocol: WorkerProtocol = "triton") -> list[WorkerSpec]:
    ports = free_ports(2 * count)
    return [
        WorkerSpec(name=f"w{k}", address="127.0.0.1", grpc_port=ports[k], http_port=ports[count + k], protocol=protocol)
        for k in range(count)
    ]


@contextlib.contextmanager
def upstream(source: str, ports: Sequence[int], folder: Path) -> Iterator[None]:
    program = folder / source.removesuffix(".c")
    subprocess.run([*compiler(), "-std=c11", "-D_GNU_SOURCE", "-O2", "-o", program, _HERE / source], check=True)
    with subprocess.Popen([program, *map(str, ports)]) as process:
        try:
            yield
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def gateways(
    workers: Sequence[WorkerSpec],
    folder: Path,
    proxies: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> AsyncIterator[dict[str, Gateway]]:
    """Envoy alone, `native` and `pick`, ready.

    Args:
        workers: Of all of them.
        folder: For their files.
        proxies: Gateways with the front end `proxy`: further sections of their configs by name.
    """
    async with contextlib.AsyncExitStack() as running:
        balanced_by = {name: await balanced(running, name, name, workers, folder) for name in (NATIVE, PICK)}
        for name, sections in proxies.items():
            balanced_by[name] = await balanced(running, name, PROXY, workers, folder, sections)
        port, admin_port = free_ports(2)
        options = balanced_by[PICK].envoy.options
        at = {"listen": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{admin_port}"}
        options = dataclasses.replace(options, envoy=options.envoy.model_copy(update=at))
        envoy = EnvoyProcess(
            options=options,
            log_path=folder / f"{ALONE}.log",
            concurrency=THREADS,
            bootstrap=without_balancer(options, workers),
        )
        running.push_async_callback(envoy.stop)
        await envoy.start()
        await envoy.wait_ready()
        yield {ALONE: Gateway(envoy, None)} | balanced_by


async def balanced(
    running: contextlib.AsyncExitStack,
    name: str,
    frontend: str,
    workers: Sequence[WorkerSpec],
    folder: Path,
    sections: Mapping[str, Any] = MappingProxyType({}),
    policy: str = POLICY,
) -> Gateway:
    """A balancer that takes its workers at their word, and its Envoy, ready; `running` stops both."""
    ours = {
        "telemetry": {"required": False},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
        "envoy": {"frontend": frontend, "shared_folder": str(folder / name / "shared")},
    }
    stack = OwnStack(
        folder / name,
        listed=workers,
        policy={"name": policy},
        settings=merged(ours, sections),
        envoy_threads=THREADS,
    )
    running.push_async_callback(stack.stop)
    stack.prepare()
    await stack.start_balancer()
    await stack.start_envoy()
    await stack.envoy.wait_asks()
    return Gateway(stack.envoy, stack)


def without_balancer(options: BootstrapOptions, workers: Sequence[WorkerSpec]) -> str:
    """Our bootstrap with everything that concerns the balancer taken out: Envoy's own least-request over `workers`."""
    bootstrap = yaml.safe_load(render(dataclasses.replace(options, fleet=None)))
    del bootstrap["dynamic_resources"]
    resources = bootstrap["static_resources"]
    manager = manager_of(resources["listeners"][0])
    del manager["access_log"]
    manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] == "envoy.filters.http.router"]
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    resources["clusters"] = []
    for name, ports in (
        ("triton_grpc", [worker.grpc_port for worker in workers]),
        ("triton_http", [worker.http_port for worker in workers]),
        ("openai", [worker.http_port for worker in workers]),
    ):
        cluster = clusters[name]
        del cluster["eds_cluster_config"]
        (override_host,) = cluster["load_balancing_policy"]["policies"]
        cluster["load_balancing_policy"] = override_host["typed_extension_config"]["typed_config"]["fallback_policy"]
        sockets = [{"address": w.address, "port_value": port} for w, port in zip(workers, ports, strict=True)]
        cluster["type"] = "STATIC"
        cluster["load_assignment"] = {
            "cluster_name": name,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": {"socket_address": socket}}} for socket in sockets]}
            ],
        }
        resources["clusters"].append(cluster)
    return yaml.safe_dump(bootstrap)
