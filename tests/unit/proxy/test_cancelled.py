"""What a worker cancels, as one that stops or by its model, through the proxy over real gRPC to fake workers."""

from __future__ import annotations

import grpc
from support.fake_worker import FakeWorker, aborting
from support.proxied import proxied, request
from tritonclient.grpc import service_pb2
from unit.proxy.test_forwarding import error_of, workers

cancels = aborting(grpc.StatusCode.CANCELLED, "CANCELLED")
"""As a Triton that ends and has not taken the request up."""


async def test_what_a_worker_cancels_as_it_stops_goes_to_another_one() -> None:
    fleet = workers("a", "b")
    fleet[0].infer = cancels
    async with proxied(fleet, proxy={"breaker": {"failures": 0}}) as rig:
        for _ in range(6):
            answer = service_pb2.ModelInferResponse.FromString(await rig.infer(request()))
            assert answer.parameters["worker"].string_param == "b"
        assert fleet[0].requests
        assert rig.metric("balancer_proxy_retries_total", result="made") == len(fleet[0].requests)
        fleet[1].infer = cancels
        error = await error_of(rig.call(request()))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "the worker stopped before it began with the request; retry later",
        )


async def test_a_model_may_cancel_a_request_itself() -> None:
    """With words of its own: it may have executed, so the request is sent again only where that does no harm."""
    cancels_too = aborting(grpc.StatusCode.CANCELLED, "cancelled by the model")
    fleet = [FakeWorker(name, cancels_too) for name in ("a", "b")]
    async with proxied(fleet, proxy={"breaker": {"failures": 0}}) as rig:
        error = await error_of(rig.call(request()))
        assert (error.code(), error.details()) == (grpc.StatusCode.CANCELLED, "cancelled by the model")
        assert sum(len(worker.requests) for worker in fleet) == 1
        await error_of(rig.call(request(), metadata=(("x-repeatable", "true"),)))
        assert sum(len(worker.requests) for worker in fleet) == 3
