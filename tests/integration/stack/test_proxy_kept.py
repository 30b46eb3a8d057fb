"""Answers that are kept, before Tritons that restrict inference by a header; through a real Envoy, by Triton's own
clients."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from support.inputs import input_of
from support.running import running
from support.stack import Stack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.process import free_port_range

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

RESTRICTED = ("--grpc-restricted-protocol=inference:own-key=secret", "--http-restricted-api=inference:own-key=secret")
KEY = {triton_grpc: {"triton-grpc-protocol-own-key": "secret"}, triton_http: {"own-key": "secret"}}
WRONG: dict[Any, list[dict[str, str]]] = {
    triton_grpc: [{}, {"triton-grpc-protocol-own-key": "wrong"}, {"triton-grpc-protocol-own-ke": "secret"}],
    triton_http: [{}, {"own-key": "wrong"}, {"own-key": ""}],
}
MODELS = {
    "identity": {"proxy": {"cache_ttl_s": 600, "repeatable": True, "hedge": True}},
    "several_outputs": {"proxy": {"once_s": 600}},
}
BOTH = pytest.mark.parametrize("of", [triton_grpc, triton_http], ids=["grpc", "rest"])
_numbers = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("kept")
    settings = {
        "models": MODELS,
        "envoy": {"frontend": "proxy"},
        "listen": {"fleet": f"127.0.0.1:{free_port_range(2)}"},
    }
    stack = Stack(directory, workers=1, settings=settings, models=tuple(MODELS), triton_arguments=RESTRICTED)
    async with running(stack):
        yield stack


def given(of: Any, model: str, number: int) -> list[Any]:
    """Inputs that differ by the number."""
    if model == "identity":
        return [input_of(of, "INPUT", np.array([number, 1], np.float32))]
    return [input_of(of, name, np.full((1, 4), number, np.int32)) for name in ("A", "B")]


async def counted(stack: Stack, what: str, **least: float) -> None:
    """Wait until at least so many are counted, by result."""

    async def counted() -> bool:
        found = [await stack.metric(f"balancer_proxy_{what}_total", result=how) for how in least]
        return all(count >= at_least for count, at_least in zip(found, least.values(), strict=True))

    await eventually(counted, f"{what}: {least}")


async def refused(of: Any, client: Any, model: str, inputs: list[Any], headers: dict[str, str], name: str) -> None:
    """A Triton's words, which are UNAVAILABLE; a good request goes between, as Envoy counts those in a row."""
    with pytest.raises(InferenceServerException, match="This protocol is restricted"):
        await client.infer(model, inputs, headers=dict(headers), request_id=name)
    await client.infer("identity", given(of, "identity", -1), headers=dict(KEY[of]))


@BOTH
@pytest.mark.parametrize("model", ["identity", "several_outputs"])
async def test_a_kept_answer_is_not_for_callers_whom_a_triton_refuses(stack: Stack, of: Any, model: str) -> None:
    number = next(_numbers)
    inputs, name = given(of, model, number), f"id {number}"
    async with of.InferenceServerClient(stack.url) as client:
        for wrong in WRONG[of]:
            await refused(of, client, model, inputs, wrong, name)
        for _ in range(2):
            await client.infer(model, inputs, headers=dict(KEY[of]), request_id=name)
        for wrong in WRONG[of]:
            await refused(of, client, model, inputs, wrong, name)
    what, how = ("cache", "hit") if model == "identity" else ("once", "answered")
    await counted(stack, what, **{how: 1})


@pytest.mark.parametrize("model", ["identity", "several_outputs"])
async def test_an_answer_of_one_protocol_is_not_for_strangers_of_the_other(stack: Stack, model: str) -> None:
    for one, other in ((triton_grpc, triton_http), (triton_http, triton_grpc)):
        number = next(_numbers)
        async with one.InferenceServerClient(stack.url) as first, other.InferenceServerClient(stack.url) as second:
            await first.infer(model, given(one, model, number), headers=dict(KEY[one]), request_id=str(number))
            for wrong in WRONG[other]:
                await refused(other, second, model, given(other, model, number), wrong, str(number))
            await second.infer(model, given(other, model, number), headers=dict(KEY[other]), request_id=str(number))
