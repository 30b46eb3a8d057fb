"""Requests that wait for room at the proxy; over real gRPC, to a fake worker that executes one at a time."""

import asyncio
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, Gate
from support.proxied import Rig, proxied, request
from support.waiting import eventually

HELD: dict[str, Any] = {"models": {"m": {"window_batches": 0}}}


async def occupied(rig: Rig) -> asyncio.Future[bytes]:
    """A request that the worker executes until its gate is opened."""
    first = asyncio.ensure_future(rig.infer(request()))
    await eventually(lambda: rig.in_flight == 1)
    return first


async def test_who_waits_too_long_learns_when_to_come_again() -> None:
    async with proxied(gate := Gate(), holding={**HELD, "max_s": 0.05}) as rig:
        first = await occupied(rig)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.infer(request())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "grpc-retry-pushback-ms" in dict(caught.value.trailing_metadata() or ())
        gate.goes_on.set()
        await first


async def test_a_stream_waits_like_any_other() -> None:
    async with proxied(gate := Gate(), holding=HELD) as rig:
        first = await occupied(rig)
        stream = rig.stream()
        await stream.write(request())
        await eventually(lambda: rig.held == 1)
        gate.goes_on.set()
        await first
        await stream.done_writing()
        assert len([each async for each in stream]) == 1
        await eventually(lambda: rig.in_flight == 0)


async def test_a_second_attempt_does_not_wait_again() -> None:
    """Else it would stand behind all who came later."""
    stops, idle = FakeWorker("a"), FakeWorker("b")
    async with proxied([stops, idle], holding=HELD) as rig:
        await stops.stop()
        for _ in range(4):
            await rig.infer(request())
        assert rig.held == 0
        assert rig.metric("balancer_proxy_retries_total", result="made") > 0
        assert rig.metric("balancer_held_seconds_count") == 4
