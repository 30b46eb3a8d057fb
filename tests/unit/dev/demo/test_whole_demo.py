"""The demo itself, short: real Envoy, real balancer, real Triton servers, all started and stopped by it."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from balancer.stack.tritonserver import TritonUnavailableError, find_triton
from dev.demo.language_models import POLICIES

pytestmark = pytest.mark.integration
REPOSITORY = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _triton() -> None:
    try:
        find_triton()
    except TritonUnavailableError as error:
        pytest.skip(f"no Triton here: {error}")


async def started(directory: Path, *arguments: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "dev.demo", "--out", str(directory / "demo"), "--workers", "2", *arguments)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdout=pipe, stderr=asyncio.subprocess.STDOUT)


async def test_a_short_demo_succeeds_and_writes_its_report(tmp_path: Path) -> None:
    short = (
        "--rounds",
        "1",
        "--window-s",
        "1",
        "--rate",
        "40",
        "--policy",
        "wlpr",
        "--policy",
        "round_robin",
        "--sessions",
        "1",
    )
    process = await started(tmp_path, *short)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 0, output.decode()
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert results["succeeded"]
    assert results["digits"]["accuracy"] > 0.95
    assert {row["policy"] for row in results["policies"]} == {"wlpr", "round_robin"}
    assert {name for row in results["policies"] for name in row["by_worker"]} == {"worker-0", "worker-1"}
    models = results["language_models"]
    assert [(row["policy"], row["answers"]) for row in models] == [(policy, 3) for policy in POLICIES]
    assert all(0 <= row["cached"] <= 1 for row in models)
    assert (tmp_path / "demo" / "policies.png").stat().st_size > 0
    assert (tmp_path / "demo" / "index.html").stat().st_size > 0


async def test_an_interrupt_stops_everything(tmp_path: Path) -> None:
    process = await started(tmp_path, "--window-s", "60")
    assert process.stdout is not None
    url = ""
    try:
        while line := (await process.stdout.readline()).decode():
            if "requests go to" in line:
                url = line.split()[-1]
                break
        process.send_signal(signal.SIGINT)
        rest = (await process.stdout.read()).decode()
        returncode = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert returncode == 130, rest
    assert "everything that was started has been stopped" in rest
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://{url}/v2/health/ready")
