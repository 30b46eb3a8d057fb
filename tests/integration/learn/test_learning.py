"""`balancer learn` beside a real balancer: what it writes is in force, and a whole round while requests flow."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.balancer_alone import BalancerAlone
from support.running import running
from support.stack import Stack
from support.waiting import eventually
from support.weights import write_weights

from balancer.config.learning import NAME, Learned, read_learned, write_learned
from balancer.load.runner import DriveOptions, drive
from balancer.load.workload import LoadWorkload

pytestmark = pytest.mark.integration

MODELS = ("emulated_tft", "emulated_bert_distilled", "emulated_bert_large")
EMULATED = {"EMULATED_GPU_TIME_SCALE": "4", "EMULATED_GPU_CACHE_KEYS": "12", "EMULATED_GPU_CACHE_SAVING": "0.7"}
LEARNS_SOON = (
    *("--every-hours", "1", "--least-requests", "2000", "--shadow-s", "3"),
    # Whether there is something to gain in so short a log is not what this is about.
    *("--unchecked", "--least-gain", "0", "--set", "iterations=12"),
)


async def test_what_it_writes_is_in_force_shown_and_gone_when_switched_off(tmp_path: Path) -> None:
    folder = tmp_path / "learned"
    folder.mkdir()
    write_weights(folder / "policy-1.npz")
    balancer = BalancerAlone(tmp_path, learning={"folder": "learned"})
    stack = balancer._stack  # its config is edited

    async def process() -> Any:
        return (await stack.get("/page.json"))["process"]

    async with running(balancer):
        assert ((await process())["policy"], (await process())["learning"]) == ("expected_latency", "")
        write_learned(folder / NAME, Learned(stage="resting", since_s=1.0, words="it gains", kept="policy-1.npz"))
        found = await eventually(process, "the policy is in force", until=lambda found: found["policy"] == "learned")
        assert found["learning"] == "resting (it gains); policy-1.npz is in force"
        assert await balancer.metric("balancer_learning", stage="resting") == 1
        assert await balancer.metric("balancer_learned_in_force") == 1
        stack.write_config({"name": "expected_latency"}, learning={"folder": "learned", "enabled": False})
        await eventually(process, "it is switched off", until=lambda found: found["policy"] == "expected_latency")
        assert (await process())["learning"] == ""


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_round_while_requests_flow_until_it_is_kept_and_back_when_a_worker_is_gone(tmp_path: Path) -> None:
    sections = {
        "decision_log": {"folder": "decisions"},
        "learning": {"folder": "learned", "step_s": 3.0, "shares": [0.2, 1.0]},
        "requests": {"sticky_keys": False},
        "guard": {"window_s": 0.2, "window_every_s": 1.0},
    }
    stack = Stack(
        tmp_path, models=MODELS, triton_environment=EMULATED, policy={"name": "expected_latency"}, settings=sections
    )
    file = tmp_path / "learned" / NAME

    async def learned() -> Learned | None:
        return read_learned(file)

    async def policy() -> Any:
        return (await stack.get("/workers"))["policy"]

    async with running(stack):
        stop = asyncio.Event()
        flowing = asyncio.create_task(
            drive(stack.url, requests(), DriveOptions(protocol="grpc", duration_s=900), stop=stop)
        )
        address = stack.addresses["listen"]["admin"]
        command = ("learn", "--config", str(stack.config_path), "--balancer", address, *LEARNS_SOON)
        learner = await asyncio.create_subprocess_exec(sys.executable, "-m", "balancer", *command)
        try:
            for stage in ("recording", "training", "shadow", "rollout"):
                await eventually(
                    learned,
                    f"the stage is {stage}",
                    until=lambda found, stage=stage: found is not None and found.stage == stage,
                    patience_s=300,
                )
            assert (
                json.loads((tmp_path / "learned" / "record.jsonl").read_text().splitlines()[0])["stage"] == "recording"
            )
            await eventually(
                learned, "it is kept", until=lambda found: found is not None and found.kept is not None, patience_s=600
            )
            await eventually(policy, "it is in force", until=lambda found: found == "learned")
            stack.list_workers(*stack.specs[:2])
            fell = await eventually(
                learned, "it falls back", until=lambda found: found is not None and found.kept is None, patience_s=30
            )
            assert fell is not None
            assert fell.words == "fell back: a worker is gone: worker-2"
            await eventually(policy, "it is out of force", until=lambda found: found == "expected_latency")
        finally:
            learner.terminate()
            await learner.wait()
            stop.set()
            result = await flowing
        assert {result.codes[code] for code in result.code} == {"OK"}
    shutil.rmtree(tmp_path / "decisions")


def requests() -> LoadWorkload:
    generator, count = np.random.default_rng(1), 200_000
    time_s = np.cumsum(generator.exponential(1 / 100, count))
    model = generator.choice(3, size=count, p=[0.5, 0.35, 0.15])
    keys = tuple(f"user-{number}" for number in generator.integers(0, 60, count))
    return LoadWorkload(MODELS, time_s, model, np.ones(count, np.int64), np.full(count, np.inf), keys)
