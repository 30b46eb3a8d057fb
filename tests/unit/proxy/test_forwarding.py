"""Inferences through the proxy, over real gRPC to fake workers."""

import asyncio
import time
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, Gate, aborting
from support.proxied import Rig, proxied, request
from support.waiting import eventually
from tritonclient.grpc import service_pb2

from balancer.extproc.inference_bytes import TRITON_PROMPT, read
from balancer.extproc.kserve import HeaderNames, read_call
from balancer.extproc.responses import PUSHBACK
from balancer.proxy.attempts import Clocks
from balancer.proxy.messages import STREAM, UNAVAILABLE, Arrived
from balancer.proxy.streams import RelayedStream

_UNKNOWN_FIELD = b"\xa2\x06\x03abc"
"""Number 100 of a message; a newer client's."""


def workers(*names: str) -> list[FakeWorker]:
    return [FakeWorker(name) for name in names]


fails = aborting(grpc.StatusCode.UNAVAILABLE, "the queue is full")


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_bytes_pass_as_they_are_both_ways() -> None:
    unread = b"\x0a\x01m" + _UNKNOWN_FIELD

    async def answer(data: bytes, context: Any) -> bytes:
        return data[::-1]

    async with proxied(answer) as rig:
        assert await rig.infer(unread) == unread[::-1]
        assert rig.worker.requests == [unread]
        assert rig.metric("balancer_requests_total", model="other", worker="a", status="grpc_0") == 1
        assert rig.in_flight == 0


async def test_headers_and_trailers_pass_and_those_of_one_connection_do_not() -> None:
    async def answer(data: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("x-first", "1"),))
        context.set_trailing_metadata((("x-last", "2"),))
        return b""

    sent = (("x-mine", "yes"), ("x-envoy-original-path", "/"), ("x-gateway-destination-endpoint", "1.2.3.4:1"))
    async with proxied(answer) as rig:
        call = rig.call(request(), metadata=sent)
        await call
        assert dict(await call.initial_metadata())["x-first"] == "1"
        assert dict(await call.trailing_metadata())["x-last"] == "2"
    [headers] = rig.worker.headers
    assert headers["x-mine"] == "yes"
    assert not {"x-envoy-original-path", "x-gateway-destination-endpoint"} & set(headers)


async def test_an_error_of_a_worker_is_the_clients_with_its_words() -> None:
    refuses = aborting(grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape", (("x-why", "rows"),))
    async with proxied(refuses) as rig:
        error = await error_of(rig.call(request()))
        assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape")
        assert dict(error.trailing_metadata())["x-why"] == "rows"
        assert rig.in_flight == 0
        assert rig.metric("balancer_errors_total") == rig.metric("balancer_request_duration_seconds_count") == 0


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\xff\xff", "message"),
        (b"\x0a\x05ab", "message"),
        (b"\x0a\x02\xff\xfe", "model_name"),
        (b"\x08\x01", "message"),
        (b"", "model"),
        (request("m" * 300), "model_name"),
        (request(parameters={"sequence_id": "s" * 300}), "sequence_id"),
        (b"\x0a\x01m" + b"\xa0\x06\x01" * 5000, "message"),
    ],
)
async def test_what_cannot_be_read_is_refused_in_words(data: bytes, field: str) -> None:
    async with proxied() as rig:
        error = await error_of(rig.call(data))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.details() or "").startswith(f"{field}: ")
        assert not rig.worker.requests
        assert rig.metric("balancer_refused_inputs_total", message="request", field=field) == 1


async def test_the_deadline_reaches_the_worker_and_ends_the_call() -> None:
    async with proxied(Gate()) as rig:

        async def reaches_the_worker() -> bool:
            error = await error_of(rig.call(request(), timeout=0.3))
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await eventually(lambda: rig.in_flight == 0)
            return bool(rig.worker.left_s)

        await eventually(reaches_the_worker, "it comes there in time")
        await eventually(lambda: rig.worker.cancelled == len(rig.worker.left_s))
        # gRPC rounds up what it says of a deadline.
        assert all(left_s is not None and left_s < 0.4 for left_s in rig.worker.left_s)


async def test_a_client_that_leaves_ends_the_workers_work_and_is_no_fault_of_its() -> None:
    async with proxied(gate := Gate()) as rig:
        call = rig.call(request())
        sent = asyncio.ensure_future(call.wait_for_connection())
        await gate.begun.wait()
        call.cancel()
        await eventually(lambda: rig.worker.cancelled)
        await eventually(lambda: rig.in_flight == 0)
        assert rig.metric("balancer_aborted_requests_total", by="client") == 1
        assert rig.metric("balancer_errors_total") == rig.metric("balancer_request_duration_seconds_count") == 0
        sent.cancel()


