"""`balancer up`: the whole stack on one machine, started together and stopped together."""

import asyncio
import fcntl
import json
import shutil
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from balancer.config.config import Config, load
from balancer.config.frontend import AUTO, bootstrap_options, untraceable
from balancer.config.overrides import Overrides
from balancer.config.sections import ANYBODY
from balancer.discovery.workers import dump_workers
from balancer.errors import OperatorError, missing
from balancer.files.schema import is_local, join_address
from balancer.files.yaml_document import dump
from balancer.native.state import default_folder
from balancer.stack.envoyproxy import find_envoy
from balancer.stack.ingress_parts import ANSWERS, DEAD, REQUESTS, ingress_parts
from balancer.stack.live_line import live_line
from balancer.stack.llama import MODEL, find_language_model
from balancer.stack.nats_server import find_nats
from balancer.stack.process import LocalProcess, free_port_range, free_ports
from balancer.stack.stack import READY_S, REPOSITORY, Stack, new_language_model, new_triton
from balancer.stack.tritonserver import TritonServer, find_triton

_MODELS = REPOSITORY / "triton" / "models"
EMULATED_GPUS = ("A100", "V100", "A30", "T4")
"""In the order in which workers get them, over and over: a fleet of four has one of each."""
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    workers: int = 4
    """Tritons."""
    language_models: int = 0
    """Servers of a small one."""
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
    model_control_mode: Literal["none", "explicit"] = "none"
    """As tritonserver's: `explicit` has clients of this machine load and unload models, on all workers."""
    load_models: tuple[str, ...] = ()
    """At the start, with `explicit`; `*`: all."""
    ingress_port: int | None = None
    """Of a NATS whose topics are served, too; None: there is none."""
    run_dir: Path = Path("out/up")


def run(options: UpOptions) -> None:
    """Start everything, show it, and stop it on Ctrl-C, SIGTERM, or any part's failure.

    Raises:
        OperatorError: a part could not be started, or ended; the message says which and shows the end of its log.
    """
    _check_parts(options)
    with _own(options.run_dir):
        asyncio.run(_Up(options).run())


def _check_parts(options: UpOptions) -> None:
    """Before anything starts: OperatorError, with the remedy, where a part is not installed."""
    parts: list[Callable[[], object]] = [find_envoy]
    parts += [find_triton, lambda: _check_models(options)] if options.workers else []
    parts += [find_language_model] if options.language_models else []
    parts += [find_nats] if options.ingress_port is not None else []
    if not options.workers and not options.language_models:
        raise OperatorError("there is no worker; give --workers or --llm a number from 1")
    if words := missing(parts):
        raise OperatorError(words)


