"""Through a real Envoy: requests that wait at the balancer until a worker has room."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.both_fronts import BothFronts
from support.envoy_fakes import FakeWorker
from support.fleets import model, report
from support.waiting import PATIENCE_S, eventually

from balancer.kernel.settings import HeldModel, HoldingSettings, Settings
from policies.least_requests import LeastRequests

pytestmark = pytest.mark.integration
SHORT_S = 5.0
"""That Envoy waits for a pick; still longer than this process ever takes for one."""


@dataclass
class Gate:
    """A worker's model: each request waits to be let through."""

    coming: asyncio.Queue[asyncio.Event] = field(default_factory=asyncio.Queue)

    def of(self, worker: FakeWorker) -> Any:
        async def infer(request: Any, context: Any) -> Any:
            through = asyncio.Event()
            self.coming.put_nowait(through)
            await through.wait()
            return worker.answer(request)

        return infer

    async def serve(self, count: int) -> None:
        """Let so many through, one after the other."""
        for _ in range(count):
            (await asyncio.wait_for(self.coming.get(), PATIENCE_S)).set()


@dataclass
class HoldingRig:
    """A real Envoy that asks, and one worker that executes one request at a time."""

    rig: BothFronts
    gate: Gate

    def held(self) -> int:
        return len(self.rig.picker.holding.waiting)

    def ask(self) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self._infer())

    async def _infer(self) -> Any:
        try:
            return await self.rig.infer(metadata=[("x-batch-rows", "1")])
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()

    async def ask_in_turn(self, count: int) -> list[asyncio.Task[Any]]:
        """So many requests, which come to the balancer in this order and wait there."""
        waiting = []
        for i in range(count):
            waiting.append(self.ask())
            await eventually(lambda i=i: self.held() == i + 1)
        return waiting

    def counted(self, how: str) -> float:
        return sum(n for of, n in self.rig.samples("balancer_held_seconds_count").items() if how in of)


@contextlib.asynccontextmanager
async def holding(tmp_path: Path, waits_s: float = PATIENCE_S, **settings: Any) -> AsyncIterator[HoldingRig]:
    held = HoldingSettings({"m": HeldModel(0.0, forming=False)}, **settings)
    worker, gate = FakeWorker("w0"), Gate()
    worker.infer = gate.of(worker)
    rig = BothFronts(
        tmp_path,
        workers=[worker],
        policy=LeastRequests(),
        settings=Settings(holding=held, stale_after_s=1e6),
        native=False,
    )
    rig.options = dataclasses.replace(rig.options, message_timeout_s=waits_s, native=None)
    async with rig.running():
        rig.router.observe(report("w0", 0, [model("m")]), time.monotonic())
        yield HoldingRig(rig, gate)


async def occupied(found: HoldingRig) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """A request that executes until its event is set."""
    first = found.ask()
    through = await asyncio.wait_for(found.gate.coming.get(), PATIENCE_S)
    assert found.held() == 0
    return first, through


async def test_a_request_waits_for_room_for_longer_than_envoy_waits_for_a_pick(tmp_path: Path) -> None:
    async with holding(tmp_path, SHORT_S) as found:
        first, through = await occupied(found)
        (second,) = await found.ask_in_turn(1)
        await asyncio.sleep(1.1 * SHORT_S)  # what is awaited is that nothing happens
        assert found.held() == 1
        assert found.gate.coming.empty()
        held = found.rig.picker.holding.explain("m", time.monotonic())["held"]
        assert (held["count"], held["unfinished_batches"]) == (1, {"w0": 1.0})
        assert held["first"][0]["waited_s"] > SHORT_S
        through.set()
        assert await first == "w0"
        await found.gate.serve(1)
        assert await second == "w0"
        assert await found.rig.statistic(r"http\.inference\.ext_proc\.message_timeouts") == 0
        assert found.counted("placed") == 2


async def test_a_client_that_leaves_waits_no_longer(tmp_path: Path) -> None:
    async with holding(tmp_path) as found:
        first, through = await occupied(found)
        leaving, staying = await found.ask_in_turn(2)
        leaving.cancel()
        await eventually(lambda: found.held() == 1)
        assert found.counted("withdrawn") == 1
        through.set()
        await found.gate.serve(1)
        assert await asyncio.gather(first, staying) == 2 * ["w0"]
        assert found.gate.coming.empty()


async def test_where_the_balancer_goes_those_who_wait_go_on_without_it(tmp_path: Path) -> None:
    async with holding(tmp_path) as found:
        first, through = await occupied(found)
        (second,) = await found.ask_in_turn(1)
        through.set()
        await first
        (balancer,) = found.rig.balancers
        through = await asyncio.wait_for(found.gate.coming.get(), PATIENCE_S)
        (third,) = await found.ask_in_turn(1)
        through.set()
        assert await second == "w0"
        await balancer.stop()
        await found.gate.serve(1)
        assert await third == "w0"
