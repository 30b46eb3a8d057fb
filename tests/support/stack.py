"""The whole stack from real parts, each by its own handle, so that a test can break one of them."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from balancer.agent.agent import MIN_REPORT_HZ
from balancer.stack.envoyproxy import EnvoyProcess
from balancer.stack.process import Child
from balancer.stack.stack import REPOSITORY, OwnStack, merged, new_triton, replace_text
from balancer.stack.tritonserver import TritonServer
from support.nursery import Nursery
from support.waiting import PATIENCE_S

_MODELS = {model.name: model for model in REPOSITORY.glob("triton/*models/*")}
ALL_MODELS = tuple(sorted(_MODELS))


@functools.cache
def _nursery() -> Nursery:
    """Of this test process, started when the first stack needs it."""
    return Nursery("support.patient", Path(__file__).parents[1])


class PatientChild(Child):
    """Forked from a process that runs `support.patient`."""

    async def start(self) -> None:
        self._check_not_started()
        with self._open_log() as log:
            self._process = _nursery().fork(self.arguments, log)


@dataclass
class Stack(OwnStack):
    """Tritons with agents, a balancer of one or more processes, and Envoy."""

    workers: int = 3
    gpus: tuple[str, ...] = ("A100", "V100", "T4")
    models: tuple[str, ...] = ("emulated_tft",)
    """Of every worker. Each takes a second of the start on a small machine."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Further models of every worker, each another one under a name of its own."""
    versions: tuple[str, ...] = ("1",)
    """That each of those has, all loaded."""
    triton_environment: Mapping[str, str] = field(default_factory=dict)
    """Of every server's models, beside their GPU."""
    triton_arguments: tuple[str, ...] = ()
    """Further ones, for every server."""
    policy: Mapping[str, Any] = field(default_factory=lambda: {"name": "round_robin"})
    patient: bool = True
    """Whether a part that says nothing is taken for slow, not for one that hangs; not for tests of what hangs."""
    unpicked: float = field(default=0.0, init=False)
    """Requests that Envoy had sent without a pick when `count_unpicked` was called."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patient:
            self.settings = merged({"telemetry": {"stale_after_s": PATIENCE_S}}, self.settings)

    async def start(self) -> None:
        """As of `OwnStack`, with the models."""
        self._repository = self.directory / "models"
        self._repository.mkdir(parents=True)
        for model in self.models:
            (self._repository / model).symlink_to(_MODELS[model])
        for name, model in self.copies.items():
            config = (_MODELS[model] / "config.pbtxt").read_text().replace(f'"{model}"', f'"{name}"', 1)
            (self._repository / name).mkdir()
            (self._repository / name / "config.pbtxt").write_text(f"{config}version_policy {{ all {{ }} }}\n")
            for version in self.versions:
                (self._repository / name / version).symlink_to(_MODELS[model] / "1")
        for number in range(self.workers):
            self._add_triton(f"worker-{number}", self.gpus[number % len(self.gpus)])
        await super().start()

    async def start_balancer(self) -> None:
        """As of `OwnStack`."""
        self.balancer = self._child(["serve", *self.serve_arguments], self.log_path)
        await self.balancer.start()

    def new_agent(self, triton: TritonServer, further: Sequence[str] = (), control: Path | None = None) -> Child:
        """As of `OwnStack`; patient ones report as rarely as may be, which leaves more to other tests."""
        rate = ("--report-hz", str(MIN_REPORT_HZ)) if self.patient else ()
        agent = super().new_agent(triton, (*rate, *further), control)
        return self._child(agent.arguments, agent.log_path)

    def _child(self, arguments: Sequence[str], log_path: Path) -> Child:
        return (PatientChild if self.patient else Child)(arguments=arguments, log_path=log_path)

    def new_envoy(self) -> EnvoyProcess:
        """As of `OwnStack`."""
        envoy = super().new_envoy()
        if self.patient:
            waits = {"message_timeout_s": PATIENCE_S, "health_timeout_s": PATIENCE_S}
            envoy.options = dataclasses.replace(envoy.options, **waits)
        return envoy

    async def stop(self, *, gently: bool = False) -> None:
        """As of `OwnStack`; where Envoy is asked to end, it takes a second."""
        if hasattr(self, "envoy"):
            await self.envoy.kill()
        await super().stop(gently=gently)

    async def count_unpicked(self) -> None:
        """Take note of what was sent without a pick so far: the balancer's own look at the listener, if Envoy had not
        yet found the balancer when it came."""
        self.unpicked = await self.metric("balancer_fallbacks_total", cause="no_pick")

    @cached_property
    def log(self) -> Records:
        """Lines of the balancer."""
        return Records(self.log_path)

    def write_text(self, text: str) -> None:
        """Put any text in place of the config file."""
        replace_text(self.config_path, text)

    async def replace_worker(self, number: int, name: str) -> None:
        """Start a worker of that name on other ports in place of one that has ended; it serves once it has reported."""
        self._add_triton(name, self.tritons[number].environment["EMULATED_GPU"])
        self.tritons[number] = self.tritons.pop()
        await self.tritons[number].start()
        await self.start_agent(number)
        self.list_workers(*self.specs)

    def _add_triton(self, name: str, gpu: str) -> None:
        environment, arguments = self.triton_environment, self.triton_arguments
        self.tritons.append(
            new_triton(name, self._repository, self.directory, gpu=gpu, environment=environment, arguments=arguments)
        )

    def logs(self) -> str:
        """The ends of all logs, for a failing test's message."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.directory.glob("*.log")))


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
