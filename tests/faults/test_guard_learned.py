"""The learned policy under load, when what it knows is cut off, exceeded, or replaced by nonsense."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fronts
from support.load import steady_load
from support.stack import Stack
from support.waiting import eventually

from policies.learned.artifact import make_artifact, write_artifact
from policies.learned.features import FEATURES
from policies.learned.network import untrained

pytestmark = pytest.mark.integration

NARROW = {name: np.log1p(4.0) for name in ("pending", "mean_pending", "reported_pending")}
"""Trained, as it were, on queues of four clients at most; of all else it has seen everything."""


def weights(folder: Path, name: str = "narrow.npz", scale: float = 1.0) -> dict[str, Any]:
    """A policy of the config with a file that is as training would have written it, but for the scale of a weight."""
    network = untrained()
    network = network._replace(**{network._fields[0]: np.asarray(network[0]) * scale})
    highest = np.array([NARROW.get(feature.name, 20.0) for feature in FEATURES])
    (folder / name).write_bytes(write_artifact(make_artifact(network, np.zeros(len(FEATURES)), highest, {})))
    return {"name": "learned", "options": {"file": name}}


class Learned:
    """A stack that serves by the learned policy."""

    def __init__(self, directory: Path, envoy: dict[str, str]) -> None:
        self.directory = directory
        directory.mkdir()
        settings: dict[str, Any] = {"guard": {"quiet_s": 0.5}, "envoy": envoy}
        if envoy["frontend"] == "pick":
            settings["log"] = {"decisions_share": 1.0}
        self.stack = Stack(directory, settings=settings, policy=weights(directory))

    def decided(self) -> list[str]:
        """The policy of every decision so far, in order."""
        return [record["policy"] for record in self.stack.log.so_far() if record["logger"] == "balancer.decisions"]

    async def decides(self, policy: str) -> None:
        so_far = await self.stack.metric("balancer_decisions_total", policy=policy)
        await eventually(
            lambda: self.stack.metric("balancer_decisions_total", policy=policy),
            f"decisions by {policy}",
            until=lambda value: value > so_far,
        )

    async def falls(self, reason: str) -> None:
        await eventually(
            lambda: self.stack.metric("balancer_guard_breaches_total", policy="learned", reason=reason),
            f"out of service because of {reason}",
            until=lambda value: value >= 1,
        )
        await self.decides("expected_latency")


@pytest.fixture
async def learned(tmp_path: Path, envoy: dict[str, str]) -> AsyncIterator[Learned]:
    learned = Learned(tmp_path / "stack", envoy)
    try:
        await learned.stack.start()
        yield learned
    finally:
        await learned.stack.stop()


@fronts.frontend("native", "pick")
async def test_load_beyond_training(learned: Learned) -> None:
    async with steady_load(learned.stack.url, clients=4) as load:
        await learned.decides("learned")
        async with steady_load(learned.stack.url, clients=40) as flood:
            await learned.falls("range")
        await learned.decides("learned")
    assert not load.failures()
    assert not flood.failures()


async def test_weights_that_are_no_numbers_or_of_another_schema_are_refused_and_the_old_ones_serve(
    learned: Learned, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = learned.stack
    good = (learned.directory / "narrow.npz").read_bytes()
    (learned.directory / "cut.npz").write_bytes(good[: len(good) // 2])
    bad = [weights(learned.directory, "nan.npz", scale=float("nan"))]
    with monkeypatch.context() as other:
        other.setattr("policies.learned.artifact.SCHEMA", "0123456789abcdef")
        bad.append(weights(learned.directory, "other.npz"))
    bad += [{"name": "learned", "options": {"file": name}} for name in ("cut.npz", "missing.npz")]
    async with steady_load(stack.url, clients=4) as load:
        for refused, policy in enumerate(bad, start=1):
            stack.write_config(policy)
            await eventually(
                lambda: stack.get("/config"),
                f"{policy['options']} refused",
                until=lambda page, refused=refused: page["refused"] == refused,
            )
            assert "options" in str((await stack.get("/config"))["last_error"])
            await learned.decides("learned")
    assert not load.failures()
    assert set(learned.decided()) <= {"learned", "expected_latency"}  # the latter in its windows
