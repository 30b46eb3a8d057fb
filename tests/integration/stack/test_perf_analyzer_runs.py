"""Triton's own perf_analyzer through Envoy: no warning, no abort, and the statistics are the sum of the workers'.

The wheel `tritonclient` 2.46.0, for Linux on x86-64, is one of those that carry the program. It needs CUDA's runtime,
which is a wheel too, and libb64, which Debian has. All lie in a folder of their own.
"""

import asyncio
import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support import fronts
from support.running import running
from support.stack import Stack

from balancer.stack.process import free_port_range

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

PACKAGES = ("tritonclient==2.46.0", "nvidia-cuda-runtime-cu12==12.4.127")
FOLDER = Path(__file__).resolve().parents[3] / "out" / "perf_analyzer"
FETCH_S, LONGEST_S = 300.0, 180.0
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


def fetch() -> None:
    """Whole or not at all: several may want it at once."""
    if (FOLDER / "-".join(PACKAGES)).exists():
        return
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="perf_analyzer-", dir=FOLDER.parent) as draft:
        made = Path(draft) / "whole"
        made.mkdir()
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", made, *PACKAGES], check=True, timeout=FETCH_S)
        if ctypes.util.find_library("b64") is None:
            subprocess.run(["apt-get", "download", "libb64-0d"], cwd=made, check=True, timeout=FETCH_S)
            for package in made.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, made], check=True)
        (made / "-".join(PACKAGES)).touch()
        shutil.rmtree(FOLDER, ignore_errors=True)
        made.rename(FOLDER)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of perf_analyzer."""
    try:
        fetch()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"perf_analyzer cannot be had here: {error}")
    libraries = {str(path.parent) for name in ("libcudart.so.*", "libb64.so.*") for path in FOLDER.rglob(name)}
    known = os.environ.get("LD_LIBRARY_PATH")
    return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join([*libraries, *([known] if known else [])])}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick", "proxy"))
async def stack(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
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
async def test_it_measures_without_a_warning(stack: Stack, environment: dict[str, str], load: str) -> None:
    model, protocol, *how = LOADS[load]
    how = [str(stack.directory / each) if each.endswith(".json") else each for each in how]
    command = [FOLDER / "bin" / "perf_analyzer", "-m", model, "-i", protocol, "-u", stack.url, *SETTINGS, *how]
    output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = await asyncio.to_thread(subprocess.run, command, env=environment, timeout=LONGEST_S, check=False, **output)
    text = done.stdout
    assert done.returncode == 0, text
    assert not re.search("warning|error|fail", text, re.IGNORECASE), text
    assert number("Request count", text) > 0
    assert number("Successful request count", text) > 0
    if model == "decoupled_count":
        assert number("Response Throughput", text) > number(r"(?<!Response )Throughput", text)
    alone = await asyncio.gather(*(served(spec.grpc_endpoint, model) for spec in stack.specs))
    assert await served(stack.url, model) == sum(alone)
    if "--streaming" not in how:  # a stream is one worker's
        assert all(alone)
