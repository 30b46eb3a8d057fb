"""What is kept or shared between requests, before Tritons that restrict inference by a header, and with tensors in
shared memory; through a real Envoy, by Triton's own clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
import tritonclient.utils.shared_memory as shm
from support.stack import Stack
from support.waiting import eventually
from tritonclient.utils import InferenceServerException

from balancer.stack.ports import free_port_range

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

RESTRICTED = ("--grpc-restricted-protocol=inference:own-key=secret", "--http-restricted-api=inference:own-key=secret")
KEY = {triton_grpc: {"triton-grpc-protocol-own-key": "secret"}, triton_http: {"own-key": "secret"}}
WRONG: dict[Any, list[dict[str, str]]] = {
    triton_grpc: [{}, {"triton-grpc-protocol-own-key": "wrong"}, {"triton-grpc-protocol-own-ke": "secret"}],
    triton_http: [{}, {"own-key": "wrong"}, {"own-key": ""}],
}
CACHED, ONCE, JOINED = {"cache_ttl_s": 60}, {"once_s": 60}, {"batch": {"max_rows": 8, "wait_s": 0.004}}
MODELS = {
    "identity": {"proxy": {**CACHED, "repeatable": True, "hedge": True}},
    "several_outputs": {"proxy": ONCE},
    "string_upper": {"proxy": {**JOINED, "repeatable": True}},
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
    try:
        await stack.start()
        yield stack
    finally:
        await stack.stop()


def tensor(of: Any, name: str, values: np.ndarray, kind: str) -> Any:
    found = of.InferInput(name, list(values.shape), kind)
    found.set_data_from_numpy(values)
    return found


def given(of: Any, model: str, number: int) -> list[Any]:
    """Inputs that differ by the number."""
    if model == "string_upper":
        return [tensor(of, "TEXT", np.array([[f"text {number}"]], np.object_), "BYTES")]
    if model == "identity":
        return [tensor(of, "INPUT", np.array([number, 1], np.float32), "FP32")]
    return [tensor(of, name, np.full((1, 4), number, np.int32), "INT32") for name in ("A", "B")]


async def counted(stack: Stack, what: str, **least: float) -> None:
    """Wait until at least so many are counted, by result."""

    async def told() -> bool:
        found = [await stack.metric(f"balancer_proxy_{what}_total", result=how) for how in least]
        return all(count >= at_least for count, at_least in zip(found, least.values(), strict=True))

    await eventually(told, f"{what}: {least}")


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


@BOTH
async def test_joined_requests_have_their_callers_headers(stack: Stack, of: Any) -> None:
    """Those who may are joined, and neither let strangers in nor are kept out by them."""
    options = {"conn_limit": 32} if of is triton_http else {}
    async with of.InferenceServerClient(stack.url, **options) as client:

        async def one(number: int) -> str:
            headers = KEY[of] if number % 8 else WRONG[of][number // 8 % 2]
            try:
                result = await client.infer("string_upper", given(of, "string_upper", number), headers=dict(headers))
            except InferenceServerException as error:
                return str(error)
            found = result.as_numpy("UPPER")[0, 0]
            return str(found.decode() if isinstance(found, bytes) else found)

        async def batches(how: str) -> float:
            return await stack.metric("balancer_proxy_batches_total", result=how)

        async def some_are_joined() -> bool:
            sent, requests, apart = [await batches(how) for how in ("sent", "requests", "apart")]
            answers = await asyncio.gather(*(one(number) for number in range(32)))
            for number, answer in enumerate(answers):
                assert answer == f"TEXT {number}" if number % 8 else "restricted" in answer
            await counted(stack, "batches", requests=requests + 32)
            # Strangers are joined with each other, and told one by one; nobody else is.
            assert await batches("apart") <= apart + 4
            return await batches("sent") < sent + 32

        await eventually(some_are_joined, "they come within milliseconds")


@contextmanager
def regions(stack: Stack, *names: str) -> Iterator[dict[str, Any]]:
    """Of 16 numbers each, known to the worker."""
    client = grpc_client.InferenceServerClient(stack.specs[0].grpc_endpoint)
    made = {name: shm.create_shared_memory_region(name, f"/balancer-kept-{name}", 64) for name in names}
    try:
        for name in names:
            client.register_system_shared_memory(name, f"/balancer-kept-{name}", 64)
        yield made
    finally:
        client.unregister_system_shared_memory()
        client.close()
        for each in made.values():
            shm.destroy_shared_memory_region(each)


@BOTH
async def test_what_is_in_a_region_is_read_and_written_each_time(stack: Stack, of: Any) -> None:
    requested = of.InferRequestedOutput
    with regions(stack, "in", "out", "other") as region:
        async with of.InferenceServerClient(stack.url) as client:

            async def infer(value: int, into: str = "", raw: bool = False) -> float:
                values = np.full(16, value, np.float32)
                shm.set_shared_memory_region(region["in"], [values])
                source = of.InferInput("INPUT", [16], "FP32")
                if raw:
                    source.set_data_from_numpy(np.full(16, 7, np.float32))
                else:
                    source.set_shared_memory("in", 64)
                output = requested("OUTPUT")
                if into:
                    shm.set_shared_memory_region(region[into], [np.zeros_like(values)])
                    output.set_shared_memory(into, 64)
                result = await client.infer("identity", [source], outputs=[output], headers=dict(KEY[of]))
                found = shm.get_contents_as_numpy(region[into], np.float32, [16]) if into else result.as_numpy("OUTPUT")
                return float(found[0])

            assert [await infer(value) for value in (1, 2, 3)] == [1, 2, 3]
            assert [await infer(value, "out") for value in (1, 2, 3)] == [1, 2, 3]
            assert [await infer(1, into) for into in ("out", "other", "out")] == [1, 1, 1]
            assert [await infer(1, into, raw=True) for into in ("out", "other", "out")] == [7, 7, 7]
