"""Requests that wait for room, through a real Envoy to a real Triton."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support import fronts
from support.raw_http2 import Unread, grpc_head
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MODEL = "emulated_bert_large"
FULL_BATCH = 16
"""Rows of each request: the server executes one after the other."""
_KNOWN = 40
HOLDING = {"models": {MODEL: {"window_batches": 0}}, "order": "fair", "max_s": 60}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("proxy", "pick"))
async def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("holding")
    settings = {"envoy": {"frontend": request.param}}
    stack = Stack(directory, workers=1, gpus=("A100",), settings=settings, models=(MODEL,))
    try:
        await stack.start()
        # Shares are of service time, which has to be known.
        async with triton_grpc.InferenceServerClient(stack.url) as client:
            for _ in range(_KNOWN):
                await infer(client, "")
        # Switched on live: Envoy was started without.
        stack.write_config(stack.policy, holding=HOLDING)

        async def in_force() -> bool:
            return (await stack.get(f"/explain?model={MODEL}")).get("held", {}).get("order") == "fair"

        await eventually(in_force)
        yield stack
    finally:
        await stack.stop()


async def infer(client: triton_grpc.InferenceServerClient, tenant: str, timeout_s: float | None = None) -> None:
    value = triton_grpc.InferInput("INPUT", [FULL_BATCH, 4], "FP32")
    value.set_data_from_numpy(np.ones((FULL_BATCH, 4), np.float32))
    sent = {"x-tenant": tenant, "x-batch-rows": str(FULL_BATCH)}
    await client.infer(MODEL, [value], headers=sent, client_timeout=timeout_s)


async def shares(stack: Stack, waiting: dict[str, int], until: tuple[str, int]) -> Counter[str]:
    """Requests served of each tenant, of which so many are always under way, from the moment in which one of each was
    served until one of them has had so many."""
    served: Counter[str] = Counter()
    begun, done = asyncio.Event(), asyncio.Event()

    async def ask(client: triton_grpc.InferenceServerClient, tenant: str) -> None:
        while not done.is_set():
            await infer(client, tenant)
            served[tenant] += 1
            if not begun.is_set() and len(served) == len(waiting):
                served.clear()
                begun.set()
            if begun.is_set() and served[until[0]] >= until[1]:
                done.set()

    async with triton_grpc.InferenceServerClient(stack.url) as client:
        askers = [ask(client, tenant) for tenant, count in waiting.items() for _ in range(count)]
        going = asyncio.gather(*askers)
        await done.wait()
        found = served.copy()
        await going
    return found


async def test_who_sends_ten_times_as_much_gets_no_more(stack: Stack) -> None:
    """So many of either that both always have some waiting, though this process, which sends them, stands still."""
    found = await shares(stack, {"greedy": 100, "modest": 10}, ("modest", 60))
    assert found["greedy"] == pytest.approx(60, abs=0.05 * 120)


async def test_one_that_is_given_up_waits_no_longer(stack: Stack) -> None:
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        others = [asyncio.create_task(infer(client, "a")) for _ in range(12)]
        with pytest.raises(InferenceServerException):
            await infer(client, "b", timeout_s=0.02)
        await asyncio.gather(*others)

    async def nobody_waits() -> bool:
        return await stack.metric("balancer_held_requests") == 0

    await eventually(nobody_waits)


async def test_who_does_not_read_keeps_nobody_waiting(stack: Stack) -> None:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="INPUT", datatype="FP32", shape=(FULL_BATCH, 4))
    request.raw_input_contents.append(bytes(FULL_BATCH * 4 * 4))
    message = request.SerializeToString()
    stranger = Unread(stack.url)
    await stranger.start()
    await stranger.ask(grpc_head(len(message)) + message, 10)
    async with triton_grpc.InferenceServerClient(stack.url) as client:
        for _ in range(10):
            await infer(client, "honest", timeout_s=PATIENCE_S)
    await stranger.stop()