def _check_models(options: UpOptions) -> None:
    if not options.model_repositories and not _MODELS.is_dir():
        raise OperatorError(
            "this installation brings no models, only a checkout does (triton/models); "
            "name a model repository: --models FOLDER"
        )


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
    def __init__(self, options: UpOptions) -> None:
        self._options = options
        self._console = Console()
        self._stop = asyncio.Event()
        self._config_path = _config_file(options)
        in_file = load(self._config_path)
        overrides = _set_over_file(options, in_file)
        _check_free("--port", options.host, options.port)
        if options.ingress_port is not None:
            _check_free("--ingress-port", "127.0.0.1", options.ingress_port)
        config = Overrides(overrides)(in_file)
        for process in range(config.processes):
            _check_free("--admin-port", "127.0.0.1", options.admin_port + process)
        set_arguments = [
            argument for field, value in overrides.items() for argument in ("--set", f"{field}={json.dumps(value)}")
        ]
        self._stack = Stack(
            options.run_dir,
            config=config,
            serve_arguments=["--config", str(self._config_path), *set_arguments],
            tritons=_tritons(options),
            language_models=[new_language_model(f"llm-{n}", options.run_dir) for n in range(options.language_models)],
        )
        if options.ingress_port is not None:
            self._stack.before_listener = ingress_parts(self._stack, options.ingress_port)

    async def run(self) -> None:
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
            await self._stack.stop(gently=True)
            # Nobody uses it now, and it is memory.
            shutil.rmtree(_own_folder(self._options), ignore_errors=True)

    def _admin_urls(self) -> list[str]:
        return [self._stack.admin(process) for process in range(self._stack.config.processes)]

    async def _start_and_wait(self) -> None:
        stack, config = self._stack, self._stack.config
        (stack.directory / "workers.yaml").write_text(dump_workers(tuple(stack.specs)))
        _changes_file(self._options).unlink(missing_ok=True)  # of a run before, whose models are gone
        address = config.listen.envoy_addresses(0)[-1]
        self._say("balancer", f"{address}, admin {self._admin_urls()[0]}, processes: {config.processes}")
        await stack.start_balancer()
        # Envoy that finds no balancer waits, and complains: so it starts when there is one.
        await stack.balancer.answers(f"{self._admin_urls()[0]}/live", READY_S)
        for each in stack.specs:
            where = ", ".join(f"{endpoint} ({port})" for port, endpoint in each.endpoints.items())
            self._say(each.name, f"{each.protocol} at {where} {each.device}")
        await stack.start_workers()
        self._say("envoy", f"listens at {config.envoy.listen}, admin {config.envoy.admin}")
        await stack.start_envoy()
        await stack.wait_ready()
        for name, part in stack.before_listener.items():
            self._say(name, self._topics)
            await part.start()

    @property
    def _topics(self) -> str:
        return f"nats://127.0.0.1:{self._options.ingress_port}: subjects {REQUESTS}.>, {ANSWERS}.>, {DEAD}.>"

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> str | None:
        """Do `work` until it is done, the user stops, or a part ends; returns what failed."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        ends: dict[asyncio.Task[int], str] = {}
        try:
            while not working.done() and not stopped.done():
                # Parts are added while the stack starts, so look anew whenever something happens.
                parts = self._stack.parts()
                ends |= {asyncio.create_task(parts[name].wait()): name for name in parts.keys() - ends.values()}
                await asyncio.wait([working, stopped, *ends], timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                for end, name in ends.items():
                    if end.done():
                        return _post_mortem(parts[name], name, end.result())
            if working.done() and (error := working.exception()) is not None:
                return str(error)
            return None
        finally:
            for task in (working, stopped, *ends):
                task.cancel()
            await asyncio.gather(working, stopped, *ends, return_exceptions=True)

    def _say(self, name: str, what: str) -> None:
        self._console.print(f"starting {name:12} {what}", highlight=False, soft_wrap=True)

    def _show(self) -> None:
        port, config = self._options.port, self._stack.config
        first = self._admin_urls()[0]
        decides = "the balancer (pick)" if bootstrap_options(config).native is None else "Envoy (native)"
        table = Table.grid(padding=(0, 2))
        for name, value in (
            ("ready", f"workers: {len(self._stack.specs)}, policy: {config.policy.name}, decided by: {decides}"),
            ("gRPC and HTTP", f"localhost:{port}, e.g. tritonclient.grpc.InferenceServerClient('localhost:{port}')"),
            *((("OpenAI", f"http://localhost:{port}/v1, model {MODEL}"),) if self._options.language_models else ()),
            *((("topics", self._topics),) if self._options.ingress_port is not None else ()),
            ("page", " ".join(f"{url}/" for url in self._admin_urls())),
            ("fleet", f"{first}/workers"),
            ("why", f"{first}/explain?model=digits"),
            ("metrics", " ".join(f"{url}/metrics" for url in self._admin_urls())),
            ("swap the policy", f"edit {self._config_path}"),
            ("logs", str(self._options.run_dir)),
            ("stop", "Ctrl-C"),
        ):
            table.add_row(name, value)
        self._console.print(table, highlight=False)


def _post_mortem(part: LocalProcess, name: str, status: int) -> str:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"{part.log_tail()}\n{name} {how}, so all is stopped"


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
        "envoy.frontend": _frontend(in_file, processes),
        "envoy.shared_folder": in_file.envoy.shared_folder or str(_own_folder(options)),
        "envoy.ready_after_listener": True,
        "envoy.listen": join_address(options.host, options.port),
        "envoy.admin": f"127.0.0.1:{free_ports(1)[0]}",
        "state_file": str((options.run_dir / "state.json").resolve()),
        "discovery.file": str((options.run_dir / "workers.yaml").resolve()),
        "discovery.workers": [],
        **_control(options, in_file, processes),
    }


def _control(options: UpOptions, in_file: Config, processes: int) -> dict[str, object]:
    """Who may load models: whom the config names, else everybody on this machine, as one Triton has it."""
    control = in_file.fleet.control
    if options.model_control_mode == "none" or control.callers:
        return {}
    if not is_local(join_address(options.host, options.port)):
        raise OperatorError(
            f"--model-control-mode explicit with --host {options.host} would have anybody there load models; name who "
            "may in fleet.control.callers of a --config, or leave out --host"
        )
    # All processes have to know of each other's changes.
    file = control.file or (str(_changes_file(options).resolve()) if processes > 1 else None)
    return {"fleet.control.callers": [ANYBODY], "fleet.control.file": file}


def _frontend(in_file: Config, processes: int) -> str:
    """Of the file; else by what only the stack knows: Envoy is here."""
    if in_file.envoy.frontend != AUTO:
        return in_file.envoy.frontend
    asks = processes != 1 or in_file.holding.models or any(untraceable(in_file))
    return "pick" if asks else "native"


def _own_folder(options: UpOptions) -> Path:
    """By the run's directory, so that what a killed run left in memory is the next one's."""
    return default_folder(str(options.run_dir.resolve()))


def _changes_file(options: UpOptions) -> Path:
    return options.run_dir / "changes.json"


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


def _tritons(options: UpOptions) -> list[TritonServer]:
    models = options.model_repositories or (_MODELS,)
    mode = [f"--model-control-mode={options.model_control_mode}"]
    mode += [f"--load-model={model}" for model in options.load_models]
    return [
        new_triton(f"worker-{number}", models, options.run_dir, gpu=gpu, arguments=mode)
        for number, gpu in zip(range(options.workers), cycle(EMULATED_GPUS), strict=False)
    ]
