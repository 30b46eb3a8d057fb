"""What the module turns away, and in which words: those of the balancer that is asked."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.envoy_fakes import a_request
from support.native import NativeRig
from tritonclient.grpc import service_pb2

from balancer.core.bounds import OutOfBoundsError
from balancer.core.events import ModelReport, Report, Sent
from balancer.core.settings import Limits, Settings
from balancer.gateway.kserve import HeaderNames, read_call
from balancer.gateway.picker import Picker

pytestmark = pytest.mark.integration

FULL, DRAINING, SOME = "full", 'it\'s "draining"', "some"
MODELS = (FULL, DRAINING, SOME)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[NativeRig]:
    limits = Limits(max_pending_per_worker=2, sheddable_priority=3, sheddable_max_pending_per_worker=1)
    settings = Settings(limits=limits, stale_after_s=1e6)
    async with NativeRig(tmp_path, settings=settings).running() as rig:
        for name in ("w0", "w1", "w2"):
            models = tuple(ModelReport(model, "1", ready=model != DRAINING) for model in MODELS)
            rig.router.observe(Report(name, 1, 1, True, models=models), time.monotonic())
        yield rig


def fill(rig: NativeRig, count: int) -> None:
    for number in range(3 * count):
        rig.router.observe(Sent(10**6 + number, f"w{number % 3}", FULL, 1.0), time.monotonic())


def asked(rig: NativeRig, headers: Mapping[str, str], fields: Mapping[str, Any]) -> ext_proc.ImmediateResponse:
    """What the balancer would answer."""
    picker = Picker(rig.router, time.monotonic)
    try:
        answer = picker.pick(read_call(headers, fields, HeaderNames())).answer
    except OutOfBoundsError as error:
        answer = picker.invalid(error, grpc="content-type" in headers).answer
    return ext_proc.ProcessingResponse.FromString(answer).immediate_response


CASES = {
    "unknown model": ("none", "", 0, 0),
    "unknown model that is no ASCII": ('keins \u00fcb\u20acr\U0001f600"\\', "", 0, 0),
    "unknown version": (SOME, "9", 0, 0),
    "unknown version of a model that nobody has ready": (DRAINING, "9", 0, 0),
    "nobody has it ready": (DRAINING, "", 0, 0),
    "full": (FULL, "", 0, 2),
    "full for what can be shed": (FULL, "1", 5, 1),
    "a name that is too long": ("n" * 300, "", 0, 0),
}


@pytest.mark.parametrize("case", CASES)
async def test_grpc_hears_what_the_balancer_would_say(rig: NativeRig, case: str) -> None:
    model, version, priority, filled = CASES[case]
    fill(rig, filled)
    request = a_request(model)
    request.model_version = version
    fields: dict[str, Any] = {"model_name": [model], "model_version": [version], "inputs.shape": ["16"]}
    if priority:
        request.parameters["priority"].uint64_param = priority
        fields |= {"parameters.key": ["priority"], "parameters.value.uint64_param": [str(priority)]}
    headers = {":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc"}
    expected = asked(rig, headers, fields)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelInfer(request, timeout=10)
    assert raised.value.code().value[0] == expected.grpc_status.status
    assert raised.value.details() == expected.body.decode()
    assert rig.balancer.seen == []


@pytest.mark.parametrize("case", ["unknown model", "unknown version", "full"])
async def test_rest_hears_what_the_balancer_would_say(rig: NativeRig, case: str) -> None:
    model, version, _, filled = CASES[case]
    fill(rig, filled)
    path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
    expected = asked(rig, {":path": path, ":method": "POST"}, {})
    async with rig.http.post(f"http://{rig.envoy.endpoint}{path}", json={"inputs": []}) as response:
        assert response.status == expected.status.code
        assert await response.read() == expected.body
        assert response.headers["content-type"] == "application/json"
    assert json.loads(expected.body)["error"]
    assert rig.balancer.seen == []


async def test_refusals_are_told_and_count_nothing_in(rig: NativeRig) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await rig.stub.ModelInfer(a_request("none"), timeout=10)
    (told,) = rig.told()
    assert (told["source"], told["grpc_status"]) == (3, 5)
    assert rig.router.state.in_flight == 0


async def test_a_header_that_cannot_be_read_is_refused(rig: NativeRig) -> None:
    headers = {":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc"}
    expected = asked(rig, {**headers, "x-priority": "high"}, {"model_name": [SOME]})
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelInfer(a_request(SOME), timeout=10, metadata=[("x-priority", "high")])
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == expected.body.decode()


async def test_a_question_about_a_model_that_nobody_has_goes_to_any_server(rig: NativeRig) -> None:
    seen = rig.workers[0].requests
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="none"), timeout=10)
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED, "the fake workers answer so"
    assert rig.router.state.counts()["picked"] == 1
    assert rig.balancer.seen == []
    assert seen == []


async def test_a_sequence_is_refused_where_its_worker_is_full(rig: NativeRig) -> None:
    rig.router.configure(rig.policy, dataclasses.replace(rig.settings))
    request = a_request(FULL)
    request.parameters["sequence_id"].int64_param = 5
    home = (await rig.stub.ModelInfer(request, timeout=10)).id
    for number in range(2):
        rig.router.observe(Sent(10**6 + number, home, FULL, 1.0), time.monotonic())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelInfer(request, timeout=10)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert rig.balancer.seen == []


@pytest.mark.parametrize(
    "sent", [[("x-request-id", "r" * 2000)], [("x-tenant", f"t{n}") for n in range(20)] + [("x-tenant", "t" * 300)]]
)
async def test_headers_too_long_or_too_many_to_be_kept_count_all_the_same(
    rig: NativeRig, sent: list[tuple[str, str]]
) -> None:
    """The last one where it is repeated."""
    headers = {":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc", **dict(sent)}
    expected = asked(rig, headers, {"model_name": [SOME], "inputs.shape": ["16"]})
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelInfer(a_request(SOME), timeout=10, metadata=sent)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == expected.body.decode()
