"""SGLang's routers and Ray Serve, as processes of an environment of their own; installed only when asked for."""

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError
from balancer.stack.process import LocalProcess, free_ports
from dev.bench.machine import tree

SGLANG, SMG, RAY = "SGLang's router", "SGLang's gateway (smg)", "Ray Serve"
PACKAGES = ("sglang-router==0.3.2", "smg==1.13.0", "ray[serve]==2.60.0")
ROUTERS = {SGLANG: ("sglang_router.launch_router",), SMG: ("smg", "launch")}
"""By what it is called, what Python is to run."""
_FOLDER = Path("out/peers")
_READY_S = 90.0
_GRACE_S = 30.0


def installed(folder: Path = _FOLDER, packages: Sequence[str] = PACKAGES) -> Path:
    """The Python of an environment in `folder` that has these packages; made at the first time."""
    python, stamp = (folder / "bin" / "python").absolute(), folder / "installed"
    wanted = "\n".join(packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    except subprocess.CalledProcessError as error:
        raise OperatorError(f"{', '.join(packages)} could not be installed into {folder}; see above") from error
    stamp.write_text(wanted)
    return python


@dataclass(slots=True, kw_only=True)
class Peer(LocalProcess):
    title: ClassVar[str] = "peer"
    name: str
    command: Sequence[str | Path]
    port: int
    ready_path: str
    """That answers 200 once it serves."""

    @property
    def called(self) -> str:
        return self.name

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._check_not_started()
        # Of its own environment alone.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["RAY_USAGE_STATS_ENABLED"] = "0"
        await self._spawn(*map(str, self.command), at_our_end="TERM", environment=environment)


def new_router(name: str, policy: str, python: Path, workers: Sequence[WorkerSpec], folder: Path) -> Peer:
    port, metrics_port = free_ports(2)
    urls = [f"http://{worker.address}:{worker.http_port}" for worker in workers]
    listening = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port))
    quiet = ("--log-level", "warn")
    how = ("--policy", policy, "--worker-urls", *urls)
    command: list[str | Path] = [python, "-m", *ROUTERS[name], *listening, *quiet, *how]
    return Peer(name=name, command=command, port=port, ready_path="/readiness", log_path=folder / f"{name}.log")


@contextlib.asynccontextmanager
async def running(peer: Peer) -> AsyncIterator[Peer]:
    """Ready, and ended with all that it started, some of which is in sessions of its own."""
    started: set[psutil.Process] = set()
    try:
        await peer.start()
        await peer.answers(f"http://{peer.endpoint}{peer.ready_path}", _READY_S)
        yield peer
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            started.update(tree(peer.process.pid))
        await peer.stop(_GRACE_S)
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
