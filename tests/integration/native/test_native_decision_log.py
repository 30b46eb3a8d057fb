"""Decisions that a real Envoy makes by itself are recorded, and decided again: the same, bit for bit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.native import NativeRig
from support.waiting import eventually

from balancer.front.folder import JOURNAL
from balancer.operate.decision_log.files import DecisionFiles
from balancer.operate.decision_log.reading import read_log
from balancer.operate.decision_log.recorded import DecisionLog
from balancer.operate.native_recording import NativeRecording
from simulator.replay import replay

pytestmark = pytest.mark.integration


@dataclass
class Kept:
    """The decision log of a rig, while it is kept."""

    rig: NativeRig
    folder: Path
    lost: list[int] = field(default_factory=list)

    def begin(self) -> None:
        self.files = DecisionFiles(self.folder, "0", 2**30, 100, self._count)
        router = self.rig.router
        self.recording = NativeRecording(router, self.files, process="0", seed=7, share=1, now_s=0.0, unix_s=0.0)
        router.witness = self.recording

    def _count(self, result: str, lines: int) -> None:
        if result == "dropped":
            self.lost.append(lines)

    def end(self) -> DecisionLog:
        self.rig.router.witness = None
        self.recording.close()
        self.files.close(30.0)
        return read_log(self.folder)


@pytest.fixture
def kept(rig: NativeRig, tmp_path: Path) -> Kept:
    kept = Kept(rig, tmp_path / "decisions")
    kept.begin()
    return kept


async def test_what_envoy_decides_is_decided_again(rig: NativeRig, kept: Kept) -> None:
    for number in range(20):
        await rig.infer(metadata=(("x-routing-key", f"user-{number}"), ("x-tenant", "me")) if number % 4 == 0 else ())
        kept.recording.drain()
    await eventually(lambda: not rig.router.state.in_flight)
    assert rig.balancer.seen == []
    log = kept.end()
    assert len(log) == len(log.outcomes) == 20
    assert replay(log).exact
    assert {compared.role: compared.decisions for compared in replay(log).compared} == {"in_force": 15, "hash": 5}
    assert [d.request.tenant for d in log][:5] == ["me", "", "", "", "me"]
    joined = log.joined()
    assert joined.ok.all()
    assert (joined.served == joined.pick).all()
    assert (joined.latency_s > 0).all()


async def test_while_requests_flow_it_begins_and_ends(rig: NativeRig, kept: Kept) -> None:
    done = asyncio.Event()

    async def load() -> int:
        count = 0
        while not done.is_set():
            await rig.infer()
            count += 1
        return count

    loads = asyncio.gather(*(load() for _ in range(3)))
    recorded = 0
    for _ in range(5):
        before = rig.router.state.counts()["picked"]
        await eventually(lambda before=before: rig.router.state.counts()["picked"] > before + 20)
        log = kept.end()
        assert len(log) >= recorded + 20
        recorded = len(log)
        before = rig.router.state.counts()["picked"]
        await eventually(lambda before=before: rig.router.state.counts()["picked"] > before + 20)
        kept.begin()
    done.set()
    assert recorded < sum(await loads)
    assert rig.balancer.seen == []
    log = kept.end()
    assert not log.cut
    numbers = [int(decision.request.number) for decision in log]
    assert numbers == sorted(numbers)
    assert replay(log).exact


async def test_a_journal_spoiled_costs_no_request(rig: NativeRig, kept: Kept) -> None:
    await rig.infer()
    path = rig.folder / JOURNAL
    with path.open("r+b") as file:
        file.write(b"\xff" * 4096)
    for _ in range(6):
        await rig.infer()
    assert not kept.recording.drain()
    for _ in range(6):
        await rig.infer()
    path.unlink()
    for _ in range(6):
        await rig.infer()
    log = kept.end()
    assert 6 <= len(log) <= 18
    assert sum(kept.lost) >= 1
    assert replay(log).exact


async def test_what_an_envoy_told_before_it_died_is_kept(rig: NativeRig, kept: Kept) -> None:
    for _ in range(10):
        await rig.infer()
    await rig.envoy.kill()
    assert len(kept.end()) == 10


async def test_when_somebody_keeps_the_lock_what_was_told_is_kept(rig: NativeRig, kept: Kept) -> None:
    for _ in range(6):
        await rig.infer()
    assert rig.router.state.lock()
    rig.router.tick(0.0)
    assert rig.router.replaced == 1

    async def told_again() -> bool:
        before = rig.router.state.counts()["picked"]
        await rig.infer()
        return rig.router.state.counts()["picked"] > before

    await eventually(told_again)
    log = kept.end()
    assert len(log) >= 7
    assert replay(log).exact
