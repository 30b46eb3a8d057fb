"""The whole stack from real parts, each by its own handle, so that a test can break one of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from balancer.config.config import load
from balancer.discovery.file import dump_workers
from balancer.discovery.workers import WorkerSpec
from balancer.files.yaml_document import dump
from support.waiting import PATIENCE_S, POLL_S, eventually
from tools.stack.agent import agent_beside
from tools.stack.child import Child
from tools.stack.envoyproxy import EnvoyProcess
from tools.stack.ports import free_addresses, free_ports
from tools.stack.tritonserver import TritonServer

REPOSITORY = Path(__file__).resolve().parents[2]
_MODELS = {model.name: model for model in REPOSITORY.glob("triton/*models/*")}
ALL_MODELS = tuple(sorted(_MODELS))


async def exposed(admin_url: str) -> list[Sample]:
    """All samples of a balancer's metrics, made after this was called: the page is made once a second."""
    called_s = time.time()
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{admin_url}/metrics") as response:
                families = text_string_to_metric_families(await response.text())
            samples = [sample for family in families for sample in family.samples]
            made = [sample.value for sample in samples if sample.name == "balancer_metrics_timestamp_seconds"]
            if not made or made[0] >= called_s:
                return samples
            await asyncio.sleep(POLL_S)


def sum_of(samples: Iterable[Sample], name: str, **labels: str) -> float:
    """The sum of the samples of that name that have the labels."""
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


