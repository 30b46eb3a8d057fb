"""Whatever becomes of the balancer and of what it shares: no request fails, and Envoy lives."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.envoy_fakes import eventually
from support.native import NativeRig

from balancer.core.events import WorkerAdded, WorkerRemoved
from balancer.front.state import STALE_AFTER_S

pytestmark = pytest.mark.integration


async def all_served(rig: NativeRig, count: int = 12) -> None:
    assert all([await rig.infer() in {"w0", "w1", "w2"} for _ in range(count)])


async def picks_again(rig: NativeRig) -> bool:
    before = rig.router.state.counts()["picked"]
    await rig.infer()
    return rig.router.state.counts()["picked"] > before


async def test_when_the_balancer_dies_envoy_chooses_and_asks_nobody(rig: NativeRig) -> None:
    await all_served(rig)
    rig.die()
    await asyncio.sleep(2 * STALE_AFTER_S)
    counts = rig.router.state.counts()
    await all_served(rig)
    assert rig.router.state.counts() == counts | {"least_stale": counts["least_stale"] + 12}
    assert rig.balancer.seen == []


async def test_a_balancer_that_returns_decides_again(rig: NativeRig) -> None:
    await all_served(rig)
    rig.die()
    rig.begin()
    await eventually(lambda: picks_again(rig))
    await all_served(rig, 30)
    assert rig.router.fleet.queue.in_flight.sum() == 0


async def test_a_balancer_that_was_stopped_goes_on(rig: NativeRig) -> None:
    rig.hold_beats()
    await asyncio.sleep(2 * STALE_AFTER_S)
    await all_served(rig)
    rig.go_on_beating()
    await eventually(lambda: picks_again(rig))


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def another(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content.replace(b"\x01", b"\xff"))


def empty(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [garbage, another, empty, gone])
@pytest.mark.parametrize("name", ["control", "books", "directory-*", "options-*"])
async def test_whatever_is_in_the_files_requests_are_served(
    rig: NativeRig, name: str, spoil: Callable[[Path], None]
) -> None:
    """First under an Envoy that has them mapped, then for one that looks for them anew."""
    await all_served(rig, 3)
    for path in rig.folder.glob(name):
        spoil(path)
    await all_served(rig)
    rig.die()
    await asyncio.sleep(2 * STALE_AFTER_S)
    await all_served(rig)
    rig.begin()
    await eventually(lambda: picks_again(rig))


async def test_somebody_keeps_the_lock(rig: NativeRig) -> None:
    await all_served(rig)
    assert rig.router.state.lock()
    await all_served(rig, 3)
    assert rig.router.state.counts()["least_locked"] == 3
    rig.router.observe(WorkerAdded("w0"), time.monotonic())
    assert rig.router.replaced == 1
    await eventually(lambda: picks_again(rig))
    assert rig.router.fleet.queue.in_flight.sum() == 0


async def test_workers_come_and_go_under_requests(rig: NativeRig) -> None:
    going = asyncio.gather(*(all_served(rig, 100) for _ in range(4)))
    for number in range(40):
        rig.router.observe(WorkerAdded(f"x{number}"), time.monotonic())
        await asyncio.sleep(0.005)
    for number in range(40):
        rig.router.observe(WorkerRemoved(f"x{number}"), time.monotonic())
        await asyncio.sleep(0.005)
    await going
    await eventually(lambda: asyncio.sleep(0, not rig.router.state.in_flight))
    assert rig.router.fleet.queue.in_flight.tolist() == [0, 0, 0]
    assert rig.router.fleet.block.room.workers == 64
    assert rig.router.state.counts()["picked"] > 200


async def test_what_an_envoy_had_in_flight_when_it_died_counts_no_more(rig: NativeRig) -> None:
    for worker in rig.workers:
        worker.infer = lambda *_: asyncio.Event().wait()
    calls = [asyncio.create_task(rig.infer()) for _ in range(5)]
    await eventually(lambda: asyncio.sleep(0, rig.router.state.in_flight == 5))
    assert rig.router.fleet.queue.in_flight.sum() == 5
    await rig.envoy.kill()
    await asyncio.gather(*calls, return_exceptions=True)
    rig.router.give_up(time.monotonic())
    assert rig.router.state.in_flight == 0
    assert rig.router.fleet.queue.in_flight.sum() == 0
    assert rig.router.outcomes["expired"] == 5
