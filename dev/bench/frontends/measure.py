"""Envoy alone, `native`, `pick` and `proxy` before the same workers: throughput, latency, and CPU a request."""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client

from balancer.discovery.workers import WorkerSpec
from balancer.stack.stack import REPOSITORY, new_triton
from dev.bench.client import framed, write_infer
from dev.bench.frontends.gateways import ALONE, ANSWER_BYTES, PROXY, UPSTREAMS, gateways, new_workers, upstream
from dev.bench.frontends.rounds import Found, Load, Target, in_turn, table
from dev.bench.results import Options, Table
from dev.stack import MODEL, POLICY

ROUNDS, ROUND_S = 7, 1.0
CACHED, JOINED = f"{PROXY}, kept answers", f"{PROXY}, joined"
_KEPT = {CACHED: {"cache_ttl_s": 3600}}
"""Sections `models.NAME.proxy`, by the name of the gateway; `proxy` itself has none."""
_BATCH = {"repeatable": True, "batch": {"max_rows": 16}}

_BATCHING = "emulated_tft"
_SINGLE = "emulated_tft_single"
"""The same model without Triton's dynamic batcher."""
_SMALL = "digits"
_INPUTS = {_BATCHING: ("INPUT", 4), _SINGLE: ("INPUT", 4), _SMALL: ("IMAGE", 64)}
_DYNAMIC = re.compile(r"^dynamic_batching .*$", re.MULTILINE)


@dataclass(frozen=True)
class _Case:
    title: str
    tensor_bytes: int
    pushed: Load


_CASES = (
    _Case("64 B, one client", 64, Load(1, 1)),
    _Case("64 B, saturated (16 in flight)", 64, Load(8, 2)),
    _Case("1 MiB, saturated (8 in flight)", 2**20, Load(8, 1)),
)
_JOINING = {"one client": Load(1, 1), "saturated (64 in flight)": Load(8, 8)}
_SMALL_LOADS = {"one client": Load(1, 1), "saturated (16 in flight)": Load(16, 1)}
"""Over HTTP/1.1 a connection has one request at a time."""
REST = ", REST"


@dataclass(frozen=True)
class _Served:
    title: str
    model: str
    loads: Mapping[str, Load]
    proxies: Mapping[str, Mapping[str, Any]]
    rest: bool = False


_SERVED = (
    _Served("A small model (digits)", _SMALL, _SMALL_LOADS, {}, rest=True),
    _Served("Joining without Triton's batcher", _SINGLE, _JOINING, {JOINED: _BATCH}),
    _Served("Joining with Triton's batcher", _BATCHING, _JOINING, {JOINED: _BATCH}),
)


def measure(options: Options) -> list[Table]:
    with tempfile.TemporaryDirectory(prefix="proxied-") as folder:
        forwarded = asyncio.run(_forwarded(options, Path(folder)))
    with tempfile.TemporaryDirectory(prefix="served-") as folder:
        served = asyncio.run(_served(options, Path(folder)))
    rounds = f"{POLICY}; rounds: {options.often(ROUNDS)}. Envoy, Python: CPU a request, in µs."
    upstreams = f"{UPSTREAMS} upstreams in C that answer 64 bytes to anything; {rounds}"
    one = f"One Triton (emulated_tft: with one emulated A100), requests of one row; {rounds}"
    tables = [table(title, found, upstreams) for title, found in forwarded.items()]
    by_rest = f"{one} REST: JSON over HTTP/1.1, beside Envoy alone by REST."
    for title, found in served.items():
        alone = {name: ALONE + REST for name in found if name.endswith(REST)}
        tables.append(table(title, found, by_rest if alone else one, alone))
    return tables


def _sections(model: str, proxies: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {PROXY: {}} | {name: {"models": {model: {"proxy": proxy}}} for name, proxy in proxies.items()}


async def _forwarded(options: Options, folder: Path) -> dict[str, Found]:
    workers = new_workers()
    found: dict[str, Found] = {}
    with upstream("upstream.c", [worker.grpc_port for worker in workers], folder):
        async with gateways(workers, folder, proxies=_sections(MODEL, _KEPT)) as all_of_them:
            for case in _CASES:
                body = folder / f"infer-{case.tensor_bytes}"
                write_infer(body, case.tensor_bytes)
                targets = {
                    name: Target(gateway.envoy.endpoint, body, ANSWER_BYTES, gateway.processes)
                    for name, gateway in all_of_them.items()
                }
                found[case.title] = await in_turn(targets, case.pushed, options.often(ROUNDS), options.seconds(ROUND_S))
    return found


async def _served(options: Options, folder: Path) -> dict[str, Found]:
    found: dict[str, Found] = {}
    async with _triton(folder) as worker:
        for each in _SERVED:
            body, json_body = folder / f"infer-{each.model}", folder / f"infer-{each.model}.json"
            _write_row(body, each.model)
            _write_json_row(json_body, each.model)
            within = folder / each.model
            within.mkdir()
            proxies = _sections(each.model, each.proxies)
            async with gateways([worker], within, proxies=proxies) as made:
                targets = {
                    name: Target(gateway.envoy.endpoint, body, 1, gateway.processes) for name, gateway in made.items()
                }
                path = f"/v2/models/{each.model}/infer"
                targets |= {
                    name + REST: Target(gateway.envoy.endpoint, json_body, 1, gateway.processes, path, http1=True)
                    for name, gateway in (made.items() if each.rest else ())
                }
                for load_name, pushed in each.loads.items():
                    title = f"{each.title}, {load_name}"
                    found[title] = await in_turn(targets, pushed, options.often(ROUNDS), options.seconds(ROUND_S))
    return found


def _write_row(path: Path, model: str) -> None:
    name, length = _INPUTS[model]
    row = np.ones((1, length), np.float32)
    request = grpc_client.service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name=name, datatype="FP32", shape=row.shape)
    request.raw_input_contents.append(row.tobytes())
    path.write_bytes(framed(request.SerializeToString()))


def _write_json_row(path: Path, model: str) -> None:
    name, length = _INPUTS[model]
    row = {"name": name, "datatype": "FP32", "shape": [1, length], "data": [1.0] * length}
    path.write_text(json.dumps({"inputs": [row]}))


@asynccontextmanager
async def _triton(folder: Path) -> AsyncIterator[WorkerSpec]:
    repository, models = folder / "models", REPOSITORY / "triton" / "models"
    repository.mkdir()
    for model in (_SMALL, _BATCHING):
        (repository / model).symlink_to(models / model)
    source = models / _BATCHING
    single = repository / _SINGLE
    single.mkdir()
    config = (source / "config.pbtxt").read_text().replace(f'"{_BATCHING}"', f'"{_SINGLE}"')
    (single / "config.pbtxt").write_text(_DYNAMIC.sub("", config))
    (single / "1").symlink_to(source / "1")
    server = new_triton("worker-0", repository, folder)
    try:
        await server.start()
        await server.wait_ready()
        yield server.spec
    finally:
        await server.kill()
