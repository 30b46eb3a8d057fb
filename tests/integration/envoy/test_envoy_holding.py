"""Through a real Envoy: requests that wait at the balancer until a worker has room."""

from __future__ import annotations

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
from prometheus_client.parser import text_string_to_metric_families
from support.envoy_fakes import RUN, FakeBalancer, FakeWorker, Rig, a_request
from support.fleets import model, report
from support.waiting import PATIENCE_S, eventually

from balancer.discovery.workers import WorkerSpec
from balancer.extproc.kserve import HeaderNames
from balancer.extproc.picker import Addresses, Picker
from balancer.extproc.picks import ExternalProcessor
from balancer.kernel.settings import HeldModel, HoldingSettings, Settings
from balancer.scheduler.events import WorkerAdded
from balancer.scheduler.router import Router
from balancer.server.metrics import Metrics
from balancer.server.recorder import Recorder
from policies.least_requests import LeastRequests

pytestmark = pytest.mark.integration
SHORT_S = 5.0
"""That Envoy waits for a pick; still longer than this process ever takes for one."""


@dataclass
class Gate:
    """A worker's model: each request waits to be let through."""

    coming: asyncio.Queue[tuple[dict[str, str], asyncio.Event]] = field(default_factory=asyncio.Queue)
    executing: int = 0
    most: int = 0

    def of(self, worker: FakeWorker) -> Any:
        async def infer(request: Any, context: Any) -> Any:
            through = asyncio.Event()
            self.executing += 1
            self.most = max(self.most, self.executing)
            self.coming.put_nowait((dict(context.invocation_metadata()), through))
            await through.wait()
            self.executing -= 1
            return worker.answer(request)

        return infer

    async def served(self, count: int, header: str) -> list[str]:
        """That header of those who come to the worker, one after the other; each is let through."""
        found = []
        for _ in range(count):
            headers, through = await asyncio.wait_for(self.coming.get(), PATIENCE_S)
            found.append(headers.get(header, ""))
            through.set()
        return found


@dataclass
class HoldingRig:
    """A real Envoy, the balancer's own picks and counts, and one worker that executes one request at a time."""

    rig: Rig
    router: Router
    recorder: Recorder
    picker: Picker
    metrics: Metrics
    gate: Gate

    def held(self) -> int:
        return len(self.picker.holding.waiting)

    def ask(self, timeout: float = PATIENCE_S, **headers: Any) -> asyncio.Task[Any]:
        metadata = [("x-batch-rows", "1"), *((name.replace("_", "-"), str(text)) for name, text in headers.items())]
        return asyncio.ensure_future(self._infer(timeout, metadata))

    async def _infer(self, timeout: float, metadata: list[tuple[str, str]]) -> Any:
        try:
            return (await self.rig.stub.ModelInfer(a_request(), timeout=timeout, metadata=metadata)).id
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()

    async def ask_in_turn(self, headers: list[dict[str, Any]]) -> list[asyncio.Task[Any]]:
        """So many requests, which come to the balancer in this order and wait there."""
        asked = []
        for i, one in enumerate(headers):
            asked.append(self.ask(**one))
            await eventually(lambda i=i: self.held() == i + 1)
        return asked

    def counted(self, how: str) -> float:
        families = text_string_to_metric_families(self.metrics.exposition().decode())
        samples = (sample for family in families for sample in family.samples)
        wanted = ("balancer_held_seconds_count", how)
        return sum(s.value for s in samples if (s.name, s.labels.get("result")) == wanted)


@contextlib.asynccontextmanager
async def holding(tmp_path: Path, waits_s: float = PATIENCE_S, **settings: Any) -> AsyncIterator[HoldingRig]:
    held = HoldingSettings({"m": HeldModel(0.0, forming=False)}, **settings)
    router = Router(LeastRequests(), Settings(holding=held))
    router.observe(WorkerAdded("w0"), time.monotonic())
    router.observe(report("w0", 0, [model("m")]), time.monotonic())
    worker, gate = FakeWorker("w0"), Gate()
    worker.infer = gate.of(worker)
    metrics, picker = Metrics(router, time.monotonic), Picker(router, time.monotonic, run=RUN)
    recorder = Recorder(router, picker, metrics, time.monotonic)
    processor = ExternalProcessor(picker, recorder, HeaderNames, lambda: True)
    balancer = FakeBalancer(picks=processor.handler(), listener=recorder)
    rig = Rig(tmp_path, balancers=[balancer], workers=[worker])
    rig.options = dataclasses.replace(rig.options, message_timeout_s=waits_s)
    async with rig.running():
        spec = WorkerSpec(name="w0", address=worker.address, grpc_port=worker.grpc_port, http_port=worker.http_port)
        picker.addresses = Addresses([spec])
        yield HoldingRig(rig, router, recorder, picker, metrics, gate)


