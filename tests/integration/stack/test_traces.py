"""A request is one trace from the client through the pick to Triton's queue and compute, with the decision told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as grpc_aio
from prometheus_client.openmetrics import parser
from support import fronts
from support.inputs import input_of
from support.otlp import OtlpReceiver
from support.stack import Stack
from support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
TRACE, PARENT = "ab" * 16, "cd" * 8
TRIES, PATIENCE_S = 4, 20.0
MODEL = "emulated_tft"
OPEN_METRICS = "application/openmetrics-text"


@asynccontextmanager
async def traced(folder: Path, frontend: str, **traces: object) -> AsyncIterator[tuple[Stack, OtlpReceiver]]:
    receiver = OtlpReceiver()
    envoy = {"frontend": frontend, "shared_folder": str(folder / "shared")}
    trace_config = (
        "mode=opentelemetry",
        "rate=1",
        "level=TIMESTAMPS",
        f"opentelemetry,url=http://127.0.0.1:{receiver.http_port}/v1/traces",
        "opentelemetry,resource=service.name=triton",
    )
    stack = Stack(
        folder / "stack",
        workers=1,
        settings={"envoy": {**envoy, "traces": {"collector": f"127.0.0.1:{receiver.grpc_port}", **traces}}},
        triton_arguments=tuple(f"--trace-config={each}" for each in trace_config),
    )
    await receiver.start()
    try:
        await stack.start()
        yield stack, receiver
    finally:
        await stack.stop()
        await receiver.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=fronts.one_of("native", "pick"))
async def followed(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Stack, OtlpReceiver]]:
    """Nothing is traced but what clients trace."""
    async with traced(tmp_path_factory.mktemp("traces"), request.param, share=0.0) as both:
        yield both


async def infer(stack: Stack, headers: dict[str, str]) -> None:
    async with grpc_aio.InferenceServerClient(stack.url) as client:
        tensor = input_of(grpc_aio, "INPUT", np.zeros((1, 4), np.float32))
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


async def test_a_client_s_trace_goes_on_to_triton_s_queue(followed: tuple[Stack, OtlpReceiver]) -> None:
    stack, receiver = followed
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
    if stack.config.envoy.frontend == "native":
        assert float(request.attributes["balancer.pick_us"]) > 0
    else:
        assert any("ExternalProcessor" in span.name for span in beneath)
    # A share of none: nothing but clients' traces.
    assert {int(span.trace, 16) <= TRIES for span in receiver.spans if span.service == "gateway"} == {True}


@fronts.frontend("pick", "native")
async def test_strangers_have_nothing_traced_where_they_are_not_followed(tmp_path: Path, frontend: str) -> None:
    async with traced(tmp_path, frontend, share=1.0, follow_clients=False) as (stack, receiver):
        forced = {"x-client-trace-id": "1", "x-envoy-force-trace": "true", "tracestate": "a=b"}
        await infer(stack, {"traceparent": f"00-{TRACE}-{PARENT}-01", **forced})

        def inferred() -> bool:
            return any("ModelInfer" in span.attributes.get("grpc.path", "") for span in receiver.spans)

        await eventually(inferred, "its span has come")
        assert TRACE not in {span.trace for span in receiver.spans}


async def test_a_slow_request_s_trace_is_found_from_the_histogram(followed: tuple[Stack, OtlpReceiver]) -> None:
    stack, receiver = followed
    forged, requests = "ef" * 16, await stack.metric("balancer_requests_total", model=MODEL, status="grpc_0")
    # Neither what is not sampled nor what is no trace is shown, ...
    await infer(stack, {"traceparent": f"00-{forged}-{PARENT}-00"})
    await infer(stack, {"traceparent": f"00-{forged}-{PARENT}-01-no-trace"})
    await infer(stack, {"traceparent": f'00-"}} 1{forged}-{PARENT}-01'})
    await infer(stack, {})
    # ... what is sampled is, with the id that the receiver got.
    await infer(stack, {"traceparent": f"00-{TRACE}-{PARENT}-01"})

    async def shown() -> dict[str, tuple[float, str]]:
        text = await scraped(stack, OPEN_METRICS)
        samples = [each for family in parser.text_string_to_metric_families(text) for each in family.samples]
        return {
            each.exemplar.labels["trace_id"]: (each.exemplar.value, each.labels["le"])
            for each in samples
            if each.exemplar and each.labels["model"] == MODEL
        }

    async def counted() -> bool:
        now = await stack.metric("balancer_requests_total", model=MODEL, status="grpc_0")
        return now == requests + 5 and TRACE in await shown()

    await eventually(counted, "all are counted, and an exemplar has come")
    found = await shown()
    assert forged not in "".join(found)
    latency_s, bound_s = found[TRACE]
    assert 0 < latency_s <= float(bound_s)
    await eventually(lambda: any(span.trace == TRACE for span in receiver.spans), "its spans have come")
    assert "trace_id" not in await scraped(stack, "text/plain")


async def scraped(stack: Stack, accept: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{stack.admin()}/metrics", headers={"Accept": accept}) as response,
    ):
        assert response.content_type == accept
        return await response.text()
