"""Names that several models may serve: the best that is in time does."""

from __future__ import annotations

import time

import grpc
import pytest
from support.fake_worker import FakeWorker
from support.fleets import model, report
from support.proxied import Rig, proxied, request
from tritonclient.grpc import service_pb2

from balancer.config.config import ConfigError, from_mapping
from balancer.proxy.messages import SERVED_MODEL

CASCADE = {"cascades": {"vision": ["large", "small"]}}


def has(rig: Rig, **service_s: float) -> None:
    """The worker reports these models, and what executions of one row took."""
    for number in range(3):
        models = [
            model(name, batches=((1, 100 * number, 100 * number * each_s),), succeeded=100 * number)
            for name, each_s in service_s.items()
        ]
        rig.router.observe(report("a", number, models), time.monotonic())


async def served(rig: Rig, timeout_s: float | None = None) -> tuple[str, str]:
    """The model that a worker was asked for, and the one that the client was told of."""
    call = rig.call(request("vision", name="7"), timeout=timeout_s)
    answer = service_pb2.ModelInferResponse.FromString(await call)
    assert answer.id == "7"
    return answer.model_name, dict(await call.trailing_metadata())[SERVED_MODEL]


async def test_the_best_model_that_is_in_time_serves() -> None:
    async with proxied([FakeWorker("a")], proxy=CASCADE, telemetry={"required": True}) as rig:
        has(rig, large=20.0, small=0.001)
        assert await served(rig) == ("large", "large")
        assert await served(rig, 5.0) == ("small", "small")
        assert await served(rig, 300.0) == ("large", "large")
        assert rig.metric("balancer_proxy_cascades_total", result="small") == 1


async def test_a_model_without_a_worker_gives_way_to_the_next() -> None:
    async with proxied([FakeWorker("a")], proxy=CASCADE, telemetry={"required": True}) as rig:
        has(rig, small=0.001)
        assert await served(rig) == ("small", "small")


async def test_where_no_model_has_a_worker_the_first_is_refused_by_name() -> None:
    async with proxied([FakeWorker("a")], proxy=CASCADE, telemetry={"required": True}) as rig:
        has(rig, other=0.001)
        with pytest.raises(grpc.aio.AioRpcError, match="unknown model: 'large'"):
            await rig.infer(request("vision"))


def test_a_cascade_of_cascades_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"proxy\.cascades\.a"):
        from_mapping({"proxy": {"cascades": {"a": ["b"], "b": ["c"]}}})
