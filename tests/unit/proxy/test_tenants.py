"""Limits of tenants: what counts, whatever a request's form, and whose it is; and pins of further messages."""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from support.proxied import proxied, request
from support.waiting import eventually
from tritonclient.grpc import service_pb2

from balancer.bounds import MAX_ROWS
from balancer.config.config import from_mapping
from balancer.config.frontend import warnings
from balancer.extproc.inference_bytes import TRITON_PROMPT
from balancer.extproc.kserve import HeaderNames, read_call

REQUESTS = {"tenants": {"requests_per_s": 0.001}}
POOR = (("x-tenant", "poor"),)


@pytest.mark.parametrize("limits", [{"requests_per_s": 0.001, "burst_s": 3000}, {"rows_per_s": 0.001, "burst_s": 3000}])
async def test_messages_of_a_stream_count_each_and_wait(limits: dict[str, float]) -> None:
    async with proxied(proxy={"tenants": limits}) as rig:
        stream = rig.stream(metadata=POOR)
        for number in range(5):
            await stream.write(request(name=str(number)))
        answers = [service_pb2.ModelStreamInferResponse.FromString(await stream.read()) for _ in range(3)]
        assert [each.infer_response.id for each in answers] == ["0", "1", "2"]
        # The rest is not lost: it goes on once there is room.
        assert len(rig.worker.requests) == 3
        assert rig.in_flight == 1
        rig.configure({"proxy": {"tenants": {}}})
        await stream.done_writing()
        rest = [service_pb2.ModelStreamInferResponse.FromString(await stream.read()) for _ in range(2)]
        assert await stream.code() is grpc.StatusCode.OK
        assert [each.infer_response.id for each in rest] == ["3", "4"]


async def test_a_message_of_a_stream_goes_past_no_pin() -> None:
    async with proxied(models={"pinned": {"versions": ["1"]}}) as rig:
        stream = rig.stream()
        sent = [
            request(),
            request("pinned", name="x") + b"\x12\x012",
            request("pinned", name="y") + b"\x12\x011",
            b"\x0a",
        ]
        for each in sent:
            await stream.write(each)
        await stream.done_writing()
        answers = [service_pb2.ModelStreamInferResponse.FromString(each) async for each in stream]
        errors = {each.infer_response.id: each.error_message for each in answers if each.error_message}
        assert errors.keys() == {"x", ""}
        assert "may not serve model 'pinned' in this version" in errors["x"]
        assert rig.worker.requests == [sent[0], sent[2]]
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_stream_with_a_prompt_is_charged_by_tokens() -> None:
    asked = service_pb2.ModelInferRequest(model_name="m")
    asked.inputs.add(name=TRITON_PROMPT, datatype="BYTES", shape=[1])
    asked.raw_input_contents.append((400).to_bytes(4, "little") + b"tide" * 100)
    async with proxied(proxy={"tenants": {"tokens_per_s": 0.1, "burst_s": 1500}}) as rig:

        async def one() -> grpc.StatusCode:
            stream = rig.stream(metadata=POOR)
            await stream.write(asked.SerializeToString())
            await stream.done_writing()
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in stream:
                    pass
            code: grpc.StatusCode = await stream.code()
            return code

        # Of 150, each has some 100 in its prompt, and one in its answer.
        assert [await one() for _ in range(2)] == [grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED]
        (bucket,) = rig.front.proxy.tenants._buckets.values()
        assert bucket.left.tokens == pytest.approx(49, abs=1)


async def test_a_stream_that_waits_ends_with_its_client() -> None:
    async with proxied(proxy=REQUESTS) as rig:
        stream = rig.stream(metadata=POOR)
        for _ in range(3):
            await stream.write(request())
        await stream.read()
        stream.cancel()
        await eventually(lambda: rig.in_flight == 0)


async def test_a_message_that_cannot_be_read_has_all_rows_there_may_be() -> None:
    async with proxied(proxy={"tenants": {"rows_per_s": 1.0, "burst_s": 3}}) as rig:
        tenants = rig.front.proxy.tenants
        await tenants.wait("t", request(parameters={f"p{number}": 1 for number in range(300)}))
        call = read_call({":path": "/v2/models/m/generate"}, {}, HeaderNames())
        away = tenants.turned_away(call)
        assert away is None  # of another tenant
        waiting = asyncio.ensure_future(tenants.wait("t", request()))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        of_t = read_call({":path": "/v2/models/m/infer", "x-tenant": "t"}, {}, HeaderNames())
        away = tenants.turned_away(of_t)
        assert away is not None
        assert away.wait_s > MAX_ROWS - 10


@pytest.mark.parametrize(
    ("sections", "path", "counted"),
    [
        ({}, "/v2/models/m/generate", True),
        ({}, "/v2/models/m/versions/1/generate_stream", True),
        ({}, "/v2/models/m/infer", True),
        ({}, "/v2/models/m/ready", False),
        ({}, "/v2/health/ready", False),
        ({"envoy": {"frontend": "pick", "forwarded": ["m"]}}, "/v2/models/m/generate", True),
        ({"envoy": {"frontend": "pick", "forwarded": ["other"]}}, "/v2/models/m/generate", False),
        ({"envoy": {"frontend": "pick"}}, "/v2/models/m/generate", False),
    ],
)
async def test_what_envoy_asks_about_counts_where_it_would_be_forwarded(
    sections: dict[str, Any], path: str, counted: bool
) -> None:
    async with proxied(proxy=REQUESTS, **sections) as rig:
        call = read_call({":path": path, "x-tenant": "poor"}, {}, HeaderNames())
        assert rig.front.turned_away(call, False) is None
        assert (rig.front.turned_away(call, False) is not None) is counted


def test_limits_without_effect_are_warned_of() -> None:
    limits = {"tenants": {"requests_per_s": 5}}
    assert any("proxy.tenants" in each for each in warnings(from_mapping({"proxy": limits})))
    forwarded = {"envoy": {"frontend": "proxy"}, "proxy": limits}
    assert not any("proxy.tenants" in each for each in warnings(from_mapping(forwarded)))
