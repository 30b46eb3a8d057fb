"""What the module turns away, and in which words: those of the balancer that is asked."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import grpc
import pytest
import pytest_asyncio
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.envoy_fakes import a_request
from support.native import NativeRig
from support.waiting import PATIENCE_S
from tritonclient.grpc import service_pb2

from balancer.bounds import OutOfBoundsError
from balancer.extproc.kserve import HeaderNames, read_call
from balancer.extproc.picker import Picker
from balancer.kernel.settings import Limits, Settings
from balancer.scheduler.events import ModelReport, Report, Sent, Withdrawn

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

FULL, DRAINING, SOME = "full", 'it\'s "draining"', "some"
MODELS = (FULL, DRAINING, SOME)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NativeRig]:
    limits = Limits(max_pending_per_worker=2, sheddable_priority=3, sheddable_max_pending_per_worker=1)
    settings = Settings(limits=limits, stale_after_s=1e6)
    async with NativeRig(tmp_path_factory.mktemp("native"), settings=settings).running() as rig:
        for name in ("w0", "w1", "w2"):
            models = tuple(ModelReport(model, "1", ready=model != DRAINING) for model in MODELS)
            rig.router.observe(Report(name, 1, 1, True, models=models), time.monotonic())
        yield rig


@contextlib.contextmanager
def filled(rig: NativeRig, count: int, *workers: str) -> Iterator[None]:
    """So many requests are in flight at each of the workers."""
    sent = [Sent(10**6 + number, workers[number % len(workers)], FULL, 1.0) for number in range(count * len(workers))]
    for each in sent:
        rig.router.observe(each, time.monotonic())
    yield
    for each in sent:
        rig.router.observe(Withdrawn(each.number), time.monotonic())


def refusal(rig: NativeRig, headers: Mapping[str, str], fields: Mapping[str, Any]) -> ext_proc.ImmediateResponse:
    """What the balancer would answer."""
    picker = Picker(rig.router, time.monotonic)
    try:
        answer = picker.pick(read_call(headers, fields, HeaderNames())).answer
    except OutOfBoundsError as error:
        answer = picker.invalid(error, "grpc" if "content-type" in headers else "http").answer
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
SHED = ("full", "full for what can be shed")
"""Of these clients are told when to try again."""


GRPC = {":path": "/inference.GRPCInferenceService/ModelInfer", "content-type": "application/grpc"}


@pytest.mark.parametrize("case", CASES)
async def test_grpc_gets_the_balancers_words(rig: NativeRig, case: str) -> None:
    model, version, priority, count = CASES[case]
    request = a_request(model)
    request.model_version = version
    fields: dict[str, Any] = {"model_name": [model], "model_version": [version], "inputs.shape": ["16"]}
    if priority:
        request.parameters["priority"].uint64_param = priority
        fields |= {"parameters.key": ["priority"], "parameters.value.uint64_param": [str(priority)]}
    with filled(rig, count, "w0", "w1", "w2"):
        expected = refusal(rig, GRPC, fields)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rig.stub.ModelInfer(request, timeout=PATIENCE_S)
    assert raised.value.code().value[0] == expected.grpc_status.status
    assert raised.value.details() == expected.body.decode()
    again_ms = dict(raised.value.trailing_metadata() or ()).get("grpc-retry-pushback-ms")
    headers = {each.header.key: each.header.raw_value for each in expected.headers.set_headers}
    assert (again_ms is not None) is (case in SHED) is ("grpc-retry-pushback-ms" in headers)
    assert again_ms is None or 50 <= int(again_ms) <= 150
    assert rig.balancer.seen == []


@pytest.mark.parametrize("case", ["unknown model", "unknown version", "full"])
async def test_rest_gets_the_balancers_words(rig: NativeRig, case: str) -> None:
    model, version, _, count = CASES[case]
    path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
    with filled(rig, count, "w0", "w1", "w2"):
        expected = refusal(rig, {":path": path, ":method": "POST"}, {})
        async with rig.http.post(f"http://{rig.envoy.endpoint}{path}", json={"inputs": []}) as response:
            assert response.status == expected.status.code
            assert await response.read() == expected.body
            assert response.headers["content-type"] == "application/json"
            assert response.headers.get("retry-after") == ("1" if case in SHED else None)
    assert json.loads(expected.body)["error"]
    assert rig.balancer.seen == []


@pytest.mark.parametrize(
    "sent",
    [
        [("x-priority", "high")],
        [("x-request-id", "r" * 2000)],
        [("x-tenant", f"t{n}") for n in range(20)] + [("x-tenant", "t" * 300)],
    ],
    ids=["no number", "too long to be kept", "too many to be kept"],
)
async def test_headers_out_of_bounds_are_refused(rig: NativeRig, sent: list[tuple[str, str]]) -> None:
    """Of one that is repeated, the last counts. What is refused is told, and counts nothing in."""
    expected = refusal(rig, {**GRPC, **dict(sent)}, {"model_name": [SOME], "inputs.shape": ["16"]})
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelInfer(a_request(SOME), timeout=PATIENCE_S, metadata=sent)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == expected.body.decode()
    outcome = rig.all_outcomes()[-1]
    assert (outcome["source"], outcome["grpc_status"]) == (3, 3)
    await rig.all_ended()


async def test_a_question_about_a_model_that_nobody_has_goes_to_any_server(rig: NativeRig) -> None:
    before = rig.router.state.counts()["picked"]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="none"), timeout=PATIENCE_S)
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED, "the fake workers answer so"
    assert rig.router.state.counts()["picked"] == before + 1
    assert rig.balancer.seen == []


async def test_a_sequence_is_refused_where_its_worker_is_full(rig: NativeRig) -> None:
    request = a_request(FULL)
    request.parameters["sequence_id"].int64_param = 5
    home = (await rig.stub.ModelInfer(request, timeout=PATIENCE_S)).id
    with filled(rig, 2, home), pytest.raises(grpc.aio.AioRpcError) as raised:
        await rig.stub.ModelInfer(request, timeout=PATIENCE_S)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert rig.balancer.seen == []
