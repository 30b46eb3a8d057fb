"""A policy of a third party that nothing compiles decides within a real Envoy, by probabilities that are published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.both_fronts import BothFronts
from support.published import Thirds
from support.waiting import eventually

from balancer.operate.decision_log.files import DecisionFiles
from balancer.operate.decision_log.reading import read_log
from balancer.operate.native_recording import NativeRecording
from policies import BUILTIN
from policies.base import Policy
from simulator.replay import replay

pytestmark = pytest.mark.integration
PICKER, MODULE = "asked", "published"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[BothFronts]:
    async with BothFronts(tmp_path, policy=Thirds()).running() as rig:
        assert isinstance(rig, BothFronts)
        yield rig


def count(rig: BothFronts, name: str) -> int:
    return rig.router.state.counts()[name]


async def decides(rig: BothFronts, who: str) -> None:
    """Return once that is who decides."""

    async def another() -> bool:
        before = count(rig, who)
        await rig.infer()
        return count(rig, who) > before

    await eventually(another)


async def test_envoy_decides_and_spreads_as_the_policy_would(rig: BothFronts) -> None:
    await decides(rig, MODULE)
    before = count(rig, MODULE)
    served = [name for _ in range(20) for name in await asyncio.gather(*(rig.infer() for _ in range(6)))]
    # The process may be kept from making a table for longer than one lasts.
    assert count(rig, MODULE) - before > 100
    assert {served.count(name) > 25 for name in ("w0", "w1", "w2")} == {True}
    await rig.all_ended()
    assert rig.samples("balancer_published_decisions_total")[()] == count(rig, MODULE)
    assert rig.samples("balancer_published_tables")[()] == 1
    assert rig.samples("balancer_native_requests_total")["picked",] == count(rig, "picked")
    assert ("published",) not in rig.samples("balancer_native_requests_total")


async def test_it_is_swapped_to_and_from_without_a_failure(rig: BothFronts) -> None:
    done = asyncio.Event()

    async def load() -> int:
        requests = 0
        while not done.is_set():
            await rig.infer()
            requests += 1
        return requests

    loads = asyncio.gather(*(load() for _ in range(3)))
    for _ in range(3):
        await decides(rig, MODULE)
        rig.router.configure(BUILTIN["round_robin"](), rig.settings)
        published = count(rig, MODULE)
        picked = count(rig, "picked")
        await eventually(lambda picked=picked: count(rig, "picked") > picked + 20)
        assert count(rig, MODULE) == published
        rig.router.configure(Thirds(), rig.settings)
    done.set()
    assert await loads


@pytest.mark.parametrize("policy", [Thirds(raises=True), Thirds(sheds=True)], ids=["raises", "sheds"])
async def test_what_cannot_be_published_is_asked_for(rig: BothFronts, policy: Policy) -> None:
    await decides(rig, MODULE)
    rig.router.configure(policy, rig.settings)
    published = count(rig, MODULE)
    if policy == Thirds(raises=True):
        for _ in range(10):
            await rig.infer()
        assert rig.router.failures["thirds"] >= 10
    assert count(rig, MODULE) == published
    rig.router.configure(Thirds(), rig.settings)
    await decides(rig, MODULE)


async def test_a_balancer_that_makes_no_tables_is_asked(rig: BothFronts, monkeypatch: pytest.MonkeyPatch) -> None:
    await decides(rig, MODULE)
    monkeypatch.setattr(rig.router, "publish_tables", lambda _: 0.01)
    await decides(rig, PICKER)
    monkeypatch.undo()
    await decides(rig, MODULE)


async def test_decisions_are_recorded_and_drawn_again(
    rig: BothFronts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("balancer.operate.decision_log.recorded.policy_class", lambda _: Thirds)
    files = DecisionFiles(tmp_path / "decisions", "0", 2**30, 100, lambda *_: None)
    recording = NativeRecording(rig.router, files, process="0", seed=7, share=1, now_s=0.0, unix_s=0.0)
    rig.router.witness = recording
    await decides(rig, MODULE)
    for _ in range(5):
        await asyncio.gather(*(rig.infer() for _ in range(8)))
    await rig.all_ended()
    rig.router.witness = None
    recording.close()
    files.close(30.0)
    log = read_log(tmp_path / "decisions")
    found = replay(log)
    assert found.exact, found.mismatches
    roles = {compared.role: compared.decisions for compared in found.compared}
    assert roles["published"] == count(rig, MODULE)
    assert roles.keys() <= {"published", "in_force"}
    assert all(0 < decision.propensity <= 1 for decision in log)
    # With another policy in its place it is asked as the one in force is.
    assert not replay(log, BUILTIN["round_robin"]()).left_out.any()
