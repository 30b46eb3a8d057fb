"""A balancer that is kept from its core is waited for; and without one pins, devices and splits hold."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from support.envoy_fakes import a_request
from support.native import NativeRig
from support.waiting import PATIENCE_S, eventually

from balancer.kernel.settings import ModelSettings, Settings, SplitSettings
from balancer.native.state import STALE_AFTER_S
from balancer.scheduler.canary.split import Splits
from balancer.scheduler.events import ModelReport, Report

pytestmark = pytest.mark.integration
TABLES = {
    "pinned": ModelSettings(versions=("1",)),
    "two pins": ModelSettings(versions=("1", "2")),
    "devices": ModelSettings(devices=("A100",)),
    "split": ModelSettings(),
}
LOADED = {"w0": "123", "w1": "123", "w2": "3"}
GIVEN = {"pinned": "1", "two pins": "2", "devices": "", "split": "1"}


@pytest.fixture
async def starving(tmp_path: Path) -> AsyncIterator[NativeRig]:
    """Whose balancer is not taken for dead while it exists."""
    async with NativeRig(tmp_path, stale_after_s=STALE_AFTER_S).running() as rig:
        assert await rig.infer() in {"w0", "w1", "w2"}
        await rig.all_ended()
        yield rig


async def test_a_balancer_that_is_kept_from_its_core_is_not_taken_for_dead(starving: NativeRig) -> None:
    starving.hold_beats()
    await asyncio.sleep(3 * STALE_AFTER_S)  # what is awaited is that nothing happens
    counts = starving.router.state.counts()
    for _ in range(12):
        await starving.infer()
    assert starving.router.state.counts() == counts | {"picked": counts["picked"] + 12}
    # The lock on its file ends with its process.
    starving.router.state.close()
    await eventually(starving.does_without)


async def test_a_lock_whose_holder_is_kept_from_its_core_is_waited_for(starving: NativeRig) -> None:

    async def is_waited_for() -> bool:
        """Where this process is kept from its core for longer than the module waits, it is not."""
        counts = starving.router.state.counts()
        for _ in range(5):
            assert starving.router.state.lock()
            call = asyncio.create_task(starving.infer())
            await asyncio.sleep(0.02)
            starving.router.state.unlock()
            await call
            await starving.all_ended()
        return starving.router.state.counts() == counts | {"picked": counts["picked"] + 5}

    await eventually(is_waited_for)


async def test_the_lock_of_a_balancer_that_died_with_it_is_not_waited_for(starving: NativeRig) -> None:
    assert starving.router.state.lock()
    starving.router.state.close()
    counts = starving.router.state.counts()
    for _ in range(12):
        await starving.infer()
    left = starving.router.state.counts()
    assert left["picked"] == counts["picked"]
    assert sum(left[how] - counts[how] for how in ("least_locked", "least_stale")) == 12


@pytest.mark.parametrize("table", TABLES)
async def test_pins_devices_and_splits_hold_without_the_balancer(tmp_path: Path, table: str) -> None:
    """Also for an attempt after the first: w0 cannot be reached."""
    settings = Settings(models={"m": TABLES[table]}, stale_after_s=1e6)
    async with NativeRig(tmp_path, settings=settings, stale_after_s=STALE_AFTER_S).running() as rig:
        for worker in rig.workers:
            models = tuple(ModelReport("m", version, ready=True) for version in LOADED[worker.name])
            device = "T4" if worker.name == "w2" else "A100"
            rig.router.observe(Report(worker.name, 1, 1, True, models=models, device=device), time.monotonic())
        splits = Splits()
        if table == "split":
            splits.configure({"m": SplitSettings("1", "2", 1.0)})
            splits.of["m"].returned = "it does worse"
        rig.router.directory.share_splits(splits)
        rig.router.tick(time.monotonic())
        assert await rig.infer() in {"w0", "w1"}
        await rig.all_ended()
        await rig.workers[0].stop()
        assert rig.router.state.lock()
        await holds(rig, table)
        rig.router.state.unlock()
        rig.die()
        await eventually(rig.does_without)
        await holds(rig, table)


async def holds(rig: NativeRig, table: str) -> None:
    for worker in rig.workers:
        worker.requests.clear()
        worker.http_requests.clear()
    for _ in range(12):
        assert await rig.infer() == "w1"
        async with rig.http.post(f"http://{rig.envoy.endpoint}/v2/models/m/infer", data=b"{}") as response:
            assert (response.status, await response.text()) == (200, "w1")
    assert {request.model_version for worker in rig.workers for request in worker.requests} == {GIVEN[table]}
    path = f"/v2/models/m/versions/{GIVEN[table]}/infer" if GIVEN[table] else "/v2/models/m/infer"
    assert {path for worker in rig.workers for path, _, _ in worker.http_requests} == {path}
    if "pin" in table:
        named = a_request()
        named.model_version = "3"
        with pytest.raises(grpc.aio.AioRpcError, match="no worker may serve model 'm' now"):
            await rig.stub.ModelInfer(named, timeout=PATIENCE_S)