@dataclass
class Stack:
    """Tritons with agents, a balancer of one or more processes, and Envoy."""

    directory: Path
    workers: int = 3
    processes: int = 1
    gpus: tuple[str, ...] = ("A100", "V100", "T4")
    models: tuple[str, ...] = ("emulated_tft",)
    """Of every worker. Each takes a second of the start on a small machine."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Further models of every worker, each another one under a name of its own."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the config beside policy, discovery and addresses."""
    triton_environment: Mapping[str, str] = field(default_factory=dict)
    """Of every server's models, beside their GPU."""
    triton_arguments: tuple[str, ...] = ()
    """Further ones, for every server."""
    agent_arguments: tuple[str, ...] = ()
    """Further ones, for every agent."""
    envoy_arguments: tuple[str, ...] = ()
    """Further ones, for Envoy."""
    policy: Mapping[str, Any] = field(default_factory=lambda: {"name": "round_robin"})
    tritons: list[TritonServer] = field(default_factory=list, init=False)
    agents: list[Child] = field(default_factory=list, init=False)
    specs: list[WorkerSpec] = field(default_factory=list, init=False)
    unpicked: float = field(default=0.0, init=False)
    """Requests that Envoy had sent without a pick when `count_unpicked` was called."""

    async def start(self) -> None:
        """Start everything and wait until every worker is ready for every balancer process, and Envoy asks them."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._addresses = {
            **free_addresses(self.processes),
            "discovery": {"file": "workers.yaml"},
            "processes": self.processes,
        }
        self._repository = self.directory / "models"
        self._repository.mkdir()
        for model in self.models:
            (self._repository / model).symlink_to(_MODELS[model])
        for name, model in self.copies.items():
            config = (_MODELS[model] / "config.pbtxt").read_text().replace(f'"{model}"', f'"{name}"', 1)
            (self._repository / name).mkdir()
            (self._repository / name / "config.pbtxt").write_text(config)
            (self._repository / name / "1").symlink_to(_MODELS[model] / "1")
        ports = free_ports(3 * self.workers)
        for number in range(self.workers):
            self._add_worker(
                f"worker-{number}", self.gpus[number % len(self.gpus)], *ports[3 * number : 3 * number + 3]
            )
        self.list_workers(*self.specs)
        self.write_config(self.policy)
        self.config = load(self.config_path)
        self.envoy = self._new_envoy()
        self.balancer = self._serve()
        await self.balancer.start()
        await asyncio.gather(*(part.start() for part in (*self.tritons, self.envoy)))
        self.agents = [self._agent(number) for number in range(self.workers)]
        await asyncio.gather(*(agent.start() for agent in self.agents))
        await asyncio.gather(*(triton.wait_ready(PATIENCE_S) for triton in self.tritons))
        await self.envoy.wait_ready()
        await self.all_ready()
        await eventually(self._envoy_knows, "Envoy has heard of all workers")

    async def count_unpicked(self) -> None:
        """Take note of what was sent without a pick so far: the balancer's own look at the listener, if Envoy had not
        yet found the balancer when it came."""
        self.unpicked = await self.metric("balancer_fallbacks_total", cause="no_pick")

    async def stop(self) -> None:
        """Stop everything, whatever has been broken."""
        await asyncio.gather(
            *(part.stop() for part in (self.envoy, self.balancer, *self.agents)), *(t.kill() for t in self.tritons)
        )

    @property
    def url(self) -> str:
        """The listener, gRPC and HTTP."""
        return self.envoy.endpoint

    @cached_property
    def log(self) -> Records:
        """Lines of the balancer."""
        return Records(self.directory / "balancer.log")

    @property
    def config_path(self) -> Path:
        """Of the balancer."""
        return self.directory / "balancer.yaml"

    def admin(self, process: int = 0) -> str:
        """URL of the admin pages of one process."""
        return f"http://{self.config.admin_address(process)}"

    async def get(self, page: str, process: int = 0) -> Any:
        """A JSON page of the admin interface; None where nobody answers."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.admin(process)}{page}") as response:
                return await response.json()
        except aiohttp.ClientError:
            return None

    async def metric(self, name: str, process: int = 0, **labels: str) -> float:
        """The sum of the samples of a metric that have the labels, now or later."""
        return sum_of(await exposed(self.admin(process)), name, **labels)

    async def all_ready(self) -> None:
        """Wait until every process has heard of every worker, and Envoy asks every process."""
        for process in range(self.processes):

            async def ready(process: int = process) -> bool:
                page = await self.get("/workers", process)
                served = await self.get("/ready", process)
                return bool(page and served and served["ready"]) and all(worker["ready"] for worker in page["workers"])

            await eventually(ready, f"all workers ready for process {process}")
        await self.envoy.wait_asks(PATIENCE_S)

    async def clusters(self) -> list[str]:
        """What Envoy tells of them, in lines."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.envoy.admin_url}/clusters") as response:
            return (await response.text()).splitlines()

    async def _envoy_knows(self) -> bool:
        """A balancer may be asked before its endpoints have arrived, by which Envoy goes while it is away."""
        endpoints = [("triton_grpc", each.grpc_endpoint) for each in self.specs]
        endpoints += [("triton_http", each.http_endpoint) for each in self.specs]
        return {f"{name}::{endpoint}::health_flags::healthy" for name, endpoint in endpoints} <= {
            *await self.clusters()
        }

    def write_config(self, policy: Mapping[str, Any], **sections: Any) -> None:
        """Write the config file as an editor would: whole, by renaming over the old one."""
        self.write_text(dump(merged({"policy": dict(policy)}, self.settings, self._addresses, sections)))

    def write_text(self, text: str) -> None:
        """Put any text in place of the config file."""
        draft = self.config_path.with_suffix(".new")
        draft.write_text(text)
        draft.rename(self.config_path)

    def list_workers(self, *specs: WorkerSpec) -> None:
        """What discovery lists from now on."""
        draft = self.directory / "workers.new"
        draft.write_text(dump_workers(specs))
        draft.rename(self.directory / "workers.yaml")

    async def restart_balancer(self) -> None:
        """Start a balancer in place of one that has ended."""
        self.balancer = self._serve()
        await self.balancer.start()

    async def start_envoy(self) -> None:
        """Start one in place of one that has ended; it listens when this returns."""
        self.envoy = self._new_envoy()
        await self.envoy.start()
        await self.envoy.wait_ready()

    async def restart_triton(self, number: int) -> None:
        """Start a server in place of one that has ended, on the same ports."""
        old = self.tritons[number]
        self.tritons[number] = TritonServer(
            name=old.name,
            model_repository=old.model_repository,
            grpc_port=old.grpc_port,
            http_port=old.http_port,
            metrics_port=old.metrics_port,
            log_path=old.log_path,
            environment=old.environment,
            extra_args=old.extra_args,
        )
        await self.tritons[number].start()

    async def replace_worker(self, number: int, name: str) -> None:
        """Start a worker of that name on other ports in place of one that has ended; it serves once it has reported."""
        gpu = self.tritons[number].environment["EMULATED_GPU"]
        self._add_worker(name, gpu, *free_ports(3))
        self.tritons[number], self.specs[number] = self.tritons.pop(), self.specs.pop()
        await self.tritons[number].start()
        self.agents[number] = self._agent(number)
        await self.agents[number].start()
        self.list_workers(*self.specs)

    def _new_envoy(self) -> EnvoyProcess:
        log_path = self.directory / "envoy.log"
        return EnvoyProcess(options=self.config.bootstrap_options(), log_path=log_path, extra_args=self.envoy_arguments)

    def _serve(self) -> Child:
        return Child(["serve", "--config", str(self.config_path)], log_path=self.directory / "balancer.log")

    def _add_worker(self, name: str, gpu: str, grpc_port: int, http_port: int, metrics_port: int) -> None:
        self.tritons.append(
            TritonServer(
                name=name,
                model_repository=self._repository,
                grpc_port=grpc_port,
                http_port=http_port,
                metrics_port=metrics_port,
                log_path=self.directory / f"{name}.log",
                environment={"EMULATED_GPU": gpu, **self.triton_environment},
                extra_args=self.triton_arguments,
            )
        )
        self.specs.append(
            WorkerSpec(name=name, address="127.0.0.1", grpc_port=grpc_port, http_port=http_port, device=gpu)
        )

    def _agent(self, number: int) -> Child:
        triton = self.tritons[number]
        return agent_beside(
            triton,
            [self.config.reports_address(process) for process in range(self.processes)],
            self.directory / f"{triton.name}-agent.log",
            further=self.agent_arguments,
        )

    def logs(self) -> str:
        """The ends of all logs, for a failing test's message."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.directory.glob("*.log")))


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of later layers over those of earlier ones, field by field."""
    config: dict[str, Any] = {}
    for layer in layers:
        for section, value in layer.items():
            known = config.get(section)
            config[section] = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    return config


class Records:
    """The JSON lines of a log that grows. Each is read once: asking often takes no time from what is tested."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._records: list[dict[str, Any]] = []

    def so_far(self) -> list[dict[str, Any]]:
        """All of them; a line that is still being written is left for the next look."""
        with self._path.open("rb") as log:
            log.seek(self._read_bytes)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        self._records += [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return self._records


def records(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log."""
    return Records(path).so_far()
