"""Replicas of Ray Serve behind Envoy: a real cluster of one node, real Envoy, clients of Triton as they are."""

import asyncio
import functools
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.http.aio as triton
from support.waiting import eventually

from balancer.stack.stack import OwnStack
from dev.ray_serve.cluster import MODEL, RAY, RayCluster
from dev.ray_serve.stack import before_ray, drive, until_ready

pytestmark = pytest.mark.skipif(not RAY.exists(), reason="Ray's environment is not there: make setup")
REPLICAS, SECONDS = 3, (0.02, 0.06)
Parts = tuple[OwnStack, RayCluster]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    async with before_ray(tmp_path_factory.mktemp("ray"), REPLICAS, SECONDS) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
async def test_tritons_client_is_served_by_replicas_and_not_by_serves_proxy(parts: Parts) -> None:
    stack, _ = parts
    client = triton.InferenceServerClient(stack.url)
    try:
        assert await client.is_server_ready()
        assert await client.is_model_ready(MODEL)
        assert not await client.is_model_ready("another")
        tensor = triton.InferInput("INPUT", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32), binary_data=False)
        answer = await client.infer(MODEL, [tensor])
        assert (answer.as_numpy("OUTPUT") == 2.0).all()
    finally:
        await client.close()
    requests = functools.partial(stack.metric, "balancer_requests_total", model=MODEL)
    await eventually(requests, "the balancer has chosen", until=lambda count: count >= 1)


@pytest.mark.asyncio(loop_scope="module")
async def test_reports_tell_how_long_each_replica_takes(parts: Parts) -> None:
    stack, _ = parts

    async def told_apart() -> bool:
        services = [worker["service"].get(MODEL) for worker in (await stack.get("/workers"))["workers"]]
        took_s = [each["fixed_s"] + each["per_row_s"] for each in services if each]
        return len(took_s) == REPLICAS and min(took_s) < sum(SECONDS) / 2 < max(took_s)

    load = asyncio.ensure_future(drive(f"http://{stack.url}", 40.0, 4.0, seed=1))
    await eventually(told_apart, "fast and slow ones are told apart")
    assert Counter(each.status for each in await load) == {200: 160}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_replica_costs_what_it_had_and_its_successor_serves(parts: Parts) -> None:
    stack, cluster = parts
    killed, *_ = await cluster.replicas()
    before = await stack.metric("balancer_requests_total")
    load = asyncio.ensure_future(drive(f"http://{stack.url}", 20.0, 4.0, seed=2))
    await eventually(lambda: stack.metric("balancer_requests_total"), "it is asked", until=lambda n: n > before)
    os.kill(killed["pid"], signal.SIGKILL)
    at_s = time.monotonic()
    lost = [each for each in await load if each.status != 200]
    assert all(each.began_s <= at_s <= each.began_s + each.took_s for each in lost), (at_s, lost)
    await until_ready(stack, REPLICAS)
    names = [worker["worker"] for worker in (await stack.get("/workers"))["workers"]]
    assert not any(name.endswith(killed["replica_id"]) for name in names)


@pytest.mark.asyncio(loop_scope="module")
async def test_serve_takes_replicas_away_and_no_request_fails(parts: Parts) -> None:
    stack, cluster = parts
    load = asyncio.ensure_future(drive(f"http://{stack.url}", 12.0, 4.0, seed=3))
    await cluster.configure(1, SECONDS)
    await until_ready(stack, 1)
    ended = await load
    assert Counter(each.status for each in ended) == {200: len(ended)}
