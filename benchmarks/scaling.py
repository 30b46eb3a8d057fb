"""Two balancer processes against one: through the whole stack, and asked for picks directly."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from balancer.gateway.names import EXTRACTION, PICKS_SERVICE
from benchmarks.client import INFER, framed, load, write_infer
from benchmarks.gateway_cost import saturating
from benchmarks.results import Section, Table
from benchmarks.stack import MODEL, Bench, Gateway, start_within
from benchmarks.usage import CpuMeter

ROUNDS = 4
_ROUND_S = 2.0
_WARM_UP_S = 0.5
_CLIENTS = 8
_PATH = f"/{PICKS_SERVICE}/Process"


def write_pick(path: Path) -> None:
    """Write what Envoy asks the balancer for one inference, as gRPC frames it."""
    request = ext_proc.ProcessingRequest()
    for name, value in (
        (":method", "POST"),
        (":path", INFER),
        (":scheme", "http"),
        (":authority", "127.0.0.1:8080"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "benchmark"),
        ("x-request-id", "5a0b3b0e-6b8f-4a39-93a4-5a2d3c1e7f00"),
    ):
        request.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    fields = request.metadata_context.filter_metadata[EXTRACTION].fields
    for name, values in (("model_name", [MODEL]), ("model_version", []), ("id", ["1"]), ("inputs.shape", ["16"])):
        fields[name].list_value.SetInParent()
        for value in values:
            fields[name].list_value.values.add(string_value=value)
    path.write_bytes(framed(request.SerializeToString()))


async def measure(bench: Bench) -> Section:
    """Both, with one process and with two in turn."""
    async with contextlib.AsyncExitStack() as running:
        two = Gateway(bench.directory / "two", bench.tritons, processes=2)
        await start_within(running, two)
        gateways = {1: bench.gateway, 2: two}
        whole: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        alone: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for gateway in gateways.values():
            # What is asked for directly has no outcome: forget it soon.
            gateway.write_config("expected_latency", requests={"outcome_timeout_s": 1.0})
        infer, pick = bench.directory / "infer-scaling", bench.directory / "pick"
        write_infer(infer, 64)
        write_pick(pick)
        for seconds in (_WARM_UP_S, *[bench.seconds(_ROUND_S)] * bench.rounds(ROUNDS)):
            for processes, gateway in gateways.items():
                one_run = await _through_envoy(gateway, infer, seconds), await _direct(gateway, pick, seconds)
                if seconds != _WARM_UP_S:
                    whole[processes].append(one_run[0])
                    alone[processes].append(one_run[1])
        bench.gateway.write_config("expected_latency")
    tables = [
        _table("The whole stack, saturated, by number of balancer processes", whole),
        _table("The balancer alone, asked for picks directly (no Envoy, no Triton)", alone),
    ]
    raw: dict[str, Any] = {"whole_stack": whole, "balancer_alone": alone, "columns": ["per_s", "cores_of_balancer"]}
    return Section(tables, raw)


async def _through_envoy(gateway: Gateway, body: Path, seconds: float) -> tuple[float, float]:
    pushed = saturating("64 B")
    meter = CpuMeter({"python": [gateway.balancer.process.pid]})
    answers = await load(gateway.endpoint, body, seconds, pushed.clients, pushed.streams)
    return answers.rate_per_s, meter.spent_s()["python"] / answers.duration_s


async def _direct(gateway: Gateway, body: Path, seconds: float) -> tuple[float, float]:
    """A client for each process, so that both get the same."""
    addresses = [gateway.config.own_envoy_address(process) for process in range(gateway.processes)]
    clients = _CLIENTS // len(addresses)
    meter = CpuMeter({"python": [gateway.balancer.process.pid]})
    answers = await asyncio.gather(*(load(each, body, seconds, clients, 2, _PATH) for each in addresses))
    return sum(each.rate_per_s for each in answers), meter.spent_s()["python"] / answers[0].duration_s


def _table(title: str, measured: dict[int, list[tuple[float, float]]]) -> Table:
    table = Table(title, ["processes", "per second", "cores that the balancer used"])
    for processes, rounds in measured.items():
        rate_per_s, cores = np.median(np.array(rounds), axis=0)
        table.rows.append([f"{processes}", f"{rate_per_s:,.0f}", f"{cores:.2f}"])
    ratios = [two[0] / one[0] for one, two in zip(measured[1], measured[2], strict=True)]
    table.note = f"Two against one: {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f} over the rounds)."
    return table
