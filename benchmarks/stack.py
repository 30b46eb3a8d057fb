"""What is measured: real Tritons, the gateway with the balancer, and the same Envoy without it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from balancer.config.config import load
from balancer.discovery.file import dump_workers
from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError
from balancer.files.yaml_document import dump
from balancer.gateway.bootstrap import BootstrapOptions, render
from balancer.operate.exposition import PERIOD_S
from tools.stack.agent import agent_beside
from tools.stack.child import Child
from tools.stack.envoyproxy import EnvoyProcess
from tools.stack.ports import free_addresses, free_ports
from tools.stack.tritonserver import TritonServer
from tools.stack.up import all_workers_ready

REPOSITORY = Path(__file__).resolve().parents[1]
MODEL = "identity"
POLICY = "expected_latency"
_READY_S = 60.0
_POLL_S = 0.02


@dataclass
class Tritons:
    """Real servers with the one model `identity`, which returns what it gets."""

    directory: Path
    count: int = 2
    servers: list[TritonServer] = field(default_factory=list, init=False)

    async def start(self) -> None:
        """Start all and wait until they serve."""
        repository = self.directory / "models"
        repository.mkdir(parents=True, exist_ok=True)
        (repository / MODEL).symlink_to(REPOSITORY / "triton" / "feature_models" / MODEL)
        ports = free_ports(3 * self.count)
        for number in range(self.count):
            grpc_port, http_port, metrics_port = ports[3 * number : 3 * number + 3]
            self.servers.append(
                TritonServer(
                    name=f"worker-{number}",
                    model_repository=repository,
                    grpc_port=grpc_port,
                    http_port=http_port,
                    metrics_port=metrics_port,
                    log_path=self.directory / f"worker-{number}.log",
                )
            )
        await asyncio.gather(*(server.start() for server in self.servers))
        await asyncio.gather(*(server.wait_ready(_READY_S) for server in self.servers))

    async def stop(self) -> None:
        """End them."""
        await asyncio.gather(*(server.kill() for server in self.servers))

    @property
    def specs(self) -> tuple[WorkerSpec, ...]:
        """As discovery lists them."""
        return tuple(
            WorkerSpec(name=s.name, address=s.address, grpc_port=s.grpc_port, http_port=s.http_port)
            for s in self.servers
        )

    @property
    def pids(self) -> list[int]:
        """Of the servers."""
        return [server.process.pid for server in self.servers]


@dataclass
class Gateway:
    """A balancer of one or more processes, an agent beside each Triton that reports to it, and Envoy."""

    directory: Path
    tritons: Tritons
    processes: int = 1
    agents: list[Child] = field(default_factory=list, init=False)
    _envoy: EnvoyProcess | None = field(default=None, init=False)
    _balancer: Child | None = field(default=None, init=False)

    async def start(self) -> None:
        """Start all, and wait until every process can pick from every Triton."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._addresses: dict[str, Any] = {
            **free_addresses(self.processes),
            "discovery": {"file": "workers.yaml"},
            "processes": self.processes,
        }
        (self.directory / "workers.yaml").write_text(dump_workers(self.tritons.specs))
        self.write_config(POLICY)
        self.config = load(self.config_path)
        self._envoy = self._new_envoy()
        await self.start_balancer()
        self.agents = [self._agent(triton) for triton in self.tritons.servers]
        await asyncio.gather(self.envoy.start(), *(agent.start() for agent in self.agents))
        await self.envoy.wait_ready(_READY_S)
        await self.wait_ready()

    async def start_balancer(self) -> None:
        """Start it anew; it is not ready yet when this returns."""
        self._balancer = Child(["serve", "--config", str(self.config_path)], log_path=self.log_path)
        await self.balancer.start()

    async def wait_ready(self) -> None:
        """Return once every process is ready and has heard of every Triton."""
        async with asyncio.timeout(_READY_S), aiohttp.ClientSession() as session:
            for process in range(self.processes):
                while not await all_workers_ready(session, f"http://{self.config.admin_address(process)}"):
                    await asyncio.sleep(_POLL_S)
        await self.envoy.wait_asks(_READY_S)

    async def stop(self) -> None:
        """End what was started."""
        await asyncio.gather(*(part.stop() for part in (self._envoy, self._balancer, *self.agents) if part is not None))

    def write_config(self, policy: str, **sections: Any) -> None:
        """Put another config file in place, by renaming as an editor does."""
        draft = self.config_path.with_suffix(".new")
        draft.write_text(dump({"policy": {"name": policy}, **self._addresses, **sections}))
        draft.rename(self.config_path)

    async def picks(self) -> int:
        """Requests that the balancer picked a worker for so far."""
        total = 0.0
        # The text is made once a second, so what is served may be as old.
        await asyncio.sleep(PERIOD_S)
        async with aiohttp.ClientSession() as session:
            for process in range(self.processes):
                async with session.get(f"http://{self.config.admin_address(process)}/metrics") as response:
                    lines = (await response.text()).splitlines()
                total += sum(float(line.split()[-1]) for line in lines if line.startswith("balancer_decisions_total{"))
        return int(total)

    @property
    def envoy(self) -> EnvoyProcess:
        """After `start`."""
        assert self._envoy is not None, "start() first"
        return self._envoy

    @property
    def balancer(self) -> Child:
        """After `start`."""
        assert self._balancer is not None, "start() first"
        return self._balancer

    @property
    def config_path(self) -> Path:
        """Of the balancer."""
        return self.directory / "balancer.yaml"

    @property
    def log_path(self) -> Path:
        """Of the balancer."""
        return self.directory / "balancer.log"

    @property
    def endpoint(self) -> str:
        """Of the listener."""
        return self.envoy.endpoint

    def _new_envoy(self) -> EnvoyProcess:
        return EnvoyProcess(options=self.config.bootstrap_options(), log_path=self.directory / "envoy.log")

    def _reports(self) -> list[str]:
        """Where the processes take reports."""
        return [self.config.reports_address(process) for process in range(self.processes)]

    def _agent(self, triton: TritonServer) -> Child:
        return agent_beside(triton, self._reports(), self.directory / f"{triton.name}-agent.log")