async def test_a_stream_goes_to_one_worker_with_all_its_messages() -> None:
    fleet = workers("a", "b")
    async with proxied(fleet) as rig:
        stream = rig.stream()
        for number in range(5):
            await stream.write(request(name=str(number)))
        await stream.done_writing()
        answers = [service_pb2.ModelStreamInferResponse.FromString(each) async for each in stream]
        assert [each.infer_response.id for each in answers] == ["0", "1", "2", "3", "4"]
        assert sorted(len(worker.requests) for worker in fleet) == [0, 5]
        assert rig.in_flight == 0


@pytest.mark.parametrize(("messages", "learned"), [(1, 1.0), (3, 0.0)])
async def test_a_stream_with_a_prompt_is_one_of_a_language_model(messages: int, learned: float) -> None:
    """Whose tokens are counted, and learned from where they belong to one request."""
    asked = service_pb2.ModelInferRequest(model_name="m")
    asked.inputs.add(name=TRITON_PROMPT, datatype="BYTES", shape=[1])
    asked.raw_input_contents.append((400).to_bytes(4, "little") + b"tide" * 100)
    async with proxied() as rig:
        stream = rig.stream()
        await stream.write(asked.SerializeToString())
        assert isinstance(await stream.read(), bytes)
        assert rig.metric("gen_ai_server_time_to_first_token_seconds_count") == 1
        assert rig.router.fleet.prefixes.waiting_tokens.sum() == 0, "its prompt is computed"
        for _ in range(messages - 1):
            await stream.write(asked.SerializeToString())
            assert isinstance(await stream.read(), bytes)
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        await eventually(lambda: rig.metric("balancer_tokens_total", kind="output") == messages)
        assert rig.router.fleet.lengths.ended.sum() == learned
        assert rig.in_flight == 0


async def test_a_stream_whose_client_leaves_ends_at_the_worker() -> None:
    async with proxied(gate := Gate()) as rig:
        stream = rig.stream()
        await stream.write(request())
        await gate.begun.wait()
        stream.cancel()
        await eventually(lambda: rig.worker.cancelled)
        await eventually(lambda: rig.in_flight == 0)


