"""Triton's own perf_analyzer through Envoy: no warning, no abort, and the statistics are the sum of the workers'."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support import fronts
from support.perf_analyzer import PerfAnalyzer, find_perf_analyzer
from support.running import running
from support.stack import Stack

from balancer.errors import OperatorError
from balancer.stack.ports import free_port_range

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

RESPONSES = 16
LOADS = {
    "gRPC": ("digits", "grpc", "--async"),
    "gRPC, streaming": ("digits", "grpc", "--async", "--streaming"),
    "REST": ("digits", "http", "--sync"),
    "several responses": ("decoupled_count", "grpc", "--async", "--streaming", "--input-data", "counts.json"),
    "sequences": ("sequence_sum", "grpc", "--async"),
}
SETTINGS = (
    *("--service-kind", "triton", "--concurrency-range", "4", "--measurement-interval", "500"),
    *("--stability-percentage", "999"),  # how steady a busy machine is says nothing here
)


@pytest.fixture(scope="module")
def program() -> PerfAnalyzer:
    try:
        return find_perf_analyzer()
    except OperatorError as error:
        pytest.skip(f"perf_analyzer cannot be had here: {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick", "proxy"))
async def stack(
    program: PerfAnalyzer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("perf-analyzer")
    (directory / "counts.json").write_text(json.dumps({"data": [{"COUNT": [RESPONSES]}]}))
    settings = {
        "envoy": {"frontend": request.param, "shared_folder": str(directory / "shared")},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
    }
    models = tuple({model for model, *_ in LOADS.values()})
    stack = Stack(directory, workers=2, models=models, settings=settings)
    async with running(stack):
        yield stack


async def served(address: str, model: str) -> int:
    async with triton_grpc.InferenceServerClient(address) as client:
        statistics = await client.get_inference_statistics(model)
    return sum(int(each.inference_stats.success.count) for each in statistics.model_stats)


def number(name: str, text: str) -> float:
    found = re.search(rf"\b{name}: ([\d.]+)", text)
    assert found, text
    return float(found[1])


@pytest.mark.parametrize("load", LOADS)
async def test_it_measures_without_a_warning(stack: Stack, program: PerfAnalyzer, load: str) -> None:
    model, protocol, *how = LOADS[load]
    how = [str(stack.directory / each) if each.endswith(".json") else each for each in how]
    status, text = await program.run("-m", model, "-i", protocol, "-u", stack.url, *SETTINGS, *how)
    assert status == 0, text
    assert not re.search("warning|error|fail", text, re.IGNORECASE), text
    assert number("Request count", text) > 0
    assert number("Successful request count", text) > 0
    if model == "decoupled_count":
        assert number("Response Throughput", text) > number(r"(?<!Response )Throughput", text)
    alone = await asyncio.gather(*(served(spec.grpc_endpoint, model) for spec in stack.specs))
    assert await served(stack.url, model) == sum(alone)
    if "--streaming" not in how:  # a stream is one worker's
        assert all(alone)
