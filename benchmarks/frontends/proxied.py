"""The front end `proxy` beside `pick` and `native`; what joining requests gains, and what a kept answer takes."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client

from balancer.discovery.workers import WorkerSpec
from benchmarks.client import framed, write_infer
from benchmarks.frontends.gateways import PROXY, UPSTREAMS, gateways, new_workers, upstream
from benchmarks.frontends.rounds import Found, Load, Target, in_turn, table
from benchmarks.options import Options
from benchmarks.results import Section
from benchmarks.stack import MODEL, REPOSITORY
from tools.stack.ports import free_ports
from tools.stack.tritonserver import TritonServer

ROUNDS, ROUND_S = 7, 1.0
_ANSWER_BYTES = 5 + 64
"""A message of upstream.c, as gRPC frames it."""
CACHED, JOINED = f"{PROXY}, kept answers", f"{PROXY}, joined"
_KEPT = {CACHED: {"cache_ttl_s": 3600}}
"""Sections `models.NAME.proxy`, by the name of the gateway; `proxy` itself has none."""
_BATCH = {"repeatable": True, "batch": {"max_rows": 16}}

_BATCHING = "emulated_tft"
_SINGLE = "emulated_tft_single"
"""The same model without Triton's dynamic batcher."""
_DYNAMIC = re.compile(r"^dynamic_batching .*$", re.MULTILINE)


@dataclass(frozen=True)
class _Case:
    title: str
    tensor_bytes: int
    pushed: Load


_CASES = (
    _Case("Proxy: 64 B, one client", 64, Load(1, 1)),
    _Case("Proxy: 64 B, saturated (16 in flight)", 64, Load(8, 2)),
    _Case("Proxy: 1 MiB, saturated (8 in flight)", 2**20, Load(8, 1)),
)
_JOINING = {"one client": Load(1, 1), "saturated (64 in flight)": Load(8, 8)}


def measure(options: Options) -> Section:
    """Every case."""
    with tempfile.TemporaryDirectory(prefix="proxied-") as folder:
        forwarded = asyncio.run(_forwarded(options, Path(folder)))
    with tempfile.TemporaryDirectory(prefix="joined-") as folder:
        joined = asyncio.run(_joined(options, Path(folder)))
    rounds = f"{options.policy}; rounds: {options.often(ROUNDS)}. Envoy, Python: CPU a request, in µs."
    upstreams = f"{UPSTREAMS} upstreams in C that answer 64 bytes to anything; {rounds}"
    one = f"One Triton with one emulated A100, requests of one row; {rounds}"
    tables = [table(title, found, upstreams) for title, found in forwarded.items()]
    tables += [table(title, found, one) for title, found in joined.items()]
    raw = {
        title: {name: [asdict(each) for each in rounds] for name, rounds in found.items()}
        for title, found in (forwarded | joined).items()
    }
    return Section(tables, raw)


def _sections(model: str, proxies: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {PROXY: {}} | {name: {"models": {model: {"proxy": proxy}}} for name, proxy in proxies.items()}


async def _forwarded(options: Options, folder: Path) -> dict[str, Found]:
    workers = new_workers()
    found: dict[str, Found] = {}
    with upstream("upstream.c", [worker.grpc_port for worker in workers], folder):
        async with gateways(options.policy, workers, folder, proxies=_sections(MODEL, _KEPT)) as all_of_them:
            for case in _CASES:
                body = folder / f"infer-{case.tensor_bytes}"
                write_infer(body, case.tensor_bytes)
                targets = {
                    name: Target(gateway.envoy.endpoint, body, _ANSWER_BYTES, gateway.processes)
                    for name, gateway in all_of_them.items()
                }
                found[case.title] = await in_turn(targets, case.pushed, options.often(ROUNDS), options.seconds(ROUND_S))
    return found


async def _joined(options: Options, folder: Path) -> dict[str, Found]:
    found: dict[str, Found] = {}
    async with _triton(folder) as worker:
        for model, how in ((_SINGLE, "without Triton's batcher"), (_BATCHING, "with Triton's batcher")):
            body = folder / f"infer-{model}"
            _write_row(body, model)
            within = folder / model
            within.mkdir()
            async with gateways(options.policy, [worker], within, proxies=_sections(model, {JOINED: _BATCH})) as made:
                targets = {
                    name: Target(gateway.envoy.endpoint, body, 1, gateway.processes) for name, gateway in made.items()
                }
                for load_name, pushed in _JOINING.items():
                    title = f"Joining {how}, {load_name}"
                    found[title] = await in_turn(targets, pushed, options.often(ROUNDS), options.seconds(ROUND_S))
    return found


def _write_row(path: Path, model: str) -> None:
    """A ModelInfer call of one row, as gRPC frames it."""
    row = np.ones((1, 4), np.float32)
    request = grpc_client.service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT", datatype="FP32", shape=row.shape)
    request.raw_input_contents.append(row.tobytes())
    path.write_bytes(framed(request.SerializeToString()))


@asynccontextmanager
async def _triton(folder: Path) -> AsyncIterator[WorkerSpec]:
    """One server with both models."""
    repository, source = folder / "models", REPOSITORY / "triton" / "models" / _BATCHING
    repository.mkdir()
    (repository / _BATCHING).symlink_to(source)
    single = repository / _SINGLE
    single.mkdir()
    config = (source / "config.pbtxt").read_text().replace(f'"{_BATCHING}"', f'"{_SINGLE}"')
    (single / "config.pbtxt").write_text(_DYNAMIC.sub("", config))
    (single / "1").symlink_to(source / "1")
    grpc_port, http_port, metrics_port = free_ports(3)
    server = TritonServer(
        name="worker-0",
        model_repository=repository,
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        log_path=folder / "worker-0.log",
    )
    try:
        await server.start()
        await server.wait_ready()
        yield WorkerSpec(name="worker-0", address=server.address, grpc_port=grpc_port, http_port=http_port)
    finally:
        await server.kill()
