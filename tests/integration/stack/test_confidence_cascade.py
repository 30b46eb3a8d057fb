"""A name that two models of real Tritons serve: the second where the first is not sure, through a real Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton_grpc
from support.stack import Stack
from support.waiting import eventually
from tritonclient.grpc import service_pb2, service_pb2_grpc

from balancer.proxy.messages import SERVED_MODEL
from balancer.stack.digits import held_out

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

FAST, ACCURATE, NAME = "digits", "digits_again", "any_digits"
THRESHOLD = 0.9
CASCADE = {"models": [FAST, ACCURATE], "output": "PROBABILITIES", "threshold": THRESHOLD}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory: Path = tmp_path_factory.mktemp("confidence")
    settings = {"envoy": {"frontend": "proxy"}, "proxy": {"confidence_cascades": {NAME: CASCADE}}}
    control = ("--model-control-mode=explicit", f"--load-model={FAST}", f"--load-model={ACCURATE}")
    stack = Stack(
        directory, workers=2, models=(FAST,), copies={ACCURATE: FAST}, settings=settings, triton_arguments=control
    )
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()


def asking(images: np.ndarray, model: str = NAME, outputs: tuple[str, ...] = ()) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, id="7")
    message.inputs.add(name="IMAGE", datatype="FP32", shape=images.shape)
    message.raw_input_contents.append(images.tobytes())
    for name in outputs:
        message.outputs.add(name=name)
    return message


async def ask(address: str, message: Any, timeout_s: float | None = None) -> tuple[Any, list[str | bytes]]:
    """The answer, and what header and trailer say of its model."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=timeout_s)
        answer = await call
        told = [
            dict(each).get(SERVED_MODEL, "") for each in (await call.initial_metadata(), await call.trailing_metadata())
        ]
    return answer, told


async def how_sure(stack: Stack, images: np.ndarray) -> np.ndarray:
    """Of each image, as one Triton says it."""
    answer, _ = await ask(stack.specs[0].grpc_endpoint, asking(images, FAST))
    return np.frombuffer(answer.raw_output_contents[1], np.float32).reshape(len(images), -1).max(axis=1)


async def test_what_the_first_is_not_sure_of_is_answered_by_the_second(stack: Stack) -> None:
    digits = held_out()
    images = digits.images[:32]
    sure = await how_sure(stack, images)
    assert {bool(each) for each in sure >= THRESHOLD} == {True, False}
    answers = await asyncio.gather(*(ask(stack.url, asking(image[None]), 30.0) for image in images))
    for (answer, told), each in zip(answers, sure, strict=True):
        model = FAST if each >= THRESHOLD else ACCURATE
        assert answer.model_name == model
        assert told == [model, model]
        assert answer.id == "7"
        assert [output.name for output in answer.outputs] == ["LABEL", "PROBABILITIES"]
    assert await stack.metric("balancer_proxy_confidence_total", result="sure") == (sure >= THRESHOLD).sum()
    assert await stack.metric("balancer_proxy_confidence_total", result="unsure") == (sure < THRESHOLD).sum()


async def test_of_several_rows_the_least_sure_one_decides(stack: Stack) -> None:
    images = held_out().images[:32]
    sure = await how_sure(stack, images)
    surest, least = images[sure >= THRESHOLD], images[sure < THRESHOLD]
    answer, _ = await ask(stack.url, asking(surest[:4]))
    assert answer.model_name == FAST
    answer, _ = await ask(stack.url, asking(np.concatenate([surest[:3], least[:1]])))
    assert answer.model_name == ACCURATE
    # Without the output nobody can say that it is sure.
    answer, told = await ask(stack.url, asking(surest[:1], outputs=("LABEL",)))
    assert (answer.model_name, told) == (ACCURATE, [ACCURATE, ACCURATE])


async def test_the_models_themselves_are_asked_as_ever(stack: Stack) -> None:
    for model in (FAST, ACCURATE):
        answer, told = await ask(stack.url, asking(held_out().images[:2], model))
        assert (answer.model_name, told) == (model, ["", ""])


async def test_no_request_fails_while_the_second_is_taken_away(stack: Stack) -> None:
    """Last, as the model is gone afterwards."""
    images = held_out().images[:32]
    sure = await how_sure(stack, images)
    unsure = images[sure < THRESHOLD][:1]
    served: list[str] = []
    stop = asyncio.Event()

    async def client() -> None:
        while not stop.is_set():
            answer, _ = await ask(stack.url, asking(unsure), 30.0)
            served.append(answer.model_name)

    async def passed_over() -> bool:
        return await stack.metric("balancer_proxy_confidence_total", result="no_worker") > 0

    clients = [asyncio.create_task(client()) for _ in range(4)]
    try:
        await eventually(lambda: served.count(ACCURATE) > 20, "the second answers")
        for spec in stack.specs:
            async with triton_grpc.InferenceServerClient(spec.grpc_endpoint) as worker:
                await worker.unload_model(ACCURATE)
        await eventually(lambda: served[-20:].count(FAST) == 20, "the first answers alone")
        await eventually(passed_over, "the second is no longer asked")
    finally:
        stop.set()
        await asyncio.gather(*clients)
    assert await stack.metric("balancer_handler_errors_total") == 0
