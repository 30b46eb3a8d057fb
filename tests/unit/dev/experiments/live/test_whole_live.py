"""The whole of it, short: real Envoy, real balancer, real Triton servers, all started and stopped by it."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import psutil
import pytest

from balancer.stack.tritonserver import TritonUnavailableError, find_triton

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]
REPOSITORY = Path(__file__).parents[5]


@pytest.fixture(autouse=True)
def _triton() -> None:
    try:
        find_triton()
    except TritonUnavailableError as error:
        pytest.skip(f"no Triton here: {error}")


async def started(out: Path) -> asyncio.subprocess.Process:
    policies = ("--policy", "round_robin", "--policy", "expected_latency")
    command = (sys.executable, "-m", "dev.experiments.live", "switchback", "--out", str(out), *policies, "--quick")
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=pipe, stderr=asyncio.subprocess.STDOUT)


async def stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()


async def test_a_short_run_is_reported_measured_and_predicted(tmp_path: Path) -> None:
    process = await started(tmp_path)
    try:
        output, _ = await process.communicate()
    finally:
        await stop(process)
    assert process.returncode == 0, output.decode()
    numbers = json.loads((tmp_path / "results.json").read_text())
    assert numbers["problems"] == []
    assert numbers["requests"]["round_robin"] == numbers["requests"]["expected_latency"] > 0
    assert numbers["own_decisions"] == {"round_robin": 1.0, "expected_latency": 1.0}
    # The weights were in force: an emulated A100 does more than twice what a T4 does.
    weights = {worker["emulated_device"]: worker["weight"] for worker in numbers["workers"].values()}
    assert weights["A100"] > 2 * weights["T4"]
    for found in numbers["all"]["policies"].values():
        assert found["p50"]["measured"]["value"] > 0.001
        assert found["p50"]["predicted"]["value"] > 0.001
    assert (tmp_path / "README.md").stat().st_size > 0
    assert (tmp_path / "switchback.png").stat().st_size > 0


async def test_an_interrupt_stops_everything(tmp_path: Path) -> None:
    process = await started(tmp_path)
    assert process.stdout is not None
    parts: list[psutil.Process] = []
    try:
        while line := (await process.stdout.readline()).decode():
            if "service times" in line:
                parts = psutil.Process(process.pid).children(recursive=True)
                process.send_signal(signal.SIGINT)
                break
        rest = (await process.stdout.read()).decode()
        returncode = await process.wait()
    finally:
        await stop(process)
    assert returncode == 130, rest
    assert "everything that was started has been stopped" in rest
    # Four Tritons, their agents, Envoy, the balancer, and what holds them together.
    assert len(parts) >= 10
    # The children of those that were killed were killed with them; the system takes its time to bury them.
    _, alive = await asyncio.to_thread(psutil.wait_procs, parts, timeout=10)
    assert alive == []
