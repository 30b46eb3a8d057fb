"""The whole stack with `envoy.frontend: native`: real Tritons, agents, a balancer, Envoy, and Triton's own clients."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from click.testing import CliRunner
from support.inputs import input_of
from support.load import steady_load
from support.running import running
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually

from balancer.cli import main as cli
from balancer.kernel.compiled.library import Library
from balancer.native.envoy_module import Module
from balancer.native.folder import CONTROL
from balancer.native.layouts import COUNTS
from balancer.server.decision_log.reading import read_log

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
MODEL = "emulated_tft"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory = tmp_path_factory.mktemp("native")
    envoy = {"frontend": "native", "shared_folder": str(directory / "shared")}
    stack = Stack(directory, settings={"envoy": envoy}, patient=False)
    async with running(stack):
        yield stack


def tensor(client: object, rows: int = 1) -> object:
    return input_of(client, "INPUT", np.ones((rows, 4), np.float32))


async def infer(client: triton_grpc.InferenceServerClient, **arguments: object) -> str:
    result = await client.infer(MODEL, [tensor(triton_grpc)], client_timeout=PATIENCE_S, **arguments)
    return str(result.as_numpy("WORKER").ravel()[0].decode())


async def decided(stack: Stack, *policy: str) -> float:
    """Decisions so far, of one policy or all."""
    return await stack.metric("balancer_decisions_total", **dict(zip(("policy",), policy, strict=False)))


async def test_a_rollout_goes_to_its_last_step_and_is_watched_without_a_failure(stack: Stack) -> None:
    """By lot, then by windows; a guard and a shadow look on, and all that Envoy decides counts."""
    guard = {"enabled": True, "window_s": 0.3, "window_every_s": 0.9}
    rollout = {"name": "wlpr", "shares": [0.5, 1.0], "step_s": 2}
    shadow = {"name": "expected_latency", "share": 0.5}
    decisions = {name: await decided(stack, name) for name in ("least_requests", "wlpr")}
    async with steady_load(stack.url, MODEL, clients=4) as load:
        stack.write_config({"name": "least_requests"}, guard=guard, rollout=rollout, shadow=shadow)

        async def watched() -> bool:
            guard = await stack.get("/guard")
            page = guard["rollout"]
            assert page is None or page["state"] != "returned", page
            if page is None or page["watch"] is None or not guard["shadow"]["decisions"]:
                return False
            more = [await decided(stack, name) - before for name, before in decisions.items()]
            return min(more) > 20 and bool(page["watch"]["pairs"] >= 2)

        await eventually(watched, f"the rollout is watched\n{stack.logs()}")
    assert not load.failures()
    page = await stack.get("/guard")
    assert page["decides"] == "wlpr"
    # At half, lots gave both as many; those of the shadow and of the windows' edges were asked for.
    old, new = (page["rollout"][arm]["requests"] for arm in ("old", "new"))
    assert abs(old - new) < 5 * (old + new) ** 0.5
    warnings = [record for record in stack.log.so_far() if "does not decide itself" in str(record)]
    assert not warnings
    stack.write_config({"name": "round_robin"})


def chosen_by_envoy(stack: Stack) -> int:
    """Requests that Envoy placed itself, as the balancer was taken for dead."""
    with (
        (stack.directory / "shared" / CONTROL).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory,
    ):
        place = ctypes.c_char.from_buffer(memory)
        count = Module(Library()).call("count", ctypes.addressof(place), list(COUNTS).index("least_stale"))
        del place
    return int(count)


async def test_a_killed_balancer_costs_no_request(stack: Stack) -> None:
    """Nor one that is stopped; when it is back, it decides again."""
    done, failed, served = asyncio.Event(), [], 0

    async def load(client: triton_grpc.InferenceServerClient) -> None:
        nonlocal served
        while not done.is_set():
            try:
                await infer(client)
                served += 1
            except Exception as error:
                failed.append(error)

    async def envoy_chooses() -> None:
        before = chosen_by_envoy(stack)
        await eventually(lambda: chosen_by_envoy(stack) >= before + 50, "Envoy chooses while the balancer is away")

    async with triton_grpc.InferenceServerClient(stack.url) as client:
        loads = asyncio.gather(*(load(client) for _ in range(4)))
        await eventually(lambda: served >= 50, "requests are served")
        await stack.balancer.kill()
        await envoy_chooses()
        await stack.start_balancer()
        await stack.all_ready()
        before = await decided(stack)

        async def decides() -> bool:
            return await decided(stack) > before

        await eventually(decides, "the new balancer decides")
        stack.balancer.process.send_signal(signal.SIGSTOP)
        await envoy_chooses()
        stack.balancer.process.send_signal(signal.SIGCONT)
        before = await decided(stack)
        await eventually(decides, "the balancer decides again")
        done.set()
        await loads
    assert not failed, f"{len(failed)} beside {served}, the first: {failed[0]}"


async def test_the_decision_log_may_begin_and_end_under_requests(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "decisions"

    async def written() -> float:
        return await stack.metric("balancer_decision_log_lines_total", result="written")

    async with steady_load(stack.url, MODEL, clients=4) as load:
        stack.write_config({"name": "expected_latency"}, decision_log={"folder": str(folder)})
        await eventually(written, "decisions are recorded", until=lambda found: found > 200)
        stack.write_config({"name": "wlpr"}, decision_log={"folder": str(folder)})
        before = await written()
        await eventually(
            written, "decisions are recorded under another policy", until=lambda found: found > before + 200
        )
        stack.write_config({"name": "round_robin"})

        async def ended() -> bool:
            before = await written()
            await asyncio.sleep(0.5)
            return await written() == before

        await eventually(ended, "nothing is recorded any more")
    assert not load.failures()
    assert not any("does not decide itself" in str(record) for record in stack.log.so_far())
    log = read_log(folder)
    assert len(log.outcomes) > 0.8 * len(log)
    assert {decision.policy.name for decision in log} >= {"expected_latency", "wlpr"}
    replayed = await asyncio.to_thread(CliRunner().invoke, cli.main, ["replay", str(folder)])
    assert replayed.exit_code == 0, replayed.output


async def test_what_cannot_be_decided_there_is_left_to_the_balancer(stack: Stack) -> None:
    stack.write_config({"name": "round_robin"}, shadow={"name": "wlpr", "share": 1.0})

    async def is_logged() -> bool:
        return any("does not decide itself" in str(record) for record in stack.log.so_far())

    await eventually(is_logged, "the log says that Envoy asks")
    before = await decided(stack)
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        assert len({await infer(client) for _ in range(6)}) == 3
    await eventually(lambda: decided(stack), "every decision is counted", until=lambda found: found - before >= 6)
    stack.write_config({"name": "round_robin"})
