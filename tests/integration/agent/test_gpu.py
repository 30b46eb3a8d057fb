"""A real GPU, where this machine has one; elsewhere `test_device.py` has a fake named so."""

import asyncio
import time

import pytest
from support.waiting import PATIENCE_S

from balancer.agent.device import DeviceMonitor, DeviceState

pynvml = pytest.importorskip("pynvml")
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU that torch can use")


async def _until(device: DeviceMonitor, *, busy: bool) -> DeviceState:
    async with asyncio.timeout(PATIENCE_S):
        while (device.state.utilisation > 0.5) != busy or not device.state.memory_bytes:
            await asyncio.sleep(0.05)  # NVML announces nothing
    return device.state


async def test_kind_memory_and_utilisation_are_those_of_the_gpu() -> None:
    """What NVML says beside what torch does: memory that is taken, kernels that run, and neither."""
    device = DeviceMonitor()
    watching = asyncio.create_task(device.watch())
    idle = await _until(device, busy=False)
    assert idle.kind in torch.cuda.get_device_name(0)
    assert idle.memory_bytes >= torch.cuda.get_device_properties(0).total_memory
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    stop = asyncio.Event()

    def work() -> None:
        until_s = time.monotonic() + 20
        while not stop.is_set() and time.monotonic() < until_s:
            _ = matrix @ matrix
            torch.cuda.synchronize()

    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        busy = await _until(device, busy=True)
    finally:
        stop.set()
        await working
    assert busy.memory_used_bytes - idle.memory_used_bytes >= matrix.nbytes
    assert busy.memory_used_bytes <= busy.memory_bytes
    after = await _until(device, busy=False)
    assert 0 <= after.utilisation <= 0.5
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
