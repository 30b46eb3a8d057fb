"""Through real Envoy to real Tritons: what the balancer keeps stays kept while it refuses, hangs and is away."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from support.inputs import input_of
from support.running import running
from support.stack import Stack
from support.waiting import PATIENCE_S, eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.process import free_port_range

pytestmark = pytest.mark.integration

ONCE, ON_ONE, ON_NONE, PLAIN = "string_upper", "several_outputs", "decoupled_count", "identity"
AWAY = "no balancer answers, and Envoy alone cannot keep"
MANY = 12


@pytest.fixture(params=[("proxy", 1), ("proxy", 2), ("pick", 1)], ids=lambda param: f"{param[0]}-{param[1]}")
async def stack(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stack]:
    """The first model's ids are executed once, the second may run on one of two workers, the third on none."""
    frontend, processes = request.param
    models: dict[str, Any] = {ON_ONE: {"devices": ["A100"]}, ON_NONE: {"devices": ["H100"]}}
    if processes == 1:
        models[ONCE] = {"proxy": {"once_s": 600}}
    settings = {
        "models": models,
        "envoy": {"frontend": frontend, "forwarded": [ONCE] if frontend == "pick" else []},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2 * processes)}"},
    }
    models_of_all = (ONCE, ON_ONE, ON_NONE, PLAIN)
    stack = Stack(tmp_path, workers=2, processes=processes, settings=settings, models=models_of_all, patient=False)
    async with running(stack):
        yield stack


def _inputs(of: Any, model: str) -> list[Any]:
    values: dict[str, Any] = {"INPUT": np.zeros(4, np.float32)}
    if model == ONCE:
        values = {"TEXT": np.array([["text"]], np.object_)}
    elif model == ON_ONE:
        values = {"A": np.zeros((1, 4), np.int32), "B": np.zeros((1, 4), np.int32)}
    elif model == ON_NONE:
        values = {"COUNT": np.array([1], np.int32)}
    return [input_of(of, name, value) for name, value in values.items()]


async def ask(
    stack: Stack, model: str, of: Any = triton_grpc, request_id: str = "", limit_s: float = PATIENCE_S
) -> str:
    """Why it was refused; empty: it was answered."""
    limit = {"client_timeout": limit_s} if of is triton_grpc else {}
    async with of.InferenceServerClient(stack.url) as client:
        try:
            await client.infer(model, _inputs(of, model), request_id=request_id, **limit)
        except InferenceServerException as error:
            return error.message() or "failed"
    return ""


async def executions(stack: Stack, model: str) -> list[int]:
    """Of each Triton."""
    found = []
    for spec in stack.specs:
        async with triton_grpc.InferenceServerClient(f"127.0.0.1:{spec.grpc_port}") as client:
            (of_model,) = (await client.get_inference_statistics(model)).model_stats
            found.append(int(of_model.inference_stats.success.count))
    return found


async def kept_without_a_balancer(stack: Stack) -> None:
    """Return once Envoy refuses what it cannot keep; what nobody keeps is served."""

    async def refused() -> bool:
        # A balancer that hangs answers nothing until Envoy has noticed.
        answers = await ask(stack, ON_ONE, limit_s=1.0), await ask(stack, ONCE, request_id="same", limit_s=1.0)
        return all(AWAY in answer for answer in answers)

    await eventually(refused, "Envoy refuses what it cannot keep")
    assert [await ask(stack, PLAIN) for _ in range(10)] == [""] * 10


async def test_what_the_balancer_keeps_is_kept_whatever_becomes_of_it(
    stack: Stack, request: pytest.FixtureRequest
) -> None:
    _, processes = request.node.callspec.params["stack"]
    assert not await ask(stack, ONCE, request_id="same")
    for of in (triton_grpc, triton_http):
        for _ in range(MANY):
            assert "no worker may serve" in await ask(stack, ON_NONE, of)
            assert AWAY not in await ask(stack, "no_such_model", of)
        assert [await ask(stack, ON_ONE, of) for _ in range(MANY)] == [""] * MANY
    if processes == 1:
        assert not await ask(stack, ONCE, request_id="same")
        assert sum(await executions(stack, ONCE)) == 1
    os.killpg(stack.balancer.process.pid, signal.SIGSTOP)
    try:
        if processes == 1:
            await kept_without_a_balancer(stack)
    finally:
        os.killpg(stack.balancer.process.pid, signal.SIGCONT)
    await eventually(lambda: ask(stack, ON_ONE), "the balancer decides again", until=lambda answer: not answer)
    await stack.balancer.kill()
    if processes == 1:
        await kept_without_a_balancer(stack)

    async def by_rest() -> bool:
        """What was sent as the balancer died may fail otherwise."""
        refused, served = await ask(stack, ON_ONE, triton_http), await ask(stack, PLAIN, triton_http)
        return AWAY in refused and not served

    await eventually(by_rest, "Envoy refuses what it cannot keep over REST too")
    here, elsewhere = await executions(stack, ON_ONE)
    assert here >= 2 * MANY
    assert elsewhere == 0
    if processes == 1:
        assert sum(await executions(stack, ONCE)) == 1
