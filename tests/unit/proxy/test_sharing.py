"""Ids that are executed once, and answers that serve equal requests; over real gRPC."""

import asyncio
from typing import Any

import grpc
import pytest
from support.fake_worker import FakeWorker, Gate, aborting
from support.proxied import Rig, proxied, request
from support.waiting import eventually
from tritonclient.grpc import service_pb2

from balancer.config.config import ConfigError, from_mapping

ONCE = {"m": {"proxy": {"once_s": 60, "repeatable": True, "hedge": True}}}
CACHED = {"m": {"proxy": {"cache_ttl_s": 60}}}


def answer_of(data: bytes) -> service_pb2.ModelInferResponse:
    return service_pb2.ModelInferResponse.FromString(data)


async def infer(rig: Rig, data: bytes, **headers: str) -> service_pb2.ModelInferResponse:
    return answer_of(await rig.infer(data, metadata=tuple((k.replace("_", "-"), v) for k, v in headers.items())))


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_an_id_that_is_running_is_joined_and_goes_on_though_its_clients_leave() -> None:
    async with proxied(gate := Gate(), models=ONCE) as rig:
        left = rig.call(request(name="7"))
        waiting = asyncio.ensure_future(left.code())
        await eventually(lambda: rig.worker.requests)
        left.cancel()
        await waiting
        assert await code_of(rig.call(request(name="7"), timeout=0.1)) is grpc.StatusCode.DEADLINE_EXCEEDED
        joined = asyncio.ensure_future(infer(rig, request(name="7")))
        gate.goes_on.set()
        assert (await joined).id == "7"
        assert len(rig.worker.requests) == 1


fails_amid = aborting(grpc.StatusCode.UNAVAILABLE, "in the middle of it")


async def test_an_id_that_may_have_been_executed_is_never_sent_again() -> None:
    fleet = [FakeWorker(name, fails_amid) for name in ("a", "b")]
    async with proxied(fleet, models=ONCE) as rig:
        codes = {await code_of(rig.call(request(name="7"))) for _ in range(3)}
        assert codes == {grpc.StatusCode.UNAVAILABLE}
        assert sum(len(worker.requests) for worker in fleet) == 1


async def test_an_id_that_nobody_began_with_may_be_sent_again() -> None:
    async with proxied(models=ONCE) as rig:
        await rig.worker.stop()
        assert await code_of(rig.call(request(name="7"))) is grpc.StatusCode.UNAVAILABLE
        await rig.worker.start()
        # The channel looks for it again within a second.
        await eventually(lambda: reaches(rig, request(name="7")))
        assert len(rig.worker.requests) == 1


async def reaches(rig: Rig, data: bytes) -> bool:
    try:
        await rig.infer(data)
    except grpc.aio.AioRpcError:
        return False
    return True


async def test_where_there_is_no_room_for_ids_requests_are_refused_and_answers_give_way() -> None:
    async with proxied(constants={"once_entries": 4}, models=ONCE, proxy={"once_bytes": 0}) as rig:
        for name in ("1", "2"):
            await infer(rig, request(name=name))
        assert await code_of(rig.call(request(name="3"))) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await code_of(rig.call(request(name="1"))) is grpc.StatusCode.ALREADY_EXISTS
        await infer(rig, request(name="3"), x_tenant="other")
        assert len(rig.worker.requests) == 3


def test_several_balancers_cannot_keep_ids() -> None:
    with pytest.raises(ConfigError, match=r"models\.m\.proxy\.once_s"):
        from_mapping({"processes": 2, "models": ONCE})


async def test_an_equal_request_gets_the_kept_answer_with_its_own_id() -> None:
    async with proxied(models=CACHED) as rig:
        first, second = await infer(rig, request(name="1")), await infer(rig, request(name="2"))
        assert (first.id, second.id) == ("1", "2")
        assert first.raw_output_contents == second.raw_output_contents
        assert (await infer(rig, request())).id == ""
        assert len(rig.worker.requests) == 1
        assert rig.metric("balancer_proxy_cache_total", result="hit") == 2
        assert rig.metric("balancer_proxy_cache_bytes") > 0


OTHERS = [
    (request(value=2.0, name="7"), {}),
    (request(name="7"), {"x_tenant": "other"}),
    (request(name="7"), {"x_gateway_principal": "other"}),
    (request(name="7"), {"authorization": "Bearer other"}),
    (request(name="7"), {"triton_grpc_protocol_key": "secret"}),
    (request(name="7"), {"triton_grpc_protocol_traceparent": "secret"}),
    (request(name="7"), {"own": "other"}),
    (request(name="7"), {"own": ""}),
    (request(parameters={"mine": 1}, name="7"), {}),
    (request(parameters={"sequence_id": 3}, name="7"), {}),
]


@pytest.mark.parametrize("models", [ONCE, CACHED], ids=["once", "cached"])
@pytest.mark.parametrize(("data", "headers"), OTHERS)
async def test_what_is_another_request_is_executed(
    models: dict[str, Any], data: bytes, headers: dict[str, str]
) -> None:
    async with proxied(models=models) as rig:
        await infer(rig, request(name="7"))
        await infer(rig, data, **headers)
        if models is ONCE:
            await infer(rig, request(name="8"))
        else:
            await infer(rig, request(name="7"), cache_control="no-cache")
        assert len(rig.worker.requests) == 3