async def occupied(found: HoldingRig) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """A request that executes until its event is set."""
    first = found.ask()
    _, through = await asyncio.wait_for(found.gate.coming.get(), PATIENCE_S)
    assert found.held() == 0
    return first, through


async def test_a_request_waits_for_room_for_longer_than_envoy_waits_for_a_pick(tmp_path: Path) -> None:
    async with holding(tmp_path, SHORT_S) as found:
        first, through = await occupied(found)
        (second,) = await found.ask_in_turn([{}])
        await asyncio.sleep(1.1 * SHORT_S)  # what is awaited is that nothing happens
        assert found.held() == 1
        assert found.gate.coming.empty()
        told = found.picker.holding.explain("m", time.monotonic())["held"]
        assert (told["count"], told["unfinished_batches"]) == (1, {"w0": 1.0})
        assert told["first"][0]["waited_s"] > SHORT_S
        through.set()
        assert await first == "w0"
        assert len(await found.gate.served(1, "x")) == 1
        assert await second == "w0"
        assert await found.rig.statistic(r"http\.inference\.ext_proc\.message_timeouts") == 0
        assert found.counted("placed") == 2


async def test_the_earliest_deadline_leaves_first_and_the_hopeless_last(tmp_path: Path) -> None:
    async with holding(tmp_path, order="deadline") as found:
        first, through = await occupied(found)
        asked = await found.ask_in_turn([{"x_deadline_ms": ms} for ms in (1, 100_000, 50_000)])
        through.set()
        assert await found.gate.served(3, "x-deadline-ms") == ["50000", "100000", "1"]
        assert await asyncio.gather(first, *asked) == 4 * ["w0"]


async def test_beyond_the_bound_requests_are_refused(tmp_path: Path) -> None:
    async with holding(tmp_path, order="arrival", max_requests=2) as found:
        first, through = await occupied(found)
        asked = await found.ask_in_turn([{}, {}])
        code, words = await found.ask()
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 requests" in words
        async with found.rig.http.post(
            f"http://{found.rig.envoy.endpoint}/v2/models/m/infer", json={}, headers={"x-batch-rows": "1"}
        ) as response:
            assert response.status == 429
        through.set()
        await found.gate.served(2, "x")
        assert await asyncio.gather(first, *asked) == 3 * ["w0"]
        assert found.counted("refused") == 2


async def test_who_waits_too_long_is_refused(tmp_path: Path) -> None:
    async with holding(tmp_path, max_s=0.3) as found:
        first, through = await occupied(found)
        code, words = await found.ask()
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "no worker had room" in words
        through.set()
        assert await first == "w0"


async def test_a_client_that_leaves_waits_no_longer(tmp_path: Path) -> None:
    async with holding(tmp_path) as found:
        first, through = await occupied(found)
        leaving, staying = await found.ask_in_turn([{}, {}])
        leaving.cancel()
        await eventually(lambda: found.held() == 1)
        assert found.counted("withdrawn") == 1
        through.set()
        assert len(await found.gate.served(1, "x")) == 1
        assert await asyncio.gather(first, staying) == 2 * ["w0"]
        assert found.gate.coming.empty()


async def test_where_the_balancer_goes_those_who_wait_go_on_without_it(tmp_path: Path) -> None:
    async with holding(tmp_path) as found:
        first, through = await occupied(found)
        (second,) = await found.ask_in_turn([{}])
        through.set()
        await first
        (balancer,) = found.rig.balancers
        _, through = await asyncio.wait_for(found.gate.coming.get(), PATIENCE_S)
        (third,) = await found.ask_in_turn([{}])
        through.set()
        assert await second == "w0"
        await balancer.stop()
        await found.gate.served(1, "x")
        assert await third == "w0"


async def test_at_the_end_all_are_placed(tmp_path: Path) -> None:
    async with holding(tmp_path) as found:
        first, through = await occupied(found)
        (second,) = await found.ask_in_turn([{}])
        found.picker.holding.place_all()
        assert found.held() == 0
        through.set()
        await found.gate.served(1, "x")
        assert await asyncio.gather(first, second) == 2 * ["w0"]
