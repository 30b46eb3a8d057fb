"""Real requests through real parts, recorded while they flow, and decided again: the same, bit for bit."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
from support.inputs import input_of
from support.load import steady_load
from support.running import running
from support.stack import Stack
from support.waiting import eventually

from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog
from policies.wlpr import WeightedLeastPending
from simulator.log.workload import arrivals_from_log
from simulator.replay import replay

pytestmark = pytest.mark.integration


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path, workers=2, processes=2, policy={"name": "expected_latency"})
    async with running(stack):
        yield stack


async def lines_written(stack: Stack) -> list[float]:
    return [await stack.metric("balancer_decision_log_lines_total", process, result="written") for process in range(2)]


async def test_recorded_while_requests_flow_and_replayed(stack: Stack) -> None:
    folder = stack.directory / "decisions"
    async with steady_load(stack.url, "emulated_tft", clients=8) as load:
        stack.write_config(stack.policy, decision_log={"folder": "decisions"})
        await eventually(lambda: lines_written(stack), "both processes record", until=lambda found: min(found) > 100)
        value = input_of(grpc_aio, "INPUT", np.ones((2, 4), np.float32))
        async with grpc_aio.InferenceServerClient(stack.url) as client:
            assert await client.is_model_ready("emulated_tft")
            for _ in range(20):
                await client.infer("emulated_tft", [value], headers={"x-routing-key": "user", "x-tenant": "me"})
        stack.write_config({"name": "power_of_two"}, decision_log={"folder": "decisions"})

        async def swapped() -> bool:
            return all([(await stack.get("/workers", process))["policy"] == "power_of_two" for process in range(2)])

        await eventually(swapped, "the other policy is in force")
        before = min(await lines_written(stack))
        await eventually(
            lambda: lines_written(stack), "both processes record on", until=lambda found: min(found) > before + 100
        )
    assert not load.failures()
    await stack.balancer.stop()
    log = read_log(folder)
    assert not log.cut
    assert sorted(run.process for run in log.runs) == ["0", "1"]
    assert len({file.name.split("-")[1] for file in folder.iterdir()}) == 2
    check_replay(log)
    check_outcomes(log)


def check_replay(log: DecisionLog) -> None:
    result = replay(log)
    assert result.exact, result.mismatches
    assert not result.changed
    assert {(compared.policy, compared.role) for compared in result.compared} == {
        ("expected_latency", "in_force"),
        ("power_of_two", "in_force"),
        ("consistent_hash", "hash"),
    }
    assert 0 < replay(log, WeightedLeastPending()).agreement < 1


def check_outcomes(log: DecisionLog) -> None:
    joined = log.joined()
    mine = np.array([decision.request.tenant == "me" for decision in log])
    assert np.count_nonzero(mine) == 20
    assert joined.ok[mine].all()
    assert (joined.served[mine] == joined.pick[mine]).all()
    assert (joined.latency_s[mine] > 0.001).all()
    assert joined.finished.mean() > 0.9
    assert len(log.questions) >= 1
    arrivals = arrivals_from_log(log, ["emulated_tft"])
    assert len(arrivals) == len(log) - len(log.questions)
    assert (np.diff(arrivals.time_s) >= 0).all()
    assert np.count_nonzero(arrivals.rows == 2) == 20
    assert set(arrivals.balancer.tolist()) == {0, 1}
