"""A trained policy misbehaves, or loses its reports, under load: a baseline steps in, and it comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import support
from support.load import steady_load
from support.stack import Stack, records
from support.waiting import eventually

from balancer.config.policy_options import installed_policies
from balancer.stack.stack import read_samples, sum_of

pytestmark = pytest.mark.integration

PLUGIN = Path(support.__file__).parent / "moody_plugin"
GUARD = {"quiet_s": 0.5}
CLIENTS = 4


class Moody:
    """A stack whose policy, or rolled-out policy, does as a file says."""

    def __init__(self, directory: Path, envoy: dict[str, str]) -> None:
        self._file = directory / "mood"
        self.be("good")
        self.policy: Mapping[str, Any] = {"name": "moody_file", "options": {"mood": str(self._file)}}
        settings = {"guard": GUARD, "envoy": envoy}
        self.stack = Stack(directory / "stack", settings=settings, policy=self.policy, patient=False)

    def be(self, mood: str) -> None:
        """From the next decision on; whole, by renaming."""
        draft = self._file.with_suffix(".new")
        draft.write_text(mood)
        draft.rename(self._file)

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
        """Wait until the guard has taken the policy out of service for that reason."""

        async def fallen() -> bool:
            name, page = self.policy["name"], await read_samples(self.stack.admin())
            count = sum_of(page, "balancer_guard_breaches_total", policy=name, reason=reason)
            return count == times and sum_of(page, "balancer_guard_fallen_back", policy=name) == 1

        await eventually(fallen, f"out of service because of {reason}\n{self.stack.logs()}")

    async def returns(self) -> None:
        """Wait until the policy is in service again."""
        await eventually(
            lambda: self.stack.metric("balancer_guard_fallen_back", policy=self.policy["name"]),
            "back in service",
            until=lambda value: value == 0,
        )


@pytest.fixture
async def moody(tmp_path: Path, envoy: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Moody]:
    # As if installed, for the balancer and for this process, which reads the config too.
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN), prepend=os.pathsep)
    monkeypatch.syspath_prepend(PLUGIN)
    installed_policies.cache_clear()
    moody = Moody(tmp_path, envoy)
    try:
        await moody.stack.start()
        yield moody
    finally:
        await moody.stack.stop()
        installed_policies.cache_clear()


async def test_a_policy_that_misbehaves_is_replaced_costs_no_request_and_comes_back(moody: Moody) -> None:
    causes = {"nan": "invalid", "raise": "invalid", "slow": "slow", "strange": "range"}
    seen: dict[str, int] = {}
    async with steady_load(moody.stack.url, clients=CLIENTS) as load:
        for mood, reason in causes.items():
            await moody.decides("moody_file")
            moody.be(mood)
            seen[reason] = seen.get(reason, 0) + 1
            await moody.falls(reason, seen[reason])
            await moody.decides("expected_latency")
            page = await moody.stack.get("/explain?model=emulated_tft")
            assert page["decides"] == "expected_latency"
            assert page["guards"]["moody_file"]["reason"] == reason
            moody.be("good")
            await moody.returns()
        await moody.decides("moody_file")
    assert not load.failures()
    logged = [r for r in records(moody.stack.directory / "balancer.log") if r["message"].startswith("guard: ")]
    assert [(r["level"], r["reason"]) for r in logged] == [
        (level, reason) for reason in causes.values() for level in ("WARNING", "INFO")
    ]


async def test_without_reports_it_is_replaced_until_they_are_back(moody: Moody) -> None:
    agents = [agent.process.pid for agent in moody.stack.agents]
    async with steady_load(moody.stack.url, clients=CLIENTS) as load:
        await moody.decides("moody_file")
        for pid in agents:
            os.killpg(pid, signal.SIGSTOP)
        try:
            await moody.falls("reports")
            await moody.decides("expected_latency")
        finally:
            for pid in agents:
                os.killpg(pid, signal.SIGCONT)
        await moody.returns()
        await moody.decides("moody_file")
    assert not load.failures()


async def test_a_rollout_returns_when_the_new_policy_misbehaves(moody: Moody) -> None:
    stack = moody.stack
    rollout = {**moody.policy, "shares": [0.5, 1.0], "step_s": 600}
    async with steady_load(stack.url, clients=CLIENTS) as load:
        stack.write_config({"name": "wlpr"}, rollout=rollout)
        await moody.decides("wlpr")
        await moody.decides("moody_file")
        moody.be("nan")
        await eventually(
            lambda: stack.get("/guard"),
            "the rollout returned",
            until=lambda page: page["rollout"]["state"] == "returned",
        )
        moody.be("good")
        so_far = await moody.decided("moody_file")
        await moody.decides("wlpr", 100)
        assert await moody.decided("moody_file") - so_far <= CLIENTS  # were in flight when it returned
        page = (await stack.get("/guard"))["rollout"]
        assert (page["from"], page["to"], page["reason"], page["share"]) == ("wlpr", "moody_file", "invalid", 0.0)
        assert await stack.metric("balancer_rollout_share", policy="moody_file") == 0
    assert not load.failures()
