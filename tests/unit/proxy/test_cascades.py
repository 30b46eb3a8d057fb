"""Names that several models serve: the best that is in time, or one after the other until one is sure."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import pytest
from support.fake_worker import FakeWorker
from support.fleets import model, report
from support.proxied import Rig, proxied, request
from support.waiting import eventually
from tritonclient.grpc import service_pb2

from balancer.config.config import ConfigError, from_mapping
from balancer.proxy.messages import SERVED_MODEL

MODELS = ["fast", "middle", "slow"]
CASCADE = {"confidence_cascades": {"vision": {"models": MODELS, "output": "P", "threshold": 0.8}}}
SERVICE_S = {"fast": 0.001, "middle": 0.001, "slow": 0.001}
LONG_S = 300.0
IN_TIME = {"cascades": {"vision": ["large", "small"]}}


class Unsure(FakeWorker):
    """Answers as sure as each model is, and fails or hangs where it is told to."""

    def __init__(self, **sure: float) -> None:
        super().__init__("a", self._answer)
        self.sure = sure
        self.failing: dict[str, grpc.StatusCode] = {}
        self.hanging: set[str] = set()

    async def _answer(self, data: bytes, context: Any) -> bytes:
        message = service_pb2.ModelInferRequest.FromString(data)
        if message.model_name in self.hanging:
            await asyncio.Event().wait()
        if (code := self.failing.get(message.model_name)) is not None:
            await context.abort(code, "on purpose")
        answer = service_pb2.ModelInferResponse(model_name=message.model_name, id=message.id)
        wanted = {each.name for each in message.outputs}
        if not wanted or "P" in wanted:
            answer.outputs.add(name="P", datatype="FP32", shape=[1, 2])
            row = [self.sure.get(message.model_name, 1.0), 0.0]
            answer.raw_output_contents.append(np.array(row, np.float32).tobytes())
        found: bytes = answer.SerializeToString()
        return found

    @property
    def executed(self) -> list[str]:
        """The models, in their order."""
        return [service_pb2.ModelInferRequest.FromString(each).model_name for each in self.requests]


def has(rig: Rig, service_s: Mapping[str, float]) -> None:
    """The worker reports these models, and what executions of one row took."""
    for number in range(3):
        models = [
            model(name, batches=((1, 100 * number, 100 * number * each_s),), succeeded=100 * number)
            for name, each_s in service_s.items()
        ]
        rig.router.observe(report("a", number, models), time.monotonic())


def rig_of(worker: FakeWorker, **sections: Any) -> Any:
    return proxied([worker], **{"proxy": CASCADE, "telemetry": {"required": True}, **sections})


async def served(rig: Rig, data: bytes = b"", timeout_s: float | None = None) -> str:
    """The model whose answer came; all that names it says the same."""
    call = rig.call(data or request("vision", name="7"), timeout=timeout_s)
    answer = service_pb2.ModelInferResponse.FromString(await call)
    assert answer.id == "7"
    for metadata in (await call.initial_metadata(), await call.trailing_metadata()):
        assert dict(metadata)[SERVED_MODEL] == answer.model_name
    return str(answer.model_name)


def judged(rig: Rig, result: str) -> float:
    return rig.metric("balancer_proxy_confidence_total", result=result)


async def test_an_unsure_answer_goes_on_to_the_next_and_the_last_is_given_as_it_is() -> None:
    worker = Unsure(fast=0.5, middle=0.9)
    async with rig_of(worker) as rig:
        has(rig, SERVICE_S)
        assert await served(rig) == "middle"
        worker.sure |= {"middle": 0.5, "slow": 0.1}
        assert await served(rig, timeout_s=LONG_S) == "slow"
        assert worker.executed == ["fast", "middle", *MODELS]
        assert judged(rig, "unsure") == 3
        assert judged(rig, "sure") == 1


async def test_an_answer_without_the_output_is_not_sure() -> None:
    message = service_pb2.ModelInferRequest.FromString(request("vision", name="7"))
    message.outputs.add(name="OTHER")
    worker = Unsure()
    async with rig_of(worker) as rig:
        has(rig, SERVICE_S)
        assert await served(rig, message.SerializeToString()) == "slow"
        assert judged(rig, "unread") == 2


async def test_without_any_worker_the_first_is_refused_by_name() -> None:
    async with rig_of(Unsure()) as rig:
        has(rig, {"other": 0.001})
        with pytest.raises(grpc.aio.AioRpcError, match="unknown model: 'fast'"):
            await rig.infer(request("vision"))


async def test_where_the_next_takes_too_long_the_first_answer_is_given() -> None:
    worker = Unsure(fast=0.1)
    worker.hanging = {"middle"}
    async with rig_of(worker) as rig:
        has(rig, SERVICE_S)
        # Triton's own timeout is a deadline too, and does not end the call.
        assert await served(rig, request("vision", name="7", parameters={"timeout": 3_000_000})) == "fast"
        assert worker.executed == ["fast", "middle"]
        assert judged(rig, "late") == 1
        assert rig.in_flight == 0


async def test_sequences_and_outputs_in_shared_memory_get_the_first_alone() -> None:
    shared = service_pb2.ModelInferRequest.FromString(request("vision", name="7"))
    shared.outputs.add(name="P").parameters["shared_memory_region"].string_param = "region"
    sequence = request("vision", name="7", parameters={"sequence_id": 5, "sequence_start": True})
    worker = Unsure(fast=0.1)
    async with rig_of(worker) as rig:
        has(rig, SERVICE_S)
        assert await served(rig, shared.SerializeToString()) == "fast"
        assert await served(rig, sequence) == "fast"
        assert worker.executed == ["fast", "fast"]


@pytest.mark.parametrize("output", [b"\x32\x02\xff\xff", b"\x30\x01", b"\x32\x82\x01" + b"\x10\x01" * 65])
async def test_a_request_whose_outputs_cannot_be_read_gets_the_first_alone(output: bytes) -> None:
    worker = FakeWorker("a")
    async with rig_of(worker) as rig:
        has(rig, SERVICE_S)
        # The fake fails at the first, and protobuf passes over what is of another kind.
        with contextlib.suppress(grpc.aio.AioRpcError):
            await rig.infer(request("vision") + output)
        assert len(worker.requests) == 1


async def test_each_model_has_its_own_rules_and_kept_answers() -> None:
    worker = Unsure(fast=0.1)
    models = {"middle": {"proxy": {"cache_ttl_s": 60}}}
    async with rig_of(worker, models=models) as rig:
        has(rig, SERVICE_S)
        for _ in range(3):
            assert await served(rig) == "middle"
        assert worker.executed == ["fast", "middle", "fast", "fast"]
        assert rig.metric("balancer_proxy_cache_total", result="hit") == 2
        # Each request counts once, by the model that answered.
        assert rig.metric("balancer_requests_total") == 3


async def test_a_client_that_leaves_ends_what_executes_for_it() -> None:
    worker = Unsure(fast=0.1)
    worker.hanging = {"middle"}
    async with rig_of(worker) as rig:
        has(rig, SERVICE_S)
        call = rig.call(request("vision"))
        await eventually(lambda: "middle" in worker.executed)
        call.cancel()
        await eventually(lambda: worker.cancelled and not rig.in_flight)


STEPS = {"models": ["a", "b"], "output": "P", "threshold": 0.5}


@pytest.mark.parametrize(
    ("field", "words", "changes", "cascades"),
    [
        ("models", "at least 2", {"models": ["a"]}, {}),
        (r"models\[1\]", "name each model once", {"models": ["a", "a"]}, {}),
        (r"models\[1\]", "is a cascade itself; name a model", {"models": ["a", "w"]}, {"w": ["b"]}),
        ("", "leave it in one of both", {}, {"v": ["b"]}),
        ("output", "at least 1", {"output": ""}, {}),
        ("threshold", "finite", {"threshold": float("inf")}, {}),
    ],
)
def test_what_does_not_fit_is_refused_by_field_and_remedy(
    field: str, words: str, changes: dict[str, Any], cascades: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=rf"proxy\.confidence_cascades\.v.*{field}.*{words}"):
        from_mapping({"proxy": {"confidence_cascades": {"v": STEPS | changes}, "cascades": cascades}})


async def test_the_best_model_that_is_in_time_serves() -> None:
    async with rig_of(Unsure(), proxy=IN_TIME) as rig:
        has(rig, {"large": 20.0, "small": 0.001})
        assert await served(rig) == "large"
        assert await served(rig, timeout_s=5.0) == "small"
        assert await served(rig, timeout_s=LONG_S) == "large"
        assert rig.metric("balancer_proxy_cascades_total", result="small") == 1


def test_a_cascade_of_cascades_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"proxy\.cascades\.a"):
        from_mapping({"proxy": {"cascades": {"a": ["b"], "b": ["c"]}}})
