"""Decisions that a real Envoy makes by itself are recorded, and decided again: the same, bit for bit."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.native import NativeRig
from support.waiting import eventually

from balancer.server.decision_log.files import DecisionFiles
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog
from balancer.server.native.recording import NativeRecording
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
        router.observer = self.recording

    def _count(self, result: str, lines: int) -> None:
        if result == "dropped":
            self.lost.append(lines)

    def end(self) -> DecisionLog:
        self.rig.router.observer = None
        self.recording.close()
        self.files.close(30.0)
        return read_log(self.folder)


@pytest.fixture
def kept(rig: NativeRig, tmp_path: Path) -> Kept:
    kept = Kept(rig, tmp_path / "decisions")
    kept.begin()
    return kept


async def test_what_envoy_decided_before_it_died_is_decided_again(rig: NativeRig, kept: Kept) -> None:
    for number in range(20):
        await rig.infer(metadata=(("x-routing-key", f"user-{number}"), ("x-tenant", "me")) if number % 4 == 0 else ())
        kept.recording.drain()
    await eventually(lambda: not rig.router.state.in_flight)
    assert rig.balancer.seen == []
    await rig.infer()
    await eventually(lambda: not rig.router.state.in_flight)
    await rig.envoy.kill()
    log = kept.end()
    assert len(log) == len(log.outcomes) == 21
    assert replay(log).exact
    assert {compared.role: compared.decisions for compared in replay(log).compared} == {"in_force": 16, "hash": 5}
    assert [d.request.tenant for d in log][:5] == ["me", "", "", "", "me"]
    joined = log.joined()
    assert joined.ok.all()
    assert (joined.served == joined.pick).all()
    assert (joined.latency_s > 0).all()