class Insistent:
    """A client that sends on and on."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return request(rows=1000)

    async def write(self, message: bytes) -> None:
        self.answers.append(message)

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        pass


async def test_a_worker_that_ends_a_stream_while_more_is_sent_ends_it_with_its_own_words() -> None:
    data = request()
    call = read_call({":path": STREAM, "content-type": "application/grpc"}, read(data).fields, HeaderNames())
    async with proxied(fails) as rig:
        parts = rig.front.attempts, Clocks(time.monotonic, time.monotonic), rig.front.proxy.tenants
        for _ in range(50):
            answer = await RelayedStream(*parts, Arrived(call, data, ()), Insistent()).run()
            assert (answer.code, answer.details) == (UNAVAILABLE, "the queue is full")


async def test_what_nobody_took_goes_to_another_worker() -> None:
    fleet = workers("a", "b")
    async with proxied(fleet) as rig:
        await fleet[0].stop()
        for _ in range(4):
            answer = service_pb2.ModelInferResponse.FromString(await rig.infer(request()))
            assert answer.parameters["worker"].string_param == "b"
        assert rig.metric("balancer_proxy_retries_total", result="made") >= 1
        assert rig.in_flight == 0


async def test_a_stream_that_nobody_took_goes_to_another_worker() -> None:
    fleet = workers("a", "b")
    async with proxied(fleet) as rig:
        await fleet[0].stop()
        for _ in range(2):
            stream = rig.stream()
            await stream.write(request())
            assert service_pb2.ModelStreamInferResponse.FromString(await stream.read()).infer_response.model_name == "m"
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF


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


@pytest.mark.parametrize("repeatable", [True, False])
async def test_what_may_have_been_executed_is_sent_again_only_if_it_is_repeatable(repeatable: bool) -> None:
    fleet = workers("a", "b")
    fleet[0].infer = fails
    metadata = (("x-repeatable", "true"),) if repeatable else ()
    async with proxied(fleet, proxy={"breaker": {"failures": 0}}) as rig:
        results = await asyncio.gather(
            *(rig.infer(request(), metadata=metadata) for _ in range(4)), return_exceptions=True
        )
        failed = [each for each in results if isinstance(each, grpc.aio.AioRpcError)]
        assert not failed if repeatable else len(failed) == 2


async def test_a_request_of_a_sequence_is_never_sent_again() -> None:
    fleet = workers("a", "b")
    async with proxied(fleet, models={"m": {"proxy": {"repeatable": True}}}) as rig:
        for worker in fleet:
            await worker.stop()
        await error_of(rig.call(request(parameters={"sequence_id": 7, "sequence_start": True})))
        assert rig.metric("balancer_proxy_retries_total") == 0


async def test_retries_end_with_their_budget() -> None:
    fleet = workers("a", "b")
    constants = {"retry_share": 0.0, "retry_burst": 3, "retry_base_s": 0.0}
    async with proxied(fleet, constants, proxy={"breaker": {"failures": 0}}) as rig:
        for worker in fleet:
            worker.infer = fails
        for _ in range(6):
            await error_of(rig.call(request(), metadata=(("x-repeatable", "true"),)))
        assert rig.metric("balancer_proxy_retries_total", result="made") == 3
        assert rig.metric("balancer_proxy_retries_total", result="no_budget") == 3
        assert sum(len(worker.requests) for worker in fleet) == 9


async def test_a_breaker_keeps_requests_from_a_worker_that_fails() -> None:
    fleet = workers("a", "b")
    fleet[0].infer = fails
    async with proxied(fleet, {"breaker_open_s": 3600}, proxy={"breaker": {"failures": 3}}) as rig:
        for _ in range(20):
            await asyncio.gather(rig.infer(request()), return_exceptions=True)
        assert len(fleet[0].requests) == 3
        assert rig.metric("balancer_proxy_breaker_open", model="m", worker="a") == 1
        assert rig.metric("balancer_proxy_breakers_opened_total") == 1


async def test_where_all_breakers_are_open_requests_are_still_tried() -> None:
    async with proxied(fails, {"breaker_open_s": 3600}, proxy={"breaker": {"failures": 1}}) as rig:
        await error_of(rig.call(request()))
        rig.worker.infer = None
        assert await rig.infer(request())


async def test_a_tenant_is_turned_away_beyond_its_share_and_others_are_not() -> None:
    fleet = workers("a")
    tenants = {"requests_per_s": 0.001, "named": {"rich": {"rows_per_s": 1e6}, "wide": {"rows_per_s": 0.01}}}
    async with proxied(fleet, proxy={"tenants": tenants}) as rig:
        poor, other, rich, wide = ((("x-tenant", name),) for name in ("poor", "other", "rich", "wide"))
        assert await rig.infer(request(), metadata=poor)
        error = await error_of(rig.call(request(), metadata=poor))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "tenant 'poor'" in (error.details() or "")
        assert int(dict(error.trailing_metadata())[PUSHBACK]) > 900_000
        assert await rig.infer(request(), metadata=other)
        for _ in range(5):
            assert await rig.infer(request(rows=50), metadata=rich)
        # What a header says of rows makes them no fewer.
        assert await rig.infer(request(rows=50), metadata=(*wide, ("x-batch-rows", "1")))
        await error_of(rig.call(request(), metadata=wide))
        assert rig.metric("balancer_refusals_total", reason="tenant") == 2


async def make_one_hang(rig: Rig, worker: FakeWorker) -> None:
    """Once it is known how long requests take."""
    for _ in range(60):
        await rig.infer(request())

    worker.infer = Gate()


async def test_a_slow_request_goes_to_a_second_worker_and_the_loser_is_cancelled() -> None:
    fleet = workers("a", "b")
    models = {"m": {"proxy": {"repeatable": True, "hedge": True}}}
    async with proxied(fleet, {"hedge_share": 1.0}, models=models) as rig:
        await make_one_hang(rig, fleet[0])
        answers = [service_pb2.ModelInferResponse.FromString(await rig.infer(request())) for _ in range(2)]
        assert {each.parameters["worker"].string_param for each in answers} == {"b"}
        await eventually(lambda: fleet[0].cancelled)
        await eventually(lambda: rig.in_flight == 0)
        assert rig.metric("balancer_proxy_hedges_total", result="won") >= 1
        assert rig.metric("balancer_errors_total") == 0


async def test_what_was_slow_counts_as_slow_although_its_copy_was_first() -> None:
    """Otherwise 95% would soon take no longer than fast workers do, and ever more requests would get a copy."""
    fleet = workers("a", "b")
    models = {"m": {"proxy": {"repeatable": True, "hedge": True}}}
    async with proxied(fleet, {"hedge_share": 1.0, "hedge_min_s": 0.05}, models=models) as rig:
        await make_one_hang(rig, fleet[0])
        for _ in range(20):
            await rig.infer(request())
        # More than 5% of all.
        assert rig.metric("balancer_proxy_hedges_total", result="won") >= 6
        usual_s = rig.front.attempts.latencies.quantile_s("m", 0.95)
        assert usual_s is not None
        assert usual_s >= 0.05


async def test_full_workers_turn_away_with_a_time_to_come_back() -> None:
    worker, limits = FakeWorker("a", gate := Gate()), {"max_pending_per_worker": 1}
    async with proxied([worker], {"pushback_s": 2}, limits=limits) as rig:
        first = asyncio.ensure_future(rig.infer(request()))
        await eventually(lambda: rig.in_flight)
        error = await error_of(rig.call(request()))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 1000 <= int(dict(error.trailing_metadata())[PUSHBACK]) <= 3000
        assert rig.metric("balancer_refusals_total", reason="shed") == 1
        gate.goes_on.set()
        assert await first
