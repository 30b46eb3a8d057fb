"""Whatever becomes of the balancer and of what it shares: no request fails, and Envoy lives."""

import asyncio
import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.envoy_fakes import a_request
from support.native import NativeRig
from support.waiting import PATIENCE_S, eventually

from balancer.bootstrap.native import NativeOptions
from balancer.kernel.compiled.library import PATH
from balancer.native import envoy_module as module
from balancer.native.enums import Source
from balancer.scheduler.events import WorkerAdded, WorkerRemoved

pytestmark = pytest.mark.integration
SEQUENCES = range(1, 13)


async def all_served(rig: NativeRig, count: int = 12) -> None:
    assert all([await rig.infer() in {"w0", "w1", "w2"} for _ in range(count)])


async def test_when_the_balancer_dies_envoy_chooses_until_it_returns_and_asks_nobody(mortal: NativeRig) -> None:
    await all_served(mortal)
    mortal.die()
    await eventually(mortal.does_without)
    counts = mortal.router.state.counts()
    await all_served(mortal)
    assert mortal.router.state.counts() == counts | {"least_stale": counts["least_stale"] + 12}
    mortal.begin()
    await eventually(mortal.picks)
    await all_served(mortal, 30)
    await mortal.all_ended()
    assert mortal.balancer.seen == []


async def test_what_ends_while_the_balancer_is_stopped_is_counted_out(mortal: NativeRig) -> None:
    go, ways = asyncio.Event(), [worker.infer for worker in mortal.workers]
    calls: list[asyncio.Task[str]] = []
    arrived = 0

    async def slow(request: Any, context: Any) -> Any:
        nonlocal arrived
        arrived += 1
        await go.wait()
        return mortal.workers[0].answer(request)

    for worker in mortal.workers:
        worker.infer = slow

    async def six_are_counted() -> bool:
        """Where this process is kept from its signs of life, one may be sent without being counted in."""
        if mortal.router.state.in_flight < 6 and arrived == len(calls):
            calls.append(asyncio.create_task(mortal.infer()))
        return mortal.router.state.in_flight == 6

    await eventually(six_are_counted)
    mortal.hold_beats()
    for worker, infer in zip(mortal.workers, ways, strict=True):
        worker.infer = infer
    await eventually(mortal.does_without)
    go.set()
    await asyncio.gather(*calls)
    await mortal.all_ended()
    mortal.go_on_beating()
    await eventually(mortal.picks)
    await mortal.all_ended()
    # None is told of twice, nor forgotten.
    outcomes = mortal.all_outcomes()
    assert (outcomes["source"] == Source.BY_POLICY).sum() == mortal.router.state.counts()["picked"]


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def another(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    # Small numbers are others, the version first of all.
    path.write_bytes(content.translate(bytes.maketrans(bytes(range(1, 9)), bytes(range(255, 247, -1)))))


def empty(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [garbage, another, empty, gone])
async def test_whatever_is_in_the_files_requests_are_served(mortal: NativeRig, spoil: Callable[[Path], None]) -> None:
    """First under an Envoy that has them mapped, then for one that looks for them anew."""
    for name in ("control", "fleet_state", "directory-*", "options-*"):
        await all_served(mortal, 3)
        for path in mortal.folder.glob(name):
            spoil(path)
        await all_served(mortal)
        mortal.die()
        await eventually(mortal.does_without, f"{name} is given up with its balancer")
        await all_served(mortal)
        mortal.begin()
        await eventually(mortal.picks, f"a new {name} is used")


async def served_by(rig: NativeRig, sequences: range) -> list[str]:
    """Who serves a request of each."""
    workers = []
    for sequence in sequences:
        request = a_request()
        request.parameters["sequence_id"].int64_param = sequence
        workers.append((await rig.stub.ModelInfer(request, timeout=PATIENCE_S)).id)
    return workers


async def test_sequences_stay_where_they_are_without_the_lock_and_without_a_balancer(mortal: NativeRig) -> None:
    before = await served_by(mortal, SEQUENCES)
    assert set(before) == {"w0", "w1", "w2"}
    await mortal.all_ended()
    assert mortal.router.state.lock()
    assert await served_by(mortal, SEQUENCES) == before
    mortal.router.state.unlock()
    mortal.die()
    await eventually(mortal.does_without)
    assert await served_by(mortal, SEQUENCES) == before
    assert mortal.balancer.seen == []


async def test_workers_come_and_go_under_requests(rig: NativeRig) -> None:
    """Each change under requests: three clients go on until all have come and gone."""
    sent, done = 0, asyncio.Event()

    async def client() -> None:
        nonlocal sent
        while not done.is_set():
            await all_served(rig, 1)
            sent += 1

    going = asyncio.gather(*(client() for _ in range(3)))
    for event in (WorkerAdded, WorkerRemoved):
        for number in range(40):
            rig.router.observe(event(f"x{number}"), time.monotonic())
            before = sent
            await eventually(lambda before=before: sent >= before + 3)
    done.set()
    await going
    counts = rig.router.state.counts()
    # The lock is not to be had where this process is kept waiting with it, and an end is then counted with the next.
    assert counts["picked"] + counts["left_to_balancer"] + counts["least_locked"] == sent
    await eventually(rig.picks)
    await rig.all_ended()
    assert rig.router.fleet.names == ["w0", "w1", "w2"]
    assert rig.router.replaced == 0
    assert rig.router.fleet.block.room.workers == 64


async def test_files_of_the_module_that_go_missing_under_envoy_are_not_missed(tmp_path: Path) -> None:
    """As while a package is taken away or replaced: Envoy has them in memory, and they are replaced by renaming."""
    copies = [Path(shutil.copy(path, tmp_path)) for path in (module.PATH, PATH)]
    rig = NativeRig(tmp_path)
    rig.options = dataclasses.replace(rig.options, native=NativeOptions(*copies, rig.folder))
    async with rig.running():
        await all_served(rig)
        for copy in copies:
            copy.unlink()
        counts = rig.router.state.counts()
        await all_served(rig)
        assert rig.router.state.counts() == counts | {"picked": counts["picked"] + 12}
        assert rig.balancer.seen == []


async def test_what_an_envoy_had_in_flight_when_it_died_counts_no_more(rig: NativeRig) -> None:
    for worker in rig.workers:
        worker.infer = lambda *_: asyncio.Event().wait()
    calls = [asyncio.create_task(rig.infer()) for _ in range(5)]
    await eventually(lambda: rig.router.state.in_flight == 5)
    await eventually(lambda: rig.router.fleet.queue.in_flight.sum() == 5)
    await rig.envoy.kill()
    await asyncio.gather(*calls, return_exceptions=True)
    rig.router.give_up(time.monotonic())
    assert rig.router.state.in_flight == 0
    assert rig.router.fleet.queue.in_flight.sum() == 0
    assert rig.router.outcomes["expired"] == 5
