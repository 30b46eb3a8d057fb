"""`balancer up`: the whole stack on one machine, started together and stopped together."""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import signal
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from balancer.config.config import Config, load
from balancer.config.overrides import Overrides
from balancer.discovery.file import dump_workers
from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError
from balancer.files.schema import join_address
from balancer.files.yaml_document import dump
from balancer.front.folder import default_folder
from tools.stack.agent import agent_beside
from tools.stack.child import Child
from tools.stack.envoyproxy import EnvoyProcess
from tools.stack.live import live_line
from tools.stack.ports import free_port_range, free_ports
from tools.stack.process import LocalProcess
from tools.stack.tritonserver import TritonServer

REPOSITORY = Path(__file__).resolve().parents[2]
EMULATED_GPUS = ("A100", "V100", "A30", "T4")
"""In the order in which workers get them, over and over: a fleet of four has one of each."""
_READY_TIMEOUT_S = 90.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `balancer up` is asked for."""

    workers: int = 4
    policy: str | None = None
    """None: what the config says."""
    host: str = "127.0.0.1"
    """Of the listener: who may send requests. There is no login."""
    port: int = 8080
    admin_port: int = 8090
    config: Path | None = None
    processes: int | None = None
    """None: what the config says."""
    model_repositories: tuple[Path, ...] = ()
    """Empty: `triton/models` of this checkout."""
    run_dir: Path = Path("out/up")
    """Logs, the list of workers, and the config file where none is given."""
    report_hz: float = 50.0


def run(options: UpOptions) -> None:
    """Start everything, show it, and stop it on Ctrl-C, SIGTERM, or any part's failure.

    Raises:
        OperatorError: a part could not be started, or ended; the message says which and shows the end of its log.
    """
    with _own(options.run_dir):
        asyncio.run(_Up(options).run())


@contextmanager
def _own(run_dir: Path) -> Iterator[None]:
    """Hold the directory: a second stack there would swap the workers under the first one."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OperatorError(
                f"{run_dir} belongs to a running balancer up; stop it, or name another --run-dir"
            ) from error
        yield


