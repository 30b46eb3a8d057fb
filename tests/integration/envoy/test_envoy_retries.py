"""Through a real Envoy: a request is sent again where nothing was executed, and nowhere else."""

import asyncio
from typing import Any

import grpc
import pytest
from support.envoy_fakes import FakeWorker, Rig, a_request, go_on
from support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration
DRAINING = "Request for unknown model: 'm' has no available versions"


def failing(code: grpc.StatusCode, details: str) -> Any:
    async def fail(request: Any, context: Any) -> Any:
        await context.abort(code, details)

    return fail


def pick(rig: Rig, *workers: FakeWorker, **headers: str) -> None:
    endpoints = ",".join(worker.grpc_endpoint for worker in workers)
    set_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    rig.balancers[0].respond = lambda _: go_on(endpoints, process="0", number="1", set_headers=set_headers)


async def test_no_connection_goes_to_the_fallback(rig: Rig) -> None:
    w0, w1, w2 = rig.workers
    await w0.stop()
    pick(rig, w0, w2)
    assert await rig.infer() == "w2"
    outcome = await asyncio.wait_for(rig.balancers[0].outcomes.get(), PATIENCE_S)
    assert (outcome.attempts, outcome.upstream, outcome.grpc_status) == (2, w2.grpc_endpoint, 0)
    assert w1.requests == []


async def test_a_stopping_triton_goes_to_the_fallback(rig: Rig) -> None:
    w0, _, w2 = rig.workers
    pick(rig, w0, w2)
    for code, details in ((grpc.StatusCode.NOT_FOUND, DRAINING), (grpc.StatusCode.CANCELLED, "CANCELLED")):
        w0.infer = failing(code, details)
        assert await rig.infer() == "w2"
    assert len(w0.requests) == 2


FINAL = (
    (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size"),
    (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'm' is not found"),
    (grpc.StatusCode.INTERNAL, "the model raised"),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much"),
    (grpc.StatusCode.DEADLINE_EXCEEDED, "too late"),
    (grpc.StatusCode.INVALID_ARGUMENT, "wrong shape"),
    (grpc.StatusCode.CANCELLED, "CANCELLED by the model"),
)


async def test_what_a_worker_answers_is_final(rig: Rig) -> None:
    pick(rig, rig.workers[0], rig.workers[2])
    for code, details in FINAL:
        rig.workers[0].infer = failing(code, details)
        for _ in range(6):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await rig.infer()
            assert (raised.value.code(), raised.value.details()) == (code, details)
    assert [len(worker.requests) for worker in rig.workers] == [6 * len(FINAL), 0, 0]
    # Nor does it keep the worker from serving when Envoy chooses.
    assert set((await rig.health()).values()) == {"healthy"}


async def test_a_request_that_may_have_been_executed_is_not_repeated(rig: Rig) -> None:
    w0, w1, w2 = rig.workers
    executing = asyncio.Event()

    async def die(request: Any, context: Any) -> Any:
        executing.set()
        await asyncio.Event().wait()

    w0.infer = die
    pick(rig, w0, w2)
    call = rig.stub.ModelInfer(a_request(), timeout=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await executing.wait()
    await w0.stop()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert raised.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert (len(w1.requests), len(w2.requests)) == (0, 0)


async def test_the_balancer_can_forbid_it(rig: Rig) -> None:
    """As for a sequence: its state is on one worker only."""
    w0, _, w2 = rig.workers
    await w0.stop()
    pick(rig, w0, w2, x_envoy_max_retries="0")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.infer(metadata=[("x-envoy-max-retries", "5")])
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    outcome = await asyncio.wait_for(rig.balancers[0].outcomes.get(), PATIENCE_S)
    assert (outcome.attempts, outcome.upstream, outcome.by) == (1, w0.grpc_endpoint, "worker")


async def test_a_worker_that_cannot_be_reached_is_left_out_of_the_fallback(rig: Rig) -> None:
    await rig.workers[0].stop()

    async def is_left_out() -> bool:
        await rig.infer()
        return "outlier" in (await rig.health())[rig.workers[0].grpc_endpoint]

    await eventually(is_left_out)


IN_FLIGHT = 64


async def refusing_at_once(rig: Rig, refuse: Any) -> list[str]:
    """Who served each of 64 requests that w0 took and then refused together."""
    w0, _, w2 = rig.workers
    gate = asyncio.Event()
    arrived = 0

    async def stop(request: Any, context: Any) -> Any:
        nonlocal arrived
        arrived += 1
        if arrived == IN_FLIGHT:
            gate.set()
        await gate.wait()
        return await refuse(request, context)

    w0.infer = stop
    pick(rig, w0, w2)
    return await asyncio.gather(*(rig.infer(timeout=PATIENCE_S) for _ in range(IN_FLIGHT)))


async def test_a_draining_triton_that_refuses_all_it_has_costs_no_request(rig: Rig) -> None:
    served = await refusing_at_once(rig, failing(grpc.StatusCode.NOT_FOUND, DRAINING))
    assert served == ["w2"] * IN_FLIGHT


async def test_a_worker_that_is_gone_costs_none_of_many_requests(rig: Rig) -> None:
    w0, _, w2 = rig.workers
    await w0.stop()
    pick(rig, w0, w2)
    assert await asyncio.gather(*(rig.infer(timeout=PATIENCE_S) for _ in range(IN_FLIGHT))) == ["w2"] * IN_FLIGHT
    assert await rig.statistic(r"cluster\.triton_grpc\.upstream_rq_retry_overflow") == 0
