"""Requests that wait for room at the proxy; over real gRPC, to a fake worker that executes one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, echoed
from support.proxied import Rig, proxied, request
from support.waiting import eventually

HELD = {"models": {"m": {"window_batches": 0}}}


class Gate:
    """What the worker executes waits to be let through."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[tuple[str, asyncio.Event]] = asyncio.Queue()

    async def infer(self, data: bytes, context: Any) -> bytes:
        through = asyncio.Event()
        tenant = dict(context.invocation_metadata()).get("x-tenant", "")
        self.coming.put_nowait((tenant, through))
        await through.wait()
        return echoed(data)

    async def served(self, count: int) -> list[str]:
        """Tenants of those who come, one after the other; each is let through."""
        found = []
        for _ in range(count):
            tenant, through = await self.coming.get()
            found.append(tenant)
            through.set()
        return found


@asynccontextmanager
async def waiting(**holding: Any) -> AsyncIterator[tuple[Rig, Gate]]:
    gate = Gate()
    async with proxied(gate.infer, holding={**HELD, **holding}) as rig:
        yield rig, gate


async def sent_in_order(rig: Rig, tenants: list[str], **options: Any) -> list[Any]:
    """A request of each; all but the first wait, in this order."""
    calls = []
    for number, tenant in enumerate(tenants):
        calls.append(rig.call(request(), metadata=(("x-tenant", tenant),), **options))
        await eventually(lambda number=number: rig.held + rig.in_flight == number + 1)
    return calls


async def test_who_waits_too_long_learns_when_to_come_again() -> None:
    async with waiting(max_s=0.05) as (rig, gate):
        [first] = await sent_in_order(rig, ["1"])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.infer(request())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "grpc-retry-pushback-ms" in dict(caught.value.trailing_metadata() or ())
        assert await gate.served(1) == ["1"]
        await first


async def test_a_stream_waits_like_any_other() -> None:
    async with waiting() as (rig, gate):
        [first] = await sent_in_order(rig, ["1"])
        stream = rig.stream()
        await stream.write(request())
        await eventually(lambda: rig.held == 1)
        assert await gate.served(1) == ["1"]
        assert await gate.served(1) == [""]
        await first
        await stream.done_writing()
        assert len([each async for each in stream]) == 1
        await eventually(lambda: rig.in_flight == 0)


async def test_a_second_attempt_does_not_wait_again() -> None:
    """Else it would stand behind all who came later."""
    busy, idle = Gate(), FakeWorker("b")
    stops = FakeWorker("a", busy.infer)
    async with proxied([stops, idle], holding=HELD) as rig:
        await stops.stop()
        for _ in range(4):
            await rig.infer(request())
        assert rig.held == 0
        assert rig.metric("balancer_proxy_retries_total", result="made") > 0
        assert rig.metric("balancer_held_seconds_count") == 4