def without_balancer(options: BootstrapOptions, workers: Sequence[WorkerSpec]) -> str:
    """Our bootstrap with everything that concerns the balancer taken out: Envoy's own least-request over `workers`."""
    bootstrap = yaml.safe_load(render(replace(options, fleet=None)))
    del bootstrap["dynamic_resources"]
    resources = bootstrap["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["access_log"]
    manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] == "envoy.filters.http.router"]
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    resources["clusters"] = []
    for name, ports in (
        ("triton_grpc", [worker.grpc_port for worker in workers]),
        ("triton_http", [worker.http_port for worker in workers]),
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


def plain_envoy(directory: Path, tritons: Tritons) -> EnvoyProcess:
    """The peer: the same Envoy in front of the same Tritons, choosing by itself."""
    listener_port, admin_port = free_ports(2)
    options = BootstrapOptions(listener_address="127.0.0.1", listener_port=listener_port, admin_port=admin_port)
    bootstrap = without_balancer(options, tritons.specs)
    return EnvoyProcess(options=options, log_path=directory / "plain-envoy.log", bootstrap=bootstrap)


@dataclass
class Bench:
    """What the parts of the benchmark share, started when first asked for."""

    directory: Path
    quick: bool
    tritons: Tritons
    gateway: Gateway
    plain: EnvoyProcess

    def check(self) -> None:
        """Raise an OperatorError naming the part and the end of its log where one has ended by itself."""
        gateway = self.gateway
        for part in (self.plain, gateway.envoy, gateway.balancer, *gateway.agents, *self.tritons.servers):
            if (status := part.process.returncode) is not None:
                raise OperatorError(f"{part.called} ended with status {status}; {part.log_tail()}")

    def seconds(self, full_s: float) -> float:
        """How long to measure what takes `full_s` in a full run."""
        return full_s / 3 if self.quick else full_s

    def rounds(self, full: int) -> int:
        """How often to repeat what is repeated `full` times in a full run."""
        return max(2, full // 3) if self.quick else full


@contextlib.asynccontextmanager
async def bench(directory: Path, quick: bool) -> AsyncIterator[Bench]:
    """Everything started, and stopped afterwards."""
    async with contextlib.AsyncExitStack() as running:
        tritons = Tritons(directory)
        running.push_async_callback(tritons.stop)
        await tritons.start()
        gateway = Gateway(directory / "gateway", tritons)
        plain = plain_envoy(directory, tritons)
        running.push_async_callback(plain.stop)
        await plain.start()
        await start_within(running, gateway)
        await plain.wait_ready()
        yield Bench(directory, quick, tritons, gateway, plain)


async def start_within(running: contextlib.AsyncExitStack, gateway: Gateway) -> None:
    """Start a gateway and have it stopped with the rest, also if it fails to start."""
    try:
        await gateway.start()
    finally:
        running.push_async_callback(gateway.stop)