class _Up:
    """One run of the stack."""

    def __init__(self, options: UpOptions) -> None:
        self._options = options
        self._console = Console()
        self._stop = asyncio.Event()
        self._config_path = _config_file(options)
        in_file = load(self._config_path)
        self._overrides = _set_over_file(options, in_file)
        self._config = Overrides(self._overrides)(in_file)
        self._bootstrap = self._config.bootstrap_options()
        _check_free("--port", options.host, options.port)
        for process in range(self._config.processes):
            _check_free("--admin-port", "127.0.0.1", options.admin_port + process)
        self._tritons, self._specs = _workers(options)
        self._parts: dict[str, LocalProcess] = {}

    async def run(self) -> None:
        """Start, watch, stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        try:
            failure = await self._until_stopped(self._start_and_wait())
            if failure is None and not self._stop.is_set():
                self._show()
                failure = await self._until_stopped(live_line(self._console, self._admin_urls(), self._stop))
            if failure is not None:
                raise OperatorError(failure)
        finally:
            self._console.print("stopping ...")
            # Envoy first, so that clients see a closed port rather than errors; then the rest at once.
            if (envoy := self._parts.pop("envoy", None)) is not None:
                await envoy.stop()
            await asyncio.gather(*(part.stop() for part in self._parts.values()))
            # Nobody uses it now, and it is memory.
            shutil.rmtree(_own_folder(self._options), ignore_errors=True)

    def _admin_urls(self) -> list[str]:
        return [f"http://{self._config.admin_address(process)}" for process in range(self._config.processes)]

    async def _start_and_wait(self) -> None:
        """Start all parts and return once requests can be served."""
        options, config = self._options, self._config
        (options.run_dir / "workers.yaml").write_text(dump_workers(self._specs))
        set_arguments = [
            argument
            for field, value in self._overrides.items()
            for argument in ("--set", f"{field}={json.dumps(value)}")
        ]
        serve_arguments = ["serve", "--config", str(self._config_path), *set_arguments]
        serve = Child(serve_arguments, log_path=options.run_dir / "balancer.log")
        envoy = EnvoyProcess(options=self._bootstrap, log_path=options.run_dir / "envoy.log")
        self._say(
            "balancer", f"{config.own_envoy_address(0)}, admin {self._admin_urls()[0]}, processes: {config.processes}"
        )
        await self._launch("balancer", serve)
        # Envoy that finds no balancer waits, and complains: so it starts when there is one.
        await serve.answers(f"{self._admin_urls()[0]}/live", _READY_TIMEOUT_S)
        for triton, gpu in zip(self._tritons, cycle(EMULATED_GPUS), strict=False):
            self._say(
                triton.name, f"Triton at {triton.grpc_endpoint} (gRPC), {triton.http_endpoint} (HTTP), emulated {gpu}"
            )
            await self._launch(triton.name, triton)
            await self._launch(f"{triton.name}-agent", self._agent(triton, gpu))
        self._say("envoy", f"listens at {config.envoy.listen}, admin {config.envoy.admin}")
        await self._launch("envoy", envoy)
        await asyncio.gather(*(triton.wait_ready(_READY_TIMEOUT_S) for triton in self._tritons))
        await envoy.wait_ready(_READY_TIMEOUT_S)
        await self._balancer_ready()
        await envoy.wait_asks(_READY_TIMEOUT_S)

    async def _launch(self, name: str, part: LocalProcess) -> None:
        await part.start()
        self._parts[name] = part

    def _agent(self, triton: TritonServer, gpu: str) -> Child:
        return agent_beside(
            triton,
            [self._config.reports_address(process) for process in range(self._config.processes)],
            self._options.run_dir / f"{triton.name}-agent.log",
            further=("--report-hz", str(self._options.report_hz), "--device", gpu),
        )

    async def _balancer_ready(self) -> None:
        """Wait until every process has heard of all workers: before that, picks would miss some."""
        async with aiohttp.ClientSession() as session:
            for url in self._admin_urls():
                while not await all_workers_ready(session, url):
                    await asyncio.sleep(_POLL_S)

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> str | None:
        """Do `work` until it is done, the user stops, or a part ends; returns what failed."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        ends: dict[asyncio.Task[int], str] = {}
        try:
            while not working.done() and not stopped.done():
                # Parts are added while the stack starts, so look anew whenever something happens.
                new = [name for name in self._parts if name not in ends.values()]
                ends |= {asyncio.create_task(self._parts[name].wait()): name for name in new}
                await asyncio.wait([working, stopped, *ends], timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                for end, name in ends.items():
                    if end.done():
                        return self._post_mortem(name, end.result())
            if working.done() and (error := working.exception()) is not None:
                return str(error)
            return None
        finally:
            for task in (working, stopped, *ends):
                task.cancel()
            await asyncio.gather(working, stopped, *ends, return_exceptions=True)

    def _post_mortem(self, name: str, status: int) -> str:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"{self._parts[name].log_tail()}\n{name} {how}, so all is stopped"

    def _say(self, name: str, what: str) -> None:
        self._console.print(f"starting {name:12} {what}", highlight=False, soft_wrap=True)

    @property
    def _decided_by(self) -> str:
        return "the balancer (pick)" if self._bootstrap.native is None else "Envoy (native)"

    def _show(self) -> None:
        port, config = self._options.port, self._config
        table = Table.grid(padding=(0, 2))
        for name, value in (
            ("ready", f"workers: {len(self._specs)}, policy: {config.policy.name}, decided by: {self._decided_by}"),
            ("gRPC and HTTP", f"localhost:{port}, e.g. tritonclient.grpc.InferenceServerClient('localhost:{port}')"),
            ("page", " ".join(f"{url}/" for url in self._admin_urls())),
            ("fleet", f"{self._admin_urls()[0]}/workers"),
            ("why", f"{self._admin_urls()[0]}/explain?model=digits"),
            ("metrics", " ".join(f"{url}/metrics" for url in self._admin_urls())),
            ("swap the policy", f"edit {self._config_path}"),
            ("logs", str(self._options.run_dir)),
            ("stop", "Ctrl-C"),
        ):
            table.add_row(name, value)
        self._console.print(table, highlight=False)


def _set_over_file(options: UpOptions, in_file: Config) -> dict[str, object]:
    """Fields of the config that this machine decides, not the file."""
    processes = options.processes or in_file.processes
    # One port that all processes share and one for each, in a row, as `listen.envoy` has it.
    return {
        "processes": processes,
        "listen.envoy": f"127.0.0.1:{free_port_range(1 + processes)}",
        "listen.fleet": f"127.0.0.1:{free_port_range(2)}",
        "listen.reports": f"127.0.0.1:{free_port_range(processes)}",
        "listen.admin": f"127.0.0.1:{options.admin_port}",
        "admin.token_file": None,
        # All parts are on this machine, and have no certificates.
        "tls.envoy": None,
        "tls.reports": None,
        "tls.admin": None,
        "envoy.balancer_tls": None,
        "envoy.frontend": in_file.envoy.frontend or ("native" if processes == 1 else "pick"),
        "envoy.shared_folder": in_file.envoy.shared_folder or str(_own_folder(options)),
        "envoy.ready_after_listener": True,
        "envoy.listen": join_address(options.host, options.port),
        "envoy.admin": f"127.0.0.1:{free_ports(1)[0]}",
        "discovery.file": str((options.run_dir / "workers.yaml").resolve()),
        "discovery.workers": [],
    }


def _own_folder(options: UpOptions) -> Path:
    """By the run's directory, so that what a killed run left in memory is the next one's."""
    return default_folder(str(options.run_dir.resolve()))


def _config_file(options: UpOptions) -> Path:
    """The config file to follow: the user's, or one written for the purpose, to be edited while it runs."""
    if options.config is not None:
        if options.policy is not None:
            raise OperatorError(
                f"--policy {options.policy} and --config {options.config} both name a policy; "
                "set policy.name in the file, or leave out one of them"
            )
        return options.config
    path = options.run_dir / "balancer.yaml"
    policy = options.policy or Config().policy.name
    path.write_text(
        "# Edit and save while it runs: policy, limits and the model table are swapped at once. Each start of\n"
        "# `balancer up` without --config writes this file anew: to keep it, copy it, and name the copy.\n"
        f"# All fields: docs/config.md; all policies: balancer policies.\n{dump({'policy': {'name': policy}})}"
    )
    return path


def _check_free(option: str, host: str, port: int) -> None:
    """Refuse a port that is taken before anything starts; two Envoys would share it and split the requests."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as candidate:
        # Connections of a stack that has just ended linger; they are no listener.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, port))
            candidate.listen(1)
        except OSError as error:
            raise OperatorError(f"{option} {port} cannot be used at {host}: {error.strerror}; name another") from error


def _workers(options: UpOptions) -> tuple[list[TritonServer], tuple[WorkerSpec, ...]]:
    """The servers to start, and what discovery will say of them."""
    repositories = options.model_repositories or (REPOSITORY / "triton" / "models",)
    ports = free_ports(3 * options.workers)
    tritons, specs = [], []
    for number, gpu in zip(range(options.workers), cycle(EMULATED_GPUS), strict=False):
        name = f"worker-{number}"
        grpc_port, http_port, metrics_port = ports[3 * number : 3 * number + 3]
        tritons.append(
            TritonServer(
                name=name,
                model_repository=repositories,
                grpc_port=grpc_port,
                http_port=http_port,
                metrics_port=metrics_port,
                log_path=options.run_dir / f"{name}.log",
                environment={"EMULATED_GPU": gpu},
            )
        )
        specs.append(WorkerSpec(name=name, address="127.0.0.1", grpc_port=grpc_port, http_port=http_port, device=gpu))
    return tritons, tuple(specs)


async def all_workers_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether the balancer with its admin pages there has heard that every worker is ready."""
    try:
        async with session.get(f"{url}/ready") as response:
            if response.status != 200:
                return False
        async with session.get(f"{url}/workers") as response:
            return all(worker["ready"] for worker in (await response.json())["workers"])
    except aiohttp.ClientError:
        return False
