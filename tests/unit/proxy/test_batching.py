"""Requests that are joined, over real gRPC; and when they go, by the test's clock."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from support.fake_worker import echoed
from support.proxied import proxied, request
from support.waiting import eventually
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2 import InferParameter

from balancer.config.config import ConfigError, from_mapping
from balancer.extproc.inference_bytes import read
from balancer.extproc.kserve import HeaderNames, read_call
from balancer.proxy.attempts import Clocks
from balancer.proxy.batching import Batching, joinable
from balancer.proxy.breakers import AttemptLatencies
from balancer.proxy.messages import MOST_RANK, OK, Arrived, ProxyAnswer
from balancer.proxy.settings import MOST_WAIT_S, BatchSection, ModelProxySection, ProxySettings
from balancer.proxy.sharing import Callers

LONG_S = 0.004


def batched(max_rows: int = 8) -> dict[str, Any]:
    return {"m": {"proxy": {"repeatable": True, "batch": {"max_rows": max_rows, "wait_s": LONG_S}}}}


def rows_of(data: bytes) -> list[float]:
    answer = service_pb2.ModelInferResponse.FromString(data)
    [output], [raw] = answer.outputs, answer.raw_output_contents
    tensor = np.frombuffer(raw, np.float32).reshape(list(output.shape))
    return [float(row[0]) for row in tensor]


async def test_a_full_batch_does_not_wait_and_none_is_larger() -> None:
    async with proxied(models=batched(4)) as rig:
        await asyncio.gather(*(rig.infer(request(value=float(number))) for number in range(40)))
        rows = [service_pb2.ModelInferRequest.FromString(each).inputs[0].shape[0] for each in rig.worker.requests]
        assert max(rows) <= 4
        assert sum(rows) == 40


async def test_what_is_unlike_goes_apart() -> None:
    async with proxied(models=batched()) as rig:
        wide = service_pb2.ModelInferRequest.FromString(request())
        wide.inputs[0].shape[1] = 1
        wide.raw_input_contents[0] = b"\0" * 4
        sequence = request(parameters={"sequence_id": 3})
        keyed = rig.infer(request(value=9.0), metadata=(("x-routing-key", "k"),))
        tenant = rig.infer(request(value=8.0), metadata=(("x-tenant", "t"),))
        await asyncio.gather(
            *(rig.infer(each) for each in (request(), wide.SerializeToString(), sequence)), keyed, tenant
        )
        assert len(rig.worker.requests) == 5


def spoilt(change: Callable[[Any], object]) -> bytes:
    message = service_pb2.ModelInferRequest.FromString(request())
    change(message)
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize(
    "data",
    [
        *(
            spoilt(lambda m, size=size: m.raw_input_contents.__setitem__(0, bytes(size)))  # type: ignore[misc]
            for size in (0, 7, 9, 16)
        ),
        spoilt(lambda m: m.outputs.add(name="X").parameters["shared_memory_region"].CopyFrom(InferParameter())),
        spoilt(lambda m: m.inputs[0].shape.extend([1] * MOST_RANK)),
        spoilt(lambda m: m.inputs.add(name="X")),
        request(parameters={"mine": 1}),
        b"\xff",
    ],
)
def test_what_is_not_certain_to_be_right_is_not_joined(data: bytes) -> None:
    assert joinable(request()) is not None
    assert joinable(spoilt(lambda m: m.inputs[0].shape.extend([1] * (MOST_RANK - 2)))) is not None
    assert joinable(data) is None


async def test_one_that_the_model_fails_at_does_not_fail_the_others() -> None:
    async def picky(data: bytes, context: Any) -> bytes:
        if 13.0 in np.frombuffer(service_pb2.ModelInferRequest.FromString(data).raw_input_contents[0], np.float32):
            await context.abort(grpc.StatusCode.INTERNAL, "unlucky")
        return echoed(data)

    async with proxied(picky, models=batched()) as rig:
        results = await asyncio.gather(
            *(rig.infer(request(value=float(number))) for number in (1, 13, 2)), return_exceptions=True
        )
        assert [rows_of(each) if isinstance(each, bytes) else "failed" for each in results] == [[1.0], "failed", [2.0]]


async def test_where_an_answer_has_no_rows_requests_are_sent_again_one_by_one() -> None:
    async def summed(data: bytes, context: Any) -> bytes:
        answer = service_pb2.ModelInferResponse.FromString(echoed(data))
        answer.outputs[0].shape[:] = [1, 2]
        answer.raw_output_contents[0] = answer.raw_output_contents[0][:8]
        whole: bytes = answer.SerializeToString()
        return whole

    async with proxied(summed, models=batched()) as rig:
        answers = await asyncio.gather(*(rig.infer(request(value=float(number))) for number in (1, 2, 3)))
        assert [rows_of(each) for each in answers] == [[1.0], [2.0], [3.0]]


def test_only_repeatable_requests_are_joined() -> None:
    with pytest.raises(ConfigError, match=r"models\.m\.proxy\.batch\.max_rows: 8 is not allowed: needs repeatable"):
        from_mapping({"models": {"m": {"proxy": {"batch": {"max_rows": 8}}}}})


async def test_joined_requests_have_the_headers_of_each_and_those_of_others_go_apart() -> None:
    async with proxied(models=batched()) as rig:
        await rig.infer(request("other"))
        key = ("triton-grpc-protocol-key", "secret")
        sent = [
            [key, ("x-request-id", str(number))] if number % 2 else [("x-request-id", str(number))]
            for number in range(8)
        ]

        async def some_joined() -> bool:
            before = len(rig.worker.requests)
            await asyncio.gather(*(rig.infer(request(value=1.0), metadata=metadata) for metadata in sent))
            rows = {"secret": 0, "": 0}
            for data, headers in zip(rig.worker.requests[before:], rig.worker.headers[before:], strict=True):
                message = service_pb2.ModelInferRequest.FromString(data)
                rows[headers.get("triton-grpc-protocol-key", "")] += message.inputs[0].shape[0]
                assert "x-request-id" not in headers or message.inputs[0].shape[0] == 1
            assert rows == {"secret": 4, "": 4}
            return len(rig.worker.requests) < before + len(sent)

        await eventually(some_joined)


TURNS = 50
"""Of the event loop, far more than any step here takes."""


class Gathering:
    """A worker that answers when it is told to."""

    def __init__(self, workers: int) -> None:
        self.now_s = 0.0
        self.begun: list[asyncio.Future[ProxyAnswer]] = []
        self.batching = Batching(
            self,
            lambda model, version: workers,
            Clocks(lambda: self.now_s, lambda: 0.0),
            AttemptLatencies(),
            Counter(),
            Callers(),
        )
        model = ModelProxySection(repeatable=True, batch=BatchSection(max_rows=8, wait_s=0.0))
        self.batching.configure(ProxySettings(models={"m": model}))
        self.sent: list[asyncio.Task[ProxyAnswer]] = []

    async def infer(self, arrived: Arrived) -> ProxyAnswer:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]

    async def send(self) -> None:
        data = request("m")
        found = read(data)
        call = read_call(
            {":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc"},
            found.fields,
            HeaderNames(),
        )
        arrived = Arrived(call, data, (), repeatable=True, id_spans=found.id_spans)
        self.sent.append(asyncio.create_task(self.batching.infer(arrived)))
        await turns()

    async def answer(self, number: int) -> None:
        self.begun[number].set_result(ProxyAnswer(OK, worker="w"))
        await turns()

    def close(self) -> None:
        for task in self.sent:
            task.cancel()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("workers", [1, 2, 3])
async def test_while_each_worker_has_a_group_the_next_ones_gather(workers: int) -> None:
    """Clients that send one request after the other would else go one by one for ever."""
    rig = Gathering(workers)
    for _ in range(workers):
        await rig.send()
    assert len(rig.begun) == workers
    for _ in range(3):
        await rig.send()
    assert len(rig.begun) == workers
    await rig.answer(0)
    assert len(rig.begun) == workers + 1
    rig.close()


async def test_they_gather_for_a_bounded_time() -> None:
    rig = Gathering(1)
    await rig.send()
    await rig.send()
    assert len(rig.begun) == 1
    rig.now_s = 2 * MOST_WAIT_S
    await turns()
    assert len(rig.begun) == 2
    rig.close()
