"""SGLang's router and Ray Serve beside Envoy alone, `pick` and `native`; installed aside, and only when asked for.

One client for all, over HTTP/1.1 and JSON. The upstreams are one program in C (http.c), which Envoy reaches by
`/v2/models/M/infer` and SGLang's router by `/generate`; the bodies are of one length. Ray Serve has no upstreams: in it
the workers are its replicas, as many, which answer the same at once. That favours it: forwarding to the upstreams would
be another hop.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from balancer.discovery.workers import WorkerSpec
from balancer.errors import OperatorError
from balancer.stack.process import LocalProcess, free_ports
from dev.bench.frontends.gateways import UPSTREAMS, gateways, new_workers, upstream
from dev.bench.frontends.rounds import Found, Load, Target, in_turn, table
from dev.bench.machine import tree
from dev.bench.results import Options, Table
from dev.stack import MODEL, POLICY

SGLANG, RAY = "SGLang's router", "Ray Serve"
PACKAGES = ("sglang-router==0.3.2", "ray[serve]==2.60.0")
ROUNDS, ROUND_S = 11, 1.0
_ONE, _FULL = "HTTP/1.1, one client", "HTTP/1.1, saturated (16 in flight)"
_LOADS = {_ONE: Load(1, 1), _FULL: Load(16, 1)}
_ANSWER_BYTES = len('{"text":"ok"}')
_READY_S = 90.0
_GRACE_S = 30.0


def measure(options: Options) -> list[Table]:
    python = _installed(Path("out/peers"))
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        found = asyncio.run(_measure(options, python, Path(folder)))
    note = (
        f"{UPSTREAMS} upstreams in C, replicas with Ray Serve; {POLICY}; rounds: {options.often(ROUNDS)}. "
        "Ratios: the median of those within each round, and their range. Envoy, Python, peer: CPU a request, in µs."
    )
    return [table(title, of_load, note) for title, of_load in found.items()]


def _installed(folder: Path) -> Path:
    """The Python of an environment that has the peers; made at the first time."""
    python, stamp = (folder / "bin" / "python").absolute(), folder / "installed"
    wanted = "\n".join(PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    except subprocess.CalledProcessError as error:
        raise OperatorError(f"{', '.join(PACKAGES)} could not be installed into {folder}; see above") from error
    stamp.write_text(wanted)
    return python


async def _measure(options: Options, python: Path, folder: Path) -> dict[str, Found]:
    workers = new_workers()
    tensor, text = _bodies(folder)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(upstream("http.c", [worker.http_port for worker in workers], folder))
        envoys = await stack.enter_async_context(gateways(workers, folder))
        sglang = await stack.enter_async_context(_running(_sglang(python, workers, folder)))
        ray = await stack.enter_async_context(_running(_ray(python, folder)))
        targets = {
            name: _target(gateway.envoy.endpoint, tensor, gateway.processes, f"/v2/models/{MODEL}/infer")
            for name, gateway in envoys.items()
        }
        targets[SGLANG] = _target(sglang.endpoint, text, {"peer": [sglang.process.pid]}, "/generate")
        targets[RAY] = _target(ray.endpoint, tensor, {"peer": [ray.process.pid]}, "/")
        return {
            title: await in_turn(targets, pushed, options.often(ROUNDS), options.seconds(ROUND_S))
            for title, pushed in _LOADS.items()
        }


def _target(endpoint: str, body: Path, processes: dict[str, list[int]], path: str) -> Target:
    return Target(endpoint, body, _ANSWER_BYTES, processes, path, http1=True)


def _bodies(folder: Path) -> tuple[Path, Path]:
    tensor = json.dumps({"inputs": [{"name": "INPUT", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}]})
    text = json.dumps({"text": "x" * (len(tensor) - len(json.dumps({"text": ""})))})
    paths = folder / "tensor.json", folder / "text.json"
    for path, body in zip(paths, (tensor, text), strict=True):
        path.write_text(body)
    return paths


@dataclass(slots=True, kw_only=True)
class _Peer(LocalProcess):
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


def _sglang(python: Path, workers: Sequence[WorkerSpec], folder: Path) -> _Peer:
    port, metrics_port = free_ports(2)
    urls = [f"http://{worker.address}:{worker.http_port}" for worker in workers]
    listening = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port))
    quiet = ("--log-level", "warn")
    # The nearest that it has to least-request; its default follows prefixes of texts.
    how = ("--policy", "power_of_two", "--worker-urls", *urls)
    command: list[str | Path] = [python, "-m", "sglang_router.launch_router", *listening, *quiet, *how]
    return _Peer(name=SGLANG, command=command, port=port, ready_path="/readiness", log_path=folder / "sglang.log")


def _ray(python: Path, folder: Path) -> _Peer:
    (port,) = free_ports(1)
    script = Path(__file__).with_name("replicas.py")
    command: list[str | Path] = [python, script, str(port), str(UPSTREAMS), folder / "ray"]
    return _Peer(name=RAY, command=command, port=port, ready_path="/", log_path=folder / "ray.log")


@contextlib.asynccontextmanager
async def _running(peer: _Peer) -> AsyncIterator[_Peer]:
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
