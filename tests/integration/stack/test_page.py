"""The page, `balancer top` and `check --against` beside real workers, by either front end."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from support.load import steady_load
from support.stack import Stack
from support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]


async def command(*arguments: str) -> tuple[int, str]:
    """Exit status and output of `balancer`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "balancer", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_traffic_is_shown_by_model_policy_and_worker(stack: Stack) -> None:
    async with steady_load(stack.url, clients=4) as load:

        async def seen() -> Any:
            page = await stack.get("/page.json")
            served = [worker["answers_per_s"] > 0 for worker in page["workers"]]
            picked = [part for part in page["recent"]["parts"] if part["policy"] == "round_robin"]
            return page if picked and all(served) and len(served) == 3 and page["states"] == {"ready": 3} else None

        page = await eventually(seen, "all three workers answer")
        status, output = await command("top", "--once", "--balancer", stack.admin())
    assert not load.failures()
    (part,) = (part for part in page["recent"]["parts"] if part["policy"] == "round_robin")
    assert part["rate_per_s"] > 0
    assert part["p99_s"] >= part["p50_s"] > 0
    assert page["process"]["frontend"] == stack.config.envoy.frontend
    assert page["process"]["not_deciding_because"] == ""
    assert page["reads"] == []
    assert sum(each["probability"] for each in page["why"]["workers"]) == pytest.approx(1.0)
    assert status == 0
    assert all(f"worker-{number}" in output for number in range(3))
    assert "round_robin" in output


async def test_a_policy_that_is_swapped_and_a_file_that_is_refused_are_shown(stack: Stack, tmp_path: Path) -> None:
    new = tmp_path / "balancer.yaml"
    new.write_text(stack.config_path.read_text().replace("round_robin", "wlpr"))
    status, output = await command("check", str(new), "--against", stack.admin())
    assert status == 3, output
    words = 'policy.name: "round_robin" becomes "wlpr", at once'
    assert words in output
    try:
        stack.write_text(new.read_text())
        page = await eventually(
            lambda: stack.get("/page.json"),
            "the policy is swapped",
            until=lambda page: page["process"]["policy"] == "wlpr",
        )
        assert words in page["config"]["history"][0]["changes"]
        assert any(event["kind"] == "config" and words in event["words"] for event in page["events"])
        assert (await command("check", str(new), "--against", stack.admin()))[0] == 0
        stack.write_text("policy: {name: wlprr}")
        page = await eventually(
            lambda: stack.get("/page.json"), "the file is refused", until=lambda page: page["config"]["problems"]
        )
        assert "wlprr" in page["config"]["problems"][0]
        assert page["events"][0]["level"] == "error"
    finally:
        stack.write_config(stack.policy)
    await eventually(
        lambda: stack.get("/page.json"),
        "the first policy again",
        until=lambda page: page["process"]["policy"] == "round_robin",
    )
