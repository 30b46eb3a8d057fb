"""What people are told of requests, by either front end: the same requests give the same metrics and lines."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.both_fronts import BothFronts
from support.envoy_fakes import a_request
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2

from balancer.kernel.settings import Limits, Settings
from balancer.scheduler.events import ModelReport, Report, Sent
from balancer.server.tally import picked, summary

pytestmark = pytest.mark.integration
MODEL, FULL = "m", "full"
SETTINGS = Settings(limits=Limits(max_pending_per_worker=4), stale_after_s=1e6)


@pytest.fixture(params=["pick", "native"])
async def rig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[BothFronts]:
    async with BothFronts(tmp_path, settings=SETTINGS, native=request.param == "native").running() as rig:
        assert isinstance(rig, BothFronts)
        for name in ("w0", "w1", "w2"):
            models = tuple(ModelReport(model, "1", ready=True) for model in (MODEL, FULL))
            rig.router.observe(Report(name, 1, 1, True, models=models), time.monotonic())
        yield rig
        counts = rig.router.state.counts()
        assert not counts["left_to_balancer" if rig.native else "picked"], "whoever was to decide did"


async def counted(rig: BothFronts, requests: int) -> None:
    """Once so many have been told of."""
    await eventually(lambda: sum(rig.samples("balancer_requests_total").values()) == requests)


async def fails(rig: BothFronts, request: Any, code: grpc.StatusCode, **arguments: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelInfer(request, timeout=PATIENCE_S, **arguments)
    assert raised.value.code() is code


async def test_answers(rig: BothFronts) -> None:
    for _ in range(3):
        await rig.stub.ModelInfer(a_request(payload_bytes=1000), timeout=PATIENCE_S)
    url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
    for _ in range(3):
        async with rig.http.post(url, json={"inputs": [{"name": "x", "shape": [4, 2]}]}) as response:
            assert response.status == 200
    await rig.stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=PATIENCE_S)
    call = rig.stub.ModelStreamInfer(timeout=PATIENCE_S)
    await call.write(a_request())
    await call.read()
    await call.done_writing()
    await call.read()
    await counted(rig, 8)
    assert rig.samples("balancer_requests_total") == {
        **{(MODEL, "grpc_0", name): count for name, count in (("w0", 2), ("w1", 2), ("w2", 1))},
        **{(MODEL, "http_200", name): 1 for name in ("w0", "w1", "w2")},
    }
    # Neither a question nor a stream has a time that is its worker's.
    assert sum(rig.samples("balancer_request_duration_seconds_count").values()) == 6
    assert rig.samples("balancer_first_byte_seconds_count") == {(MODEL,): 6}
    assert rig.samples("balancer_decision_duration_seconds_count") == {(): 8}
    assert rig.samples("balancer_decisions_total") == {("round_robin",): 8}
    assert rig.samples("balancer_outcomes_total") == {("matched",): 8}
    for name in ("errors", "refusals", "fallbacks", "aborted_requests"):
        assert rig.samples(f"balancer_{name}_total") == {}
    span_s, parts = rig.recorder.recent.parts(time.monotonic())
    found = summary(span_s, parts)
    assert (picked(parts), found.errors) == ({"picked": 6, "without_pick": 0}, 0)
    assert found.p99_s > 0


async def test_bodies(rig: BothFronts) -> None:
    """Each message of gRPC has five bytes before it."""
    request = a_request(payload_bytes=300_000)
    answer = await rig.stub.ModelInfer(request, timeout=PATIENCE_S)
    url = f"http://{rig.envoy.endpoint}/v2/models/m/infer"
    async with rig.http.post(url, data=bytes(200_000), headers={"inference-header-content-length": "0"}) as response:
        text = await response.read()
    await counted(rig, 2)
    assert rig.samples("balancer_received_bytes_total") == {(MODEL,): 5 + request.ByteSize() + 200_000}
    assert rig.samples("balancer_sent_bytes_total") == {(MODEL,): 5 + answer.ByteSize() + len(text)}


async def test_errors_of_workers(rig: BothFronts) -> None:
    codes = iter((grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT))

    async def fail(_: Any, context: Any) -> Any:
        await context.abort(next(codes), "no")

    rig.workers[0].infer = rig.workers[1].infer = fail
    await fails(rig, a_request(), grpc.StatusCode.INTERNAL)
    await fails(rig, a_request(), grpc.StatusCode.INVALID_ARGUMENT)
    await counted(rig, 2)
    assert rig.samples("balancer_requests_total") == {(MODEL, "grpc_13", "w0"): 1, (MODEL, "grpc_3", "w1"): 1}
    assert rig.samples("balancer_errors_total") == {(MODEL, "w0"): 1}
    assert rig.samples("balancer_request_duration_seconds_count") == {}
    assert summary(*rig.recorder.recent.parts(time.monotonic())).errors == 1


async def test_a_worker_that_is_gone(rig: BothFronts) -> None:
    await rig.workers[0].stop()
    served = [await rig.infer() for _ in range(3)]
    assert "w0" not in served
    await counted(rig, 3)
    assert rig.samples("balancer_fallbacks_total") == {("retried",): 1}
    assert rig.samples("balancer_outcomes_total") == {("matched",): 3}


async def test_refusals(rig: BothFronts) -> None:
    for number in range(12):
        rig.router.observe(Sent(10**6 + number, f"w{number % 3}", FULL, 1.0), time.monotonic())
    await fails(rig, a_request("none"), grpc.StatusCode.NOT_FOUND)
    await fails(rig, a_request(FULL), grpc.StatusCode.RESOURCE_EXHAUSTED)
    await fails(rig, a_request(MODEL), grpc.StatusCode.INVALID_ARGUMENT, metadata=[("x-priority", "high")])
    url = f"http://{rig.envoy.endpoint}/v2/models/none/infer"
    async with rig.http.post(url, json={"inputs": []}) as response:
        assert response.status == 404
    await counted(rig, 4)
    assert rig.samples("balancer_refusals_total") == {("unknown_model",): 2, ("shed",): 1, ("invalid",): 1}
    assert rig.samples("balancer_requests_total") == {
        ("other", "grpc_5", ""): 1,
        (FULL, "grpc_8", ""): 1,
        (MODEL, "grpc_3", ""): 1,
        ("other", "http_404", ""): 1,
    }
    assert rig.samples("balancer_refused_inputs_total") == {("x-priority", "request"): 1}
    assert rig.samples("balancer_decision_duration_seconds_count") == {(): 3}
    assert rig.samples("balancer_decisions_total") == {}


async def test_a_client_that_leaves(rig: BothFronts) -> None:
    arrived = asyncio.Event()

    async def forever(_: Any, context: Any) -> Any:
        arrived.set()
        await asyncio.Event().wait()

    for worker in rig.workers:
        worker.infer = forever
    call = rig.stub.ModelInfer(a_request(), timeout=PATIENCE_S)
    waiting = asyncio.create_task(call.wait_for_connection())
    await arrived.wait()
    assert rig.router.fleet.queue.known_rows.sum() == 16
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await counted(rig, 1)
    assert rig.samples("balancer_aborted_requests_total") == {("client",): 1}
    assert rig.samples("balancer_errors_total") == {}
    assert rig.samples("balancer_request_duration_seconds_count") == {}
    assert rig.router.fleet.queue.in_flight.sum() == 0


async def test_a_client_that_leaves_before_its_request_is_there(rig: BothFronts) -> None:
    host, _, port = rig.envoy.endpoint.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"inputs": [{')
    await writer.drain()
    await eventually(lambda: rig.statistic(r"http\.inference\.downstream_rq_active"), until=lambda value: value == 1)
    writer.close()
    await writer.wait_closed()
    await counted(rig, 1)
    assert rig.samples("balancer_aborted_requests_total") == {("client",): 1}


async def test_lines_of_decisions(rig: BothFronts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "balancer.decisions")
    rig.log_lines(1.0)
    request = a_request()
    request.id = "tensor-1"
    await rig.stub.ModelInfer(request, timeout=PATIENCE_S, metadata=[("x-request-id", "mine")])
    sequence = a_request()
    sequence.parameters["sequence_id"].int64_param = 7
    home = (await rig.stub.ModelInfer(sequence, timeout=PATIENCE_S)).id
    await fails(rig, a_request("none"), grpc.StatusCode.NOT_FOUND)

    def lines() -> list[Any]:
        return [record for record in caplog.records if record.name == "balancer.decisions"]

    await eventually(lambda: len(lines()) == 3)
    first, second, third = (vars(line) for line in lines())
    names = ("number", "request_id", "triton_request_id", "model", "worker", "policy", "propensity", "reason")
    assert [first[name] for name in names] == [0, "mine", "tensor-1", MODEL, "w0", "round_robin", 1.0, "picked"]
    assert first["fallbacks"] == ["w1", "w2"]
    assert [second[name] for name in ("worker", "policy", "fallbacks")] == [home, "consistent_hash", []]
    assert [third[name] for name in names[3:]] == ["none", "", "round_robin", 0.0, "unknown_model"]
    assert third["number"] is None
