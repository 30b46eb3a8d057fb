"""Two versions of a model share its requests, by either front end that picks, through a real Envoy."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from support import fronts
from support.both_fronts import BothFronts
from support.envoy_fakes import FakeWorker, Infer, a_request
from support.raw_http2 import Upload
from support.waiting import PATIENCE_S, eventually
from tritonclient.grpc import service_pb2

from balancer.kernel.settings import ModelSettings, Settings, SplitSettings
from balancer.scheduler.canary.split import Split
from balancer.scheduler.events import ModelReport, Report
from policies.hashing import key_of

pytestmark = pytest.mark.integration
SPLIT = SplitSettings(old="1", new="2", share=0.2)
MODEL = "m"


@pytest.fixture(params=fronts.one_of("native", "pick", "reported"))
async def rig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[BothFronts]:
    reported = "reported" in request.param
    settings = Settings(models={MODEL: ModelSettings()}, reports_required=reported, stale_after_s=1e6)
    async with BothFronts(tmp_path, settings=settings, native=request.param != "pick").running() as rig:
        assert isinstance(rig, BothFronts)
        loaded = [ModelReport(model, version, ready=True) for model in (MODEL, "other", "warm") for version in "123"]
        for worker in rig.workers if reported else ():
            rig.router.observe(Report(worker.name, 1, 1, True, models=tuple(loaded)), time.monotonic())
        rig.split({MODEL: SPLIT})
        await eventually(rig.decides)
        yield rig


def versions(rig: BothFronts, model: str = MODEL) -> Counter[str]:
    """Of the messages that workers got."""
    got = (request for worker in rig.workers for request in worker.requests)
    return Counter(request.model_version for request in got if request.model_name == model)


async def one(rig: BothFronts, **arguments: Any) -> bool:
    """Whether it was answered."""
    try:
        await rig.stub.ModelInfer(a_request(), **({"timeout": 30} | arguments))
    except grpc.aio.AioRpcError:
        return False
    return True


async def test_a_share_of_the_requests_gets_the_new_version(rig: BothFronts) -> None:
    how, before = "picked" if rig.native else "left_to_balancer", rig.router.state.counts()
    for _ in range(20):
        assert all(await asyncio.gather(*(one(rig) for _ in range(50))))
    assert rig.router.state.counts()[how] == before[how] + 1000, "whoever was to decide did"
    found = versions(rig)
    assert found.total() == 1000
    assert set(found) == {"1", "2"}
    assert 130 < found["2"] < 270

    def counted() -> bool:
        return rig.samples("balancer_split_requests_total") == {(MODEL, v): n for v, n in found.items()}

    await eventually(counted, "all outcomes count for the version that was sent")
    assert rig.samples("balancer_split_errors_total") == {}
    assert rig.samples("balancer_split_returned") == {}


async def test_a_key_stays_with_its_version(rig: BothFronts) -> None:
    expected = Split(SPLIT, rig.recorder.splits.of[MODEL].seed)
    for name in range(40):
        before = versions(rig)
        for _ in range(2):
            assert await one(rig, metadata=(("x-routing-key", f"user-{name}"),))
        [(version, count)] = (versions(rig) - before).items()
        assert count == 2
        assert version == expected.draw(key_of(f"user-{name}")).version


async def test_the_message_is_otherwise_as_it_was(rig: BothFronts) -> None:
    rig.split({MODEL: SplitSettings("1", "2", 1.0)})
    for size in (0, 1, 100, 5_000_000):
        sent = a_request(payload_bytes=size)
        answer = await rig.stub.ModelInfer(sent, timeout=PATIENCE_S)
        got = next(worker.requests[-1] for worker in rig.workers if worker.name == answer.id)
        assert got.model_version == "2"
        got.ClearField("model_version")
        assert got == sent
        assert answer.raw_output_contents == sent.raw_input_contents


async def test_a_body_that_comes_in_pieces_gets_a_version(rig: BothFronts) -> None:
    rig.split({MODEL: SplitSettings("1", "2", 1.0)})
    message = a_request(payload_bytes=40_000).SerializeToString()
    body = b"\0" + len(message).to_bytes(4, "big") + message
    pieces = ((2,), (5, 6), (3, 4, 5), (7, 12))
    for number, cuts in enumerate(pieces, 1):
        upload = Upload(rig.envoy.endpoint, headers=(("content-length", str(len(body))),))
        await upload.start()
        try:
            for begin, end in pairwise((0, *cuts, len(body))):
                assert await upload.send(body[begin:end])
                # Envoy's one thread sees this piece before the next one.
                await rig.stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=PATIENCE_S)
            await upload.end()
            await eventually(lambda number=number: versions(rig).total() == number, f"a worker has {cuts}")
        finally:
            await upload.stop()
    for got in (request for worker in rig.workers for request in worker.requests if request.model_name == MODEL):
        assert got.model_version == "2"
        got.ClearField("model_version")
        assert got.SerializeToString() == message


async def test_a_request_that_is_tried_again_keeps_its_version(rig: BothFronts) -> None:
    rig.split({MODEL: SplitSettings("1", "2", 1.0)})
    await rig.workers[0].stop()
    url = f"http://{rig.envoy.endpoint}/v2/models/{MODEL}/infer"
    for _ in range(6):
        assert await one(rig)
        async with rig.http.post(url, json={"inputs": [{"name": "x", "shape": [4, 2]}]}) as response:
            assert response.status == 200
    assert versions(rig) == {"2": 6}
    paths = [path for worker in rig.workers for path, _, _ in worker.http_requests]
    assert paths == [f"/v2/models/{MODEL}/versions/2/infer"] * 6


async def test_what_names_a_version_or_is_of_another_model_or_a_stream_passes_as_it_is(rig: BothFronts) -> None:
    rig.split({MODEL: SplitSettings("1", "2", 1.0)})
    named, other = a_request(), a_request("other")
    named.model_version = "3"
    for request in (named, other):
        await rig.stub.ModelInfer(request, timeout=PATIENCE_S)
    call = rig.stub.ModelStreamInfer(timeout=PATIENCE_S)
    await call.write(a_request())
    await call.read()
    await call.done_writing()
    assert versions(rig) == {"3": 1, "": 1}
    assert versions(rig, "other") == {"": 1}
    await rig.stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=PATIENCE_S)
    assert rig.samples("balancer_split_requests_total") == {}


async def test_a_path_of_rest_names_the_version(rig: BothFronts) -> None:
    rig.split({MODEL: SplitSettings("1", "2", 1.0)})
    body, want = {"inputs": [{"name": "x", "shape": [4, 2]}]}, Counter[str]()
    for verb in ("infer", "generate"):
        for path in (f"{MODEL}/{verb}", f"{MODEL}/{verb}?a=/b/c/d/e", f"{MODEL}/versions/3/{verb}", f"other/{verb}"):
            async with rig.http.post(f"http://{rig.envoy.endpoint}/v2/models/{path}", json=body) as response:
                assert response.status == 200
        want += {f"/v2/models/{MODEL}/versions/2/{verb}": 2, f"/v2/models/{MODEL}/versions/3/{verb}": 1}
        want += {f"/v2/models/other/{verb}": 1}
    assert Counter(path for worker in rig.workers for path, _, _ in worker.http_requests) == want
    await eventually(lambda: rig.samples("balancer_split_requests_total") == {(MODEL, "2"): 4})


def without_version_2(worker: FakeWorker) -> Infer:
    """The worker fails at it."""

    async def infer(request: service_pb2.ModelInferRequest, context: Any) -> service_pb2.ModelInferResponse:
        if request.model_version == "2":
            await context.abort(grpc.StatusCode.INTERNAL, "not yet")
        return worker.answer(request)

    return infer


async def test_a_new_version_that_does_worse_gets_no_more(rig: BothFronts) -> None:
    for worker in rig.workers:
        worker.infer = without_version_2(worker)
    split = rig.recorder.splits.of[MODEL]
    for evidence in split.comparison.evidence.values():
        evidence.limit = 50  # fewer seconds than an operator would wait for

    async def returned() -> str:
        await asyncio.gather(*(one(rig) for _ in range(10)))
        rig.front.catch_up()
        # Each round is an observation of its own.
        split.comparison.block_s = -1.0
        return split.returned

    await eventually(returned, "all goes to the old version")
    assert rig.samples("balancer_split_returned") == {(MODEL,): 1}

    # As the balancer does all the time.
    rig.router.tick(time.monotonic())
    before = versions(rig)
    assert all(await asyncio.gather(*(one(rig) for _ in range(200))))
    assert set(versions(rig) - before) == {"1"}


async def test_nothing_is_written_into_a_message_in_compressed_form(rig: BothFronts) -> None:
    rig.split({MODEL: SplitSettings("1", "2", 1.0)})
    for algorithm in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        await rig.stub.ModelInfer(a_request(payload_bytes=10_000), timeout=PATIENCE_S, compression=algorithm)
    assert versions(rig) == {"": 2}
    assert rig.samples("balancer_split_requests_total") == {}
