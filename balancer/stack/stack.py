"""A balancer, its Envoy, Tritons and agents on this machine: processes that can be ended and started again one by one.

`balancer up` runs a `Stack` by the user's config. Demo, tests, benchmarks, soak and fuzz run an `OwnStack`, which
writes its own.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from balancer.config.config import Config, load
from balancer.config.frontend import bootstrap_options
from balancer.discovery.workers import WorkerSpec, dump_workers
from balancer.errors import OperatorError
from balancer.extproc.names import CLUSTERS
from balancer.files.yaml_document import dump
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.llama import LlamaServer, OpenAIServer
from balancer.stack.process import Child, LocalProcess, free_port_range, free_ports
from balancer.stack.tritonserver import EMULATED_GPU, TritonServer

REPOSITORY = Path(__file__).resolve().parents[2]
READY_S = 90.0
_POLL_S = 0.02
_PAGE_S = 60.0
_SWAP_S = 20.0


def new_triton(
    name: str,
    models: Path | Sequence[Path],
    directory: Path,
    *,
    gpu: str = "",
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> TritonServer:
    """A server at free ports, to be started; `gpu` is what its models emulate, its log goes to `directory`."""
    grpc_port, http_port, metrics_port = free_ports(3)
    return TritonServer(
        name=name,
        model_repository=models,
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        log_path=directory / f"{name}.log",
        environment={EMULATED_GPU: gpu, **(environment or {})} if gpu else environment or {},
        extra_args=arguments,
    )


def new_language_model(name: str, directory: Path) -> LlamaServer:
    """A server at a free port, to be started; its log goes to `directory`."""
    return LlamaServer(name=name, http_port=free_ports(1)[0], log_path=directory / f"{name}.log")


@dataclass
class Stack:
    """Tritons and language models with an agent each, a balancer of one or more processes, and Envoy."""

    directory: Path
    _: KW_ONLY
    config: Config
    serve_arguments: Sequence[str]
    tritons: list[TritonServer] = field(default_factory=list)
    language_models: Sequence[OpenAIServer] = field(default_factory=list)
    agent_arguments: Sequence[str] = ()
    reports_to: Sequence[str] = ()
    """Relays, where agents report to; empty: to the balancer."""
    envoy_arguments: Sequence[str] = ()
    envoy_threads: int = 2
    agents: list[Child] = field(default_factory=list, init=False)
    before_listener: Mapping[str, LocalProcess] = field(default_factory=dict, init=False)
    """Clients that belong to it, by name, to be started once it is ready."""
    balancer: Child = field(init=False)
    envoy: EnvoyProcess = field(init=False)

    @property
    def specs(self) -> list[WorkerSpec]:
        return [server.spec for server in self.servers]

    @property
    def servers(self) -> list[TritonServer | OpenAIServer]:
        return [*self.tritons, *self.language_models]

    @property
    def url(self) -> str:
        """`address:port` of the listener, gRPC and HTTP."""
        return self.envoy.endpoint

    @property
    def log_path(self) -> Path:
        return self.directory / "balancer.log"

    def parts(self) -> dict[str, LocalProcess]:
        made: dict[str, LocalProcess] = {
            name: getattr(self, name) for name in ("envoy", "balancer") if hasattr(self, name)
        }
        for server, agent in zip_longest(self.servers, self.agents):
            made[server.name] = server
            if agent is not None:
                made[f"{server.name}-agent"] = agent
        made |= self.before_listener
        return {name: part for name, part in made.items() if part.started}

    def check(self) -> None:
        """Raise an OperatorError naming the part and the end of its log where one has ended by itself."""
        for part in self.parts().values():
            if (status := part.process.returncode) is not None:
                raise OperatorError(f"{part.called} ended with status {status}; {part.log_tail()}")

    async def __aenter__(self) -> Self:
        """Start; within all is ready."""
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything, and return once each balancer process can pick from every worker, and Envoy asks it."""
        await self.start_balancer()
        await asyncio.gather(self.start_envoy(), self.start_workers())
        await self.wait_ready()

    async def start_balancer(self) -> None:
        """Start one, also in place of one that has ended; it is not ready yet when this returns."""
        self.balancer = Child(["serve", *self.serve_arguments], log_path=self.log_path)
        await self.balancer.start()

    async def start_workers(self) -> None:
        """Start the servers and an agent beside each; they are not ready yet when this returns."""
        await asyncio.gather(*(server.start() for server in self.servers))
        self.agents = [self.new_agent(server) for server in self.servers]
        await asyncio.gather(*(agent.start() for agent in self.agents))

    async def start_envoy(self) -> None:
        """Start one, also in place of one that has ended; it listens when this returns."""
        self.envoy = self.new_envoy()
        await self.envoy.start()
        await self.envoy.wait_ready(READY_S)

    async def start_triton(self, number: int) -> None:
        """Start one in place of one that has ended, on its ports; it is not ready yet when this returns."""
        self.tritons[number] = replace(self.tritons[number])
        await self.tritons[number].start()

    async def start_agent(self, number: int) -> None:
        self.agents[number] = self.new_agent(self.tritons[number])
        await self.agents[number].start()

    def new_envoy(self) -> EnvoyProcess:
        return EnvoyProcess(
            options=bootstrap_options(self.config),
            log_path=self.directory / "envoy.log",
            extra_args=self.envoy_arguments,
            concurrency=self.envoy_threads,
        )

    def new_agent(
        self, server: TritonServer | OpenAIServer, further: Sequence[str] = (), control: Path | None = None
    ) -> Child:
        """`balancer agent` for this server, to be started; `control` is the socket of `balancer agent drain`."""
        processes = range(self.config.processes)
        balancers = self.reports_to or [self.config.listen.reports_address(process) for process in processes]
        arguments = [
            "agent",
            *("--worker", server.name),
            *server.agent_arguments,
            *("--control", "" if control is None else str(control)),
            *(argument for balancer in balancers for argument in ("--balancer", balancer)),
            *self.agent_arguments,
            *further,
        ]
        return Child(arguments, log_path=self.directory / f"{server.name}-agent.log")

    async def wait_ready(self) -> None:
        """Return once every worker serves, `all_ready` holds, and Envoy knows the workers.

        Raises:
            OperatorError: a part ended, or is not ready in time; the message shows the end of its log.
        """
        await asyncio.gather(*(server.wait_ready(READY_S) for server in self.servers))
        await self.all_ready()
        await self._until(self._envoy_knows, "Envoy has not heard of all workers")

    async def all_ready(self) -> None:
        """Return once every process has heard of every worker, and Envoy asks every process; errors as `wait_ready`."""
        for process in range(self.config.processes):
            waits = f"process {process} of the balancer has not heard of all workers"
            await self._until(partial(self._hears_all, process), waits)
        await self.envoy.wait_asks(READY_S)

    async def _until(self, condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        try:
            async with asyncio.timeout(READY_S):
                while not await condition():
                    if (status := self.balancer.process.returncode) is not None:
                        raise OperatorError(f"the balancer ended with status {status}; {self.balancer.log_tail()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            tails = "\n".join(part.log_tail() for part in self.parts().values())
            raise OperatorError(f"{tails}\n{otherwise} after {READY_S:g} s") from None

    async def _hears_all(self, process: int) -> bool:
        page, served = await self.get("/workers", process), await self.get("/ready", process)
        return bool(page and served and served["ready"]) and all(worker["ready"] for worker in page["workers"])

    async def _envoy_knows(self) -> bool:
        """A balancer may be asked before its endpoints have arrived, by which Envoy goes while it is away."""
        endpoints = [each for spec in self.specs for each in spec.endpoints.items()]
        wanted = {f"{CLUSTERS[port]}::{endpoint}::health_flags::healthy" for port, endpoint in endpoints}
        return wanted <= {*await self.clusters()}

    async def clusters(self) -> list[str]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.envoy.admin_url}/clusters") as response:
            return (await response.text()).splitlines()

    def admin(self, process: int = 0) -> str:
        return f"http://{self.config.listen.admin_address(process)}"

    async def get(self, page: str, process: int = 0) -> Any:
        """A JSON page of the admin interface; None where nobody answers."""
        return await get_json(f"{self.admin(process)}{page}")

    async def metric(self, name: str, process: int = 0, **labels: str) -> float:
        """The sum of the samples of a metric that have the labels, now or later."""
        return sum_of(await read_samples(self.admin(process)), name, **labels)

    async def stop(self, *, gently: bool = False) -> None:
        """End everything, whatever has been broken; `gently`: Tritons finish what they execute."""
        for part in reversed([*self.before_listener.values()]):
            await part.stop()
        # Envoy before the rest, so that clients see a closed port rather than errors; then all at once.
        if hasattr(self, "envoy"):
            await self.envoy.stop()
        rest = [part for name, part in self.parts().items() if name != "envoy"]
        await asyncio.gather(
            *(part.kill() if isinstance(part, TritonServer) and not gently else part.stop() for part in rest)
        )


@dataclass
class OwnStack(Stack):
    config: Config = field(init=False)
    serve_arguments: Sequence[str] = field(init=False)
    processes: int = 1
    policy: Mapping[str, Any] = field(default_factory=lambda: {"name": "expected_latency"})
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the config beside policy, discovery and addresses."""
    listed: Sequence[WorkerSpec] = ()
    """Workers beside the Tritons; nobody here starts them."""

    def __post_init__(self) -> None:
        self.serve_arguments = ["--config", str(self.config_path)]
        self.addresses: dict[str, Any] = {
            "listen": {
                "envoy": f"127.0.0.1:{free_port_range(1 + self.processes)}",
                "reports": f"127.0.0.1:{free_port_range(self.processes)}",
                "admin": f"127.0.0.1:{free_port_range(self.processes)}",
            },
            "envoy": {
                "listen": f"127.0.0.1:{free_ports(1)[0]}",
                "admin": f"127.0.0.1:{free_ports(1)[0]}",
                "ready_after_listener": True,
            },
            "discovery": {"file": "workers.yaml"},
            "processes": self.processes,
        }

    @property
    def specs(self) -> list[WorkerSpec]:
        return [*super().specs, *self.listed]

    @property
    def config_path(self) -> Path:
        return self.directory / "balancer.yaml"

    async def start(self) -> None:
        self.prepare()
        await super().start()

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.list_workers(*self.specs)
        self.write_config(self.policy)
        self.config = load(self.config_path)

    def write_config(self, policy: Mapping[str, Any], **sections: Any) -> None:
        """Put a config file in place; `sections` over all others."""
        text = dump(merged(DEFAULTS, {"policy": dict(policy)}, self.settings, self.addresses, sections))
        replace_text(self.config_path, text)

    async def swap(self, policy: str, *, sections: Mapping[str, Any] | None = None, **options: Any) -> float:
        """Name the policy in the config file, with these options, and return the seconds until it was in force.
        `sections` are in the file beside it until it is written anew.

        Raises:
            OperatorError: where that takes too long, with what the balancer says of the file.
        """
        began_s = time.monotonic()
        self.write_config({"name": policy, "options": options}, **(sections or {}))
        while time.monotonic() < began_s + _SWAP_S:
            if (page := await self.get("/workers")) and page["policy"] == policy:
                return time.monotonic() - began_s
            await asyncio.sleep(_POLL_S)
        says = (await self.get("/config") or {}).get("last_error")
        raise OperatorError(
            f"policy {policy} not in force {_SWAP_S:g} s after {self.config_path} was written, of "
            f"which /config says {json.dumps(says)}; {self.balancer.log_tail()}"
        )

    def list_workers(self, *specs: WorkerSpec) -> None:
        replace_text(self.directory / "workers.yaml", dump_workers(specs))


DEFAULTS: dict[str, Any] = {"envoy": {"frontend": "pick"}, "listen": {"fleet": None}}
"""Of an `OwnStack`, unless its settings say otherwise: Envoy asks, and a worker answers calls about the fleet."""


def replace_text(path: Path, text: str) -> None:
    """Put a file in place as an editor does: whole, by renaming over the old one."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text)
    draft.rename(path)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for layer in layers:
        for section, value in layer.items():
            known = config.get(section)
            config[section] = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    return config


async def get_json(url: str, timeout_s: float = _PAGE_S) -> Any:
    """What is served there; None where nobody answers in time, or something else."""
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            return await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
        return None


async def read_samples(admin_url: str) -> list[Sample]:
    """All samples of a balancer's metrics, made after this was called: the page is made once a second."""
    called_s = time.time()
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{admin_url}/metrics") as response:
                families = text_string_to_metric_families(await response.text())
            found = [sample for family in families for sample in family.samples]
            made = [sample.value for sample in found if sample.name == "balancer_metrics_timestamp_seconds"]
            if not made or made[0] >= called_s:
                return found
            await asyncio.sleep(_POLL_S)


def sum_of(found: Iterable[Sample], name: str, **labels: str) -> float:
    return sum(each.value for each in found if each.name == name and labels.items() <= each.labels.items())
