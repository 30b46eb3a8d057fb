"""What the module chooses for a cluster: attempts after the first, and requests that Envoy places by itself."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest
from support.envoy_fakes import a_request, go_on
from support.native import NativeRig
from support.waiting import PATIENCE_S, eventually

from balancer.scheduler.events import ModelReport, Report

pytestmark = pytest.mark.integration


@pytest.fixture
async def orphan(mortal: NativeRig) -> NativeRig:
    """Whose balancer is dead."""
    mortal.die()
    await eventually(mortal.does_without)
    return mortal


def serve(rig: NativeRig, models: Mapping[str, tuple[str, ...]]) -> None:
    """Have each worker say which models it has."""
    for worker in rig.workers:
        listed = tuple(ModelReport(model, "1", ready=True) for model in models.get(worker.name, ()))
        rig.router.observe(Report(worker.name, 1, 1, True, models=listed), time.monotonic())


async def test_what_is_tried_again_goes_to_a_fallback_and_to_nobody_else(rig: NativeRig) -> None:
    serve(rig, {"w0": ("m",), "w1": ("m",)})
    await rig.workers[0].stop()
    # Often enough for w2 to have its turn, if it had one.
    for _ in range(20):
        assert await rig.infer() == "w1"
        async with rig.http.post(f"http://{rig.envoy.endpoint}/v2/models/m/infer", data=b"{}") as response:
            assert (response.status, await response.text()) == (200, "w1")
        call = rig.stub.ModelStreamInfer(timeout=PATIENCE_S)
        await call.write(a_request())
        assert (await call.read()).infer_response.id == "w1"
        await call.done_writing()
    # When no fallback can be reached either, Envoy chooses.
    assert rig.workers[2].requests == []
    await rig.workers[1].stop()
    assert await rig.infer() == "w2"


async def test_requests_at_once_keep_their_own_fallbacks(rig: NativeRig) -> None:
    serve(rig, {"w0": ("left",), "w1": ("left", "right"), "w2": ("right",)})
    await rig.workers[1].stop()
    wanted = ["left", "right"] * 40
    answers = await asyncio.gather(*(rig.stub.ModelInfer(a_request(model), timeout=PATIENCE_S) for model in wanted))
    assert [answer.id for answer in answers] == [{"left": "w0", "right": "w2"}[model] for model in wanted]


async def test_who_is_busy_is_spared(orphan: NativeRig) -> None:
    busy, go, held = orphan.workers[0], asyncio.Event(), []

    async def slow(request: Any, context: Any) -> Any:
        held.append(request)
        await go.wait()
        return busy.answer(request)

    busy.infer = slow
    waiting: list[asyncio.Task[str]] = []
    # One may be no more than another's, whose end Envoy has not counted when the client has its answer.
    while len(held) < 3:
        waiting += [asyncio.create_task(orphan.infer(timeout=PATIENCE_S)) for _ in range(6)]
        await asyncio.wait(waiting, timeout=1, return_when=asyncio.FIRST_COMPLETED)
    await eventually(lambda: sum(not task.done() for task in waiting) == len(held))
    assert {await orphan.infer() for _ in range(20)} == {"w1", "w2"}
    go.set()
    assert {"w0", "w1", "w2"} == set(await asyncio.gather(*waiting))


async def test_who_drains_or_is_unwell_is_spared(orphan: NativeRig) -> None:
    async def served_by(*names: str) -> bool:
        return {await orphan.infer() for _ in range(20)} == set(names)

    await eventually(lambda: served_by("w0", "w1", "w2"))
    orphan.announce(w1="draining", w0="unhealthy")
    await eventually(lambda: served_by("w2"))
    orphan.announce(w0="draining")
    await eventually(lambda: served_by("w1", "w2"))
    # Where nobody is well, the request is refused.
    orphan.announce(w0="draining", w1="draining", w2="unhealthy")

    await eventually(orphan.try_infer, until=lambda end: end == "UNAVAILABLE")


async def test_what_the_balancer_decided_is_shown_at_once(rig: NativeRig) -> None:
    """Not gathered: Envoy would wait for an hour here."""
    rig.router.serve(False)
    rig.balancer.respond = lambda _: go_on(rig.workers[2].grpc_endpoint, process="0", number="1")
    assert await rig.infer() == "w2"
    outcome = await asyncio.wait_for(rig.balancer.outcomes.get(), PATIENCE_S)
    assert (outcome.upstream, outcome.grpc_status) == (rig.workers[2].grpc_endpoint, 0)