def in_memory(**names: str) -> bytes:
    """A request with the input, an output, or all of it in a region."""
    message = service_pb2.ModelInferRequest.FromString(request(name=names.pop("name", "")))
    message.outputs.add(name="X")
    for place, region in names.items():
        of = {"input": message.inputs[0], "output": message.outputs[0], "whole": message}[place]
        of.parameters["shared_memory_region"].string_param = region
    data: bytes = message.SerializeToString()
    return data


WITH_REGIONS = [in_memory(input="a"), in_memory(output="a"), in_memory(input="a", output="b"), in_memory(whole="a")]


@pytest.mark.parametrize("data", WITH_REGIONS)
async def test_what_is_in_shared_memory_is_executed_each_time(data: bytes) -> None:
    async with proxied(gate := Gate(), models=CACHED) as rig:
        both = [asyncio.ensure_future(infer(rig, data)) for _ in range(2)]
        await eventually(lambda: len(rig.worker.requests) == 2)
        gate.goes_on.set()
        await asyncio.gather(*both)
        await infer(rig, data)
        assert len(rig.worker.requests) == 3


@pytest.mark.parametrize("data", WITH_REGIONS)
async def test_what_is_in_shared_memory_is_executed_once_by_its_id_and_not_sent_again(data: bytes) -> None:
    fleet = [FakeWorker(name, fails_amid) for name in ("a", "b")]
    models = {"m": {"proxy": {"repeatable": True, "hedge": True}}}
    async with proxied(fleet, models=models, proxy={"cascades": {"c": ["m"]}}) as rig:
        assert await code_of(rig.call(data)) is grpc.StatusCode.UNAVAILABLE
        assert await code_of(rig.call(data, metadata=(("x-repeatable", "true"),))) is grpc.StatusCode.UNAVAILABLE
        named = service_pb2.ModelInferRequest.FromString(data)
        named.model_name = "c"
        assert await code_of(rig.call(named.SerializeToString())) is grpc.StatusCode.UNAVAILABLE
        assert sum(len(worker.requests) for worker in fleet) == 3
    for worker in fleet:
        worker.infer, worker.requests = None, []
    async with proxied(fleet, models=ONCE) as rig:
        named = service_pb2.ModelInferRequest.FromString(data)
        named.id = "7"
        for _ in range(2):
            await infer(rig, named.SerializeToString())
        assert sum(len(worker.requests) for worker in fleet) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"x_request_id": "other"},
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"x_forwarded_for": "10.0.0.9"},
        {"x_deadline_ms": "5000"},
        {"x_batch_rows": "3"},
        {"x_priority": "3"},
        {"x_attempt": "3"},
    ],
)
async def test_headers_that_tell_no_callers_apart_do_not_count(headers: dict[str, str]) -> None:
    async with proxied(models=CACHED, proxy={"ignored_headers": ["x-attempt"]}) as rig:
        await infer(rig, request(), own="mine")
        await infer(rig, request(), own="mine", **headers)
        assert len(rig.worker.requests) == 1


async def test_headers_of_one_name_count_in_their_order_and_others_in_any() -> None:
    async with proxied(models=CACHED) as rig:
        for metadata in ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")]):
            await rig.infer(request(), metadata=metadata)
        assert len(rig.worker.requests) == 1
        for metadata in ([("a", "1"), ("a", "2")], [("a", "2"), ("a", "1")], [("a", "2")], [("a", "1, 2")]):
            await rig.infer(request(), metadata=metadata)
        await rig.infer(request(), metadata=[("a-bin", b"1")])
        await rig.infer(request(), metadata=[("a-bin", b"2")])
        assert len(rig.worker.requests) == 7


async def test_equal_requests_at_once_are_one_and_each_may_leave() -> None:
    async with proxied(gate := Gate(), models=CACHED) as rig:
        first = rig.call(request(name="1"))
        waiting = asyncio.ensure_future(first.code())
        await eventually(lambda: rig.worker.requests)
        joined = [asyncio.ensure_future(infer(rig, request(name=str(number)))) for number in range(2, 6)]
        await eventually(lambda: any(flight._waiting == 5 for flight in rig.front.sharing._running.values()))
        first.cancel()
        await waiting
        gate.goes_on.set()
        assert [each.id for each in await asyncio.gather(*joined)] == ["2", "3", "4", "5"]
        assert len(rig.worker.requests) == 1


async def test_when_all_who_wait_have_left_the_work_ends() -> None:
    async with proxied(Gate(), models=CACHED) as rig:
        call = rig.call(request())
        waiting = asyncio.ensure_future(call.code())
        await eventually(lambda: rig.worker.requests)
        call.cancel()
        await waiting
        await eventually(lambda: rig.worker.cancelled)
        await eventually(lambda: not rig.front.sharing._running and not rig.in_flight)


async def test_errors_are_not_kept() -> None:
    async with proxied(aborting(grpc.StatusCode.INVALID_ARGUMENT, "no"), models=CACHED) as rig:
        assert await code_of(rig.call(request())) is grpc.StatusCode.INVALID_ARGUMENT
        rig.worker.infer = None
        await infer(rig, request())
        assert len(rig.worker.requests) == 2


async def test_an_answer_that_is_no_message_is_passed_on_and_not_kept() -> None:
    async def strange(data: bytes, context: Any) -> bytes:
        return b"\xff\xff\xff"

    async with proxied(strange, models=CACHED) as rig:
        assert [await rig.infer(request()) for _ in range(2)] == [b"\xff\xff\xff"] * 2
        assert len(rig.worker.requests) == 2
