"""SGLang's routers and Ray Serve beside Envoy alone, `pick` and `native`; installed aside, and only when asked for.

One client for all, over HTTP/1.1 and JSON. The upstreams are one program in C (http.c), which Envoy reaches by
`/v2/models/M/infer` and SGLang's router by `/generate`; the bodies are of one length. Ray Serve has no upstreams: in it
the workers are its replicas, as many, which answer the same at once. That favours it: forwarding to the upstreams would
be another hop. Prompts go to the same upstreams by OpenAI's API, and the routers choose by their own rule for these.
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
from balancer.extproc.names import CHAT
from balancer.stack.process import LocalProcess, free_ports
from dev.bench.frontends.gateways import PICK, UPSTREAMS, gateways, new_workers, upstream
from dev.bench.frontends.rounds import Found, Load, Target, in_turn, table
from dev.bench.machine import tree
from dev.bench.results import Options, Table
from dev.stack import MODEL, POLICY

SGLANG, SMG, RAY = "SGLang's router", "SGLang's gateway (smg)", "Ray Serve"
PACKAGES = ("sglang-router==0.3.2", "smg==1.13.0", "ray[serve]==2.60.0")
_LAUNCH = {SGLANG: ("sglang_router.launch_router",), SMG: ("smg", "launch")}
ROUNDS, ROUND_S = 11, 1.0
_ONE, _FULL = "HTTP/1.1, one client", "HTTP/1.1, saturated (16 in flight)"
_LOADS = {_ONE: Load(1, 1), _FULL: Load(16, 1)}
_ANSWER_BYTES = len('{"text":"ok"}')
_EVENT = 'data: {"choices":[{"index":0,"delta":{"content":"tide"}}]}\n\n'
_STREAM_BYTES = 200 * len(_EVENT) + len("data: [DONE]\n\n")
_MODEL = "unknown"
"""As smg calls one whose server tells no name; all others take any."""
_PROMPTS = {
    "prompts of 1 kB": (1_000, False),
    "prompts of 100 kB": (100_000, False),
    "prompts of 1 kB, answers of 200 events": (1_000, True),
}
_READY_S = 90.0
_GRACE_S = 30.0


def measure(options: Options) -> list[Table]:
    python = _installed(Path("out/peers"))
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        found = asyncio.run(_measure(options, python, Path(folder)))
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        prompts = asyncio.run(_measure_prompts(options, python, Path(folder)))
    note = (
        f"rounds: {options.often(ROUNDS)}. "
        "Ratios: the median of those within each round, and their range. Envoy, Python, peer: CPU a request, in µs."
    )
    ours, theirs = f"{UPSTREAMS} upstreams in C; {POLICY}", "replicas with Ray Serve"
    tables = [table(title, of_load, f"{ours}; {theirs}; {note}") for title, of_load in found.items()]
    return tables + [
        table(title, of_load, f"{ours}; theirs: cache_aware; {note}") for title, of_load in prompts.items()
    ]


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
        # The nearest that it has to least-request.
        sglang = await stack.enter_async_context(_running(_router(SGLANG, "power_of_two", python, workers, folder)))
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


async def _measure_prompts(options: Options, python: Path, folder: Path) -> dict[str, Found]:
    workers = new_workers(protocol="openai")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(upstream("http.c", [worker.http_port for worker in workers], folder))
        envoys = await stack.enter_async_context(gateways(workers, folder))
        routers = {
            name: await stack.enter_async_context(_running(_router(name, "cache_aware", python, workers, folder)))
            for name in _LAUNCH
        }
        found = {}
        for title, (size_bytes, streams) in _PROMPTS.items():
            body = folder / "prompt.json"
            said = [{"role": "user", "content": "tide " * (size_bytes // 5)}]
            body.write_text(json.dumps({"model": _MODEL, "messages": said, "stream": streams}))
            answer_bytes = _STREAM_BYTES if streams else _ANSWER_BYTES
            # These make chunks of streams, on which h2load 1.52 hangs.
            without = (PICK, *routers) if streams else ()
            targets = {
                name: Target(gateway.envoy.endpoint, body, answer_bytes, gateway.processes, CHAT, http1=True)
                for name, gateway in envoys.items()
                if name not in without
            }
            for name, router in routers.items():
                if name in without:
                    continue
                processes = {"peer": [router.process.pid]}
                targets[name] = Target(router.endpoint, body, answer_bytes, processes, CHAT, http1=True)
            found[f"OpenAI's API, {title}, 16 in flight"] = await in_turn(
                targets, _LOADS[_FULL], options.often(ROUNDS), options.seconds(ROUND_S)
            )
        return found


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


def _router(name: str, policy: str, python: Path, workers: Sequence[WorkerSpec], folder: Path) -> _Peer:
    port, metrics_port = free_ports(2)
    urls = [f"http://{worker.address}:{worker.http_port}" for worker in workers]
    listening = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port))
    quiet = ("--log-level", "warn")
    how = ("--policy", policy, "--worker-urls", *urls)
    command: list[str | Path] = [python, "-m", *_LAUNCH[name], *listening, *quiet, *how]
    return _Peer(name=name, command=command, port=port, ready_path="/readiness", log_path=folder / f"{name}.log")


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
