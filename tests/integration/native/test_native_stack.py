"""The whole stack with `envoy.frontend: native`: real Tritons, agents, a balancer, Envoy, and Triton's own clients."""

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support.inputs import input_of
from support.load import steady_load
from support.running import running
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually

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
