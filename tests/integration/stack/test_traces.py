"""A request is one trace from the client through the pick to Triton's queue and compute, with the decision told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as grpc_aio
from prometheus_client.openmetrics import parser
from support import fronts
from support.otlp import OtlpReceiver
from support.stack import Stack
from support.waiting import eventually

pytestmark = pytest.mark.integration
TRACE, PARENT = "ab" * 16, "cd" * 8
TRIES, PATIENCE_S = 4, 20.0
MODEL = "emulated_tft"
OPEN_METRICS = "application/openmetrics-text"


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()


def traced(tmp_path: Path, receiver: OtlpReceiver, frontend: str, **traces: object) -> Stack:
    envoy = {"frontend": frontend, "shared_folder": str(tmp_path / "shared")}
    trace_config = (
        "mode=opentelemetry",
        "rate=1",
        "level=TIMESTAMPS",
        f"opentelemetry,url=http://127.0.0.1:{receiver.http_port}/v1/traces",
        "opentelemetry,resource=service.name=triton",
    )
    return Stack(
        tmp_path / "stack",
        workers=1,
        settings={"envoy": {**envoy, "traces": {"collector": f"127.0.0.1:{receiver.grpc_port}", **traces}}},
        triton_arguments=tuple(f"--trace-config={each}" for each in trace_config),
    )


async def infer(stack: Stack, headers: dict[str, str]) -> None:
    async with grpc_aio.InferenceServerClient(stack.url) as client:
        tensor = grpc_aio.InferInput("INPUT", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
        await client.infer(MODEL, [tensor], headers=headers)


async def gone_on_with(stack: Stack, receiver: OtlpReceiver) -> str:
    """A client's trace that Triton's spans belong to. A Triton that has just started has been seen to give a request a
    trace of its own, whatever it was told."""
    for number in range(1, TRIES + 1):
        trace = f"{number:032x}"
        await infer(stack, {"traceparent": f"00-{trace}-{PARENT}-01"})
        with suppress(AssertionError):
            await eventually(lambda trace=trace: len(receiver.of(trace, "triton")) == 3, "its spans", PATIENCE_S)
            return trace
    raise AssertionError(f"no trace of a client's was gone on with; {receiver.spans}")


@fronts.frontend("native", "pick")
async def test_a_client_s_trace_goes_on_to_triton_s_queue(
    tmp_path: Path, receiver: OtlpReceiver, frontend: str
) -> None:
    stack = traced(tmp_path, receiver, frontend, share=0.0)
    try:
        await stack.start()
        trace = await gone_on_with(stack, receiver)

        def whole() -> bool:
            return any(span.parent == PARENT for span in receiver.of(trace, "gateway"))

        await eventually(whole, "Envoy's spans have come")
        (request,) = [span for span in receiver.of(trace, "gateway") if span.parent == PARENT]
        beneath = [span for span in receiver.of(trace, "gateway") if span.parent == request.id]
        (to_worker,) = [span for span in beneath if span.attributes.get("upstream_cluster") == "triton_grpc"]
        spans = {span.name: span for span in receiver.of(trace, "triton")}
        assert spans["InferRequest"].parent == to_worker.id
        assert spans[MODEL].parent == spans["InferRequest"].id
        assert "QUEUE_START" in spans[MODEL].events
        assert spans["compute"].parent == spans[MODEL].id
        # The decision, and what it took.
        worker = stack.tritons[0].grpc_endpoint
        assert request.attributes["balancer.policy"] == "round_robin"
        assert request.attributes["balancer.decision"]
        assert to_worker.attributes["upstream_address"] == worker
        assert request.attributes["balancer.picked"] == worker
        if frontend == "native":
            assert float(request.attributes["balancer.pick_us"]) > 0
        else:
            assert any("ExternalProcessor" in span.name for span in beneath)
        # A share of none: nothing but clients' traces.
        assert {int(span.trace, 16) <= TRIES for span in receiver.spans if span.service == "gateway"} == {True}
    finally:
        await stack.stop()


@fronts.frontend("pick", "native")
async def test_strangers_have_nothing_traced_where_they_are_not_followed(
    tmp_path: Path, receiver: OtlpReceiver, frontend: str
) -> None:
    stack = traced(tmp_path, receiver, frontend, share=1.0, follow_clients=False)
    try:
        await stack.start()
        forced = {"x-client-trace-id": "1", "x-envoy-force-trace": "true", "tracestate": "a=b"}
        await infer(stack, {"traceparent": f"00-{TRACE}-{PARENT}-01", **forced})

        def inferred() -> bool:
            return any("ModelInfer" in span.attributes.get("grpc.path", "") for span in receiver.spans)

        await eventually(inferred, "its span has come")
        assert TRACE not in {span.trace for span in receiver.spans}
    finally:
        await stack.stop()


@fronts.frontend("native", "pick")
async def test_a_slow_request_s_trace_is_found_from_the_histogram(
    tmp_path: Path, receiver: OtlpReceiver, frontend: str
) -> None:
    stack = traced(tmp_path, receiver, frontend, share=0.0)
    forged = "ef" * 16
    try:
        await stack.start()
        # Neither what is not sampled nor what is no trace is shown, ...
        await infer(stack, {"traceparent": f"00-{forged}-{PARENT}-00"})
        await infer(stack, {"traceparent": f"00-{forged}-{PARENT}-01-no-trace"})
        await infer(stack, {"traceparent": f'00-"}} 1{forged}-{PARENT}-01'})
        await infer(stack, {})
        # ... what is sampled is, with the id that the receiver got.
        await infer(stack, {"traceparent": f"00-{TRACE}-{PARENT}-01"})

        async def shown() -> list[tuple[str, float, str]]:
            text = await scraped(stack, OPEN_METRICS)
            samples = [each for family in parser.text_string_to_metric_families(text) for each in family.samples]
            return [
                (each.exemplar.labels["trace_id"], each.exemplar.value, each.labels["le"])
                for each in samples
                if each.exemplar and each.labels["model"] == MODEL
            ]

        await eventually(shown, "an exemplar has come")
        ((trace, latency_s, bound_s),) = await shown()
        assert trace == TRACE
        assert 0 < latency_s <= float(bound_s)
        await eventually(lambda: any(span.trace == TRACE for span in receiver.spans), "its spans have come")
        assert await stack.metric("balancer_requests_total", model=MODEL, status="grpc_0") == 5
        assert "trace_id" not in await scraped(stack, "text/plain")
    finally:
        await stack.stop()


async def scraped(stack: Stack, accept: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{stack.admin()}/metrics", headers={"Accept": accept}) as response,
    ):
        assert response.content_type == accept
        return await response.text()
