"""A rollout to a bad policy under load, on real parts: it goes back by itself, and no request fails."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support import fronts
from support.load import steady_load
from support.plugins import installed
from support.running import running
from support.stack import Stack
from support.waiting import eventually

pytestmark = pytest.mark.integration

MODEL = "emulated_bert_large"
"""Takes many times as long on a T4 as on an A100."""
GUARD = {"window_s": 0.5, "window_every_s": 1.5}


@pytest.fixture
async def stack(tmp_path: Path, envoy: dict[str, str]) -> AsyncIterator[Stack]:
    settings = {"guard": GUARD, "envoy": envoy}
    stack = Stack(tmp_path, models=(MODEL,), settings=settings, policy={"name": "expected_latency"})
    with installed("slowest_plugin"):
        async with running(stack):
            yield stack


@pytest.mark.parametrize("shares", [[0.5, 1.0], pytest.param([1.0], marks=pytest.mark.long)], ids=str)
@fronts.frontend("native", "pick")
async def test_a_rollout_to_the_slowest_worker_returns_by_itself(stack: Stack, shares: list[float]) -> None:
    rollout = {"name": "slowest", "shares": shares, "step_s": 1}
    async with steady_load(stack.url, MODEL, clients=6) as load:
        stack.write_config({"name": "expected_latency"}, rollout=rollout)

        async def returned() -> bool:
            page = (await stack.get("/guard"))["rollout"]
            assert page is None or page["state"] != "finished", page
            return page is not None and bool(page["state"] == "returned")

        await eventually(returned, f"the rollout returned\n{stack.logs()}", patience_s=100.0)
        page = await stack.get("/guard")
        assert page["decides"] == "expected_latency"
        assert (page["rollout"]["share"], page["rollout"]["reason"] in {"tail", "late"}) == (0.0, True)
        assert await stack.metric("balancer_rollout_share", policy="slowest") == 0
        before = await stack.metric("balancer_decisions_total", policy="slowest")
        await load.more(100, "requests after the return")
        assert await stack.metric("balancer_decisions_total", policy="slowest") == before > 0
    assert not load.failures()
    # What was decided outlives the balancer.
    await stack.balancer.kill()
    await stack.start_balancer()
    await stack.all_ready()
    assert (await stack.get("/guard"))["rollout"]["state"] == "returned"
    logged = [r for r in stack.log.so_far() if r["message"].startswith("rollout: ")]
    assert logged[-1]["level"] == "WARNING"
    assert logged[-1]["message"].startswith("rollout: returned to the old policy, for good: ")
    assert not any("finished" in record["message"] for record in logged)
