"""Clients that keep the fleet waiting at a real Envoy: they take no large answer, or stop amid a request."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.both_fronts import BothFronts
from support.envoy_fakes import FakeWorker, Rig, a_request
from support.native import NativeRig
from support.raw_http2 import Unread, grpc_head
from support.waiting import eventually

from balancer.kernel.settings import Limits, Settings
from policies.least_requests import LeastRequests

pytestmark = pytest.mark.integration
SETTINGS = Settings(reports_required=False, limits=Limits(max_pending_per_worker=20.0))
REST = "/v2/models/m/infer"
INFER, STREAM = "/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ModelStreamInfer"


JSON = b'{"inputs":[]}'


def of_rest(rig: Rig, window: int) -> Unread:
    length = (("inference-header-content-length", str(len(JSON))),)
    return Unread(rig.envoy.endpoint, REST, window, "application/octet-stream", length)


def framed(payload_bytes: int = 16) -> bytes:
    message: bytes = a_request(payload_bytes=payload_bytes).SerializeToString()
    return grpc_head(len(message)) + message


@pytest.fixture
async def native(tmp_path: Path) -> AsyncIterator[NativeRig]:
    async with NativeRig(tmp_path, settings=SETTINGS, gives_up=True).running() as rig:
        yield rig


def in_flight(rig: NativeRig) -> int:
    return int(rig.router.fleet.queue.in_flight.sum())


def watch(rig: NativeRig, worker: FakeWorker, counted: list[int]) -> Any:
    """A worker that tells how many are in flight while it works."""

    async def infer(request: Any, context: Any) -> Any:
        counted.append(in_flight(rig))
        return worker.answer(request)

    return infer


async def all_served(rig: Rig) -> bool:
    return {await rig.infer() for _ in range(12)} <= {"w0", "w1", "w2"}


@pytest.mark.parametrize("decides", ["Envoy", "the balancer", "the balancer, which Envoy's module asks"])
async def test_who_takes_no_large_answer_keeps_no_place(tmp_path: Path, decides: str) -> None:
    rig = BothFronts(tmp_path, policy=LeastRequests(), settings=SETTINGS, native=decides == "Envoy")
    if decides == "the balancer":
        rig.options = dataclasses.replace(rig.options, native=None)

    async def much(request: Any, context: Any) -> Any:
        """Together more than a connection's window by default."""
        return rig.workers[0].answer(a_request(payload_bytes=3 * 2**20))

    async with rig.running():
        for worker in rig.workers:
            worker.infer = much
        stranger = Unread(rig.envoy.endpoint)
        await stranger.start()
        for came in (40, 80, 120):
            await stranger.ask(framed(), 40)
            await eventually(lambda came=came: sum(len(worker.requests) for worker in rig.workers) == came)
            await eventually(lambda: in_flight(rig) == 0)
        for worker in rig.workers:
            worker.infer = None
        assert await all_served(rig)
        await stranger.stop()
        await eventually(lambda: rig.samples("balancer_outcomes_total") == {("matched",): 132})


@pytest.mark.parametrize("path", [INFER, STREAM, REST])
async def test_an_upload_that_stops_keeps_no_place(native: NativeRig, path: str) -> None:
    body = JSON + bytes(20) if path == REST else framed(1000)
    stranger = of_rest(native, 65535) if path == REST else Unread(native.envoy.endpoint, path, 65535)
    await stranger.start()
    await stranger.ask(body[:-10], 50, whole=False)
    await eventually(lambda: native.router.state.counts()["picked"] == 50)
    await native.all_ended()
    assert await all_served(native)
    # Nobody is refused for it, and it counts again once the worker has work by it.
    counted: list[int] = []
    for worker in native.workers:
        worker.infer = watch(native, worker, counted)
    await stranger.go_on(body[-10:])
    await eventually(lambda: len(native.all_outcomes()) == 62)
    await native.all_ended()
    assert native.all_outcomes()["ok"].all()
    assert path != INFER or max(counted) > 1
    await stranger.stop()
