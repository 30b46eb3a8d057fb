"""A policy misbehaves, loses its reports, or meets what it was not trained for, under load: a baseline steps in, and it
comes back."""

import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fronts
from support.load import steady_load
from support.plugins import installed
from support.running import running
from support.stack import Stack, records
from support.waiting import eventually
from support.weights import write_weights

from balancer.stack.stack import read_samples, replace_text, sum_of

pytestmark = pytest.mark.integration

GUARD = {"quiet_s": 0.5}
CLIENTS = 4


class Guarded:
    """A stack whose policy, or rolled-out policy, the guard watches."""

    def __init__(self, directory: Path, envoy: Mapping[str, str], policy: Mapping[str, Any], **options: Any) -> None:
        self.policy = policy
        self.stack = Stack(directory, settings={"guard": GUARD, "envoy": envoy}, policy=policy, **options)

    async def decided(self, policy: str) -> float:
        """Decisions by that policy so far."""
        return await self.stack.metric("balancer_decisions_total", policy=policy)

    async def decides(self, policy: str, times: int = 1) -> None:
        """Wait until so many decisions are made by that policy from now on."""
        so_far = await self.decided(policy)
        await eventually(
            lambda: self.decided(policy), f"decisions by {policy}", until=lambda found: found >= so_far + times
        )

    async def falls(self, reason: str, times: int = 1) -> None:
        """Wait until the guard has taken the policy out of service for that reason, and the baseline decides."""

        async def fallen() -> bool:
            name, page = self.policy["name"], await read_samples(self.stack.admin())
            count = sum_of(page, "balancer_guard_breaches_total", policy=name, reason=reason)
            return count >= times and sum_of(page, "balancer_guard_fallen_back", policy=name) == 1

        await eventually(fallen, f"out of service because of {reason}\n{self.stack.logs()}")
        await self.decides("expected_latency")

    async def returns(self) -> None:
        """Wait until the policy is in service again."""
        await eventually(
            lambda: self.stack.metric("balancer_guard_fallen_back", policy=self.policy["name"]),
            "back in service",
            until=lambda value: value == 0,
        )


class Moody(Guarded):
    """Its policy does as a file says."""

    def __init__(self, directory: Path, envoy: Mapping[str, str]) -> None:
        self._file = directory / "mood"
        self.be("good")
        policy = {"name": "moody_file", "options": {"mood": str(self._file)}}
        super().__init__(directory / "stack", envoy, policy, patient=False)

    def be(self, mood: str) -> None:
        """From the next decision on."""
        replace_text(self._file, mood)


@pytest.fixture
async def moody(tmp_path: Path, envoy: dict[str, str]) -> AsyncIterator[Moody]:
    with installed("moody_plugin"):
        moody = Moody(tmp_path, envoy)
        async with running(moody.stack):
            yield moody


async def test_a_policy_that_misbehaves_is_replaced_costs_no_request_and_comes_back(moody: Moody) -> None:
    causes = {"nan": "invalid", "raise": "invalid", "slow": "slow", "strange": "range"}
    seen: dict[str, int] = {}
    async with steady_load(moody.stack.url, clients=CLIENTS) as load:
        for mood, reason in causes.items():
            await moody.decides("moody_file")
            moody.be(mood)
            seen[reason] = seen.get(reason, 0) + 1
            await moody.falls(reason, seen[reason])
            page = await moody.stack.get("/explain?model=emulated_tft")
            assert page["decides"] == "expected_latency"
            assert page["guards"]["moody_file"]["reason"] == reason
            moody.be("good")
            await moody.returns()
        await moody.decides("moody_file")
    assert not load.failures()
    logged = [r for r in records(moody.stack.directory / "balancer.log") if r["message"].startswith("guard: ")]
    # In this order; a busy machine may be slow in between.
    events = iter([(r["level"], r["reason"]) for r in logged])
    assert all((level, reason) in events for reason in causes.values() for level in ("WARNING", "INFO")), logged


async def test_without_reports_it_is_replaced_until_they_are_back(moody: Moody) -> None:
    agents = [agent.process.pid for agent in moody.stack.agents]
    async with steady_load(moody.stack.url, clients=CLIENTS) as load:
        await moody.decides("moody_file")
        for pid in agents:
            os.killpg(pid, signal.SIGSTOP)
        try:
            await moody.falls("reports")
        finally:
            for pid in agents:
                os.killpg(pid, signal.SIGCONT)
        await moody.returns()
        await moody.decides("moody_file")
    assert not load.failures()


NARROW = {name: np.log1p(4.0) for name in ("pending", "mean_pending", "reported_pending")}
"""Trained, as it were, on queues of four clients at most; of all else it has seen everything."""


@fronts.frontend("native", "pick")
async def test_a_learned_policy_is_replaced_while_the_load_is_beyond_its_training(
    tmp_path: Path, envoy: dict[str, str]
) -> None:
    write_weights(tmp_path / "narrow.npz", **NARROW)
    policy = {"name": "learned", "options": {"file": str(tmp_path / "narrow.npz")}}
    learned = Guarded(tmp_path / "stack", envoy, policy)
    async with running(learned.stack), steady_load(learned.stack.url, clients=4) as load:
        await learned.decides("learned")
        async with steady_load(learned.stack.url, clients=40) as flood:
            await learned.falls("range")
        await learned.decides("learned")
    assert not load.failures()
    assert not flood.failures()
