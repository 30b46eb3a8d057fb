"""The Endpoint Picker Protocol as any gateway would speak it: a real gRPC server, and this test as the gateway."""

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.gateway_streams import KEY, answered, gateway, headers, refused

from balancer.extproc.kserve import NO_OBJECTIVE
from balancer.kernel.settings import Limits, Settings
from policies.round_robin import RoundRobin


@pytest.mark.parametrize("fallbacks", [False, True])
async def test_the_pick_is_in_header_and_metadata_alike_with_fallbacks_where_configured(fallbacks: bool) -> None:
    async with gateway(fallbacks=fallbacks) as g:
        [response] = await g.exchange(headers())
    metadata = response.dynamic_metadata["envoy.lb"][KEY]
    [option] = response.request_headers.response.header_mutation.set_headers
    assert option.header.key == KEY
    assert option.header.raw_value.decode() == metadata
    everyone = ["10.0.0.1:200", "10.0.0.1:201", "10.0.0.1:202"]
    assert sorted(metadata.split(",")) == (everyone if fallbacks else ["10.0.0.1:200"])
    assert dict(response.dynamic_metadata["balancer"]) == {"process": "7", "number": "0.0"}


def within(*subset: str) -> ext_proc.ProcessingRequest:
    """A request by gRPC for which the gateway allows these endpoints alone."""
    request = headers("/inference.GRPCInferenceService/ServerReady", content_type="application/grpc")
    request.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({f"{KEY}-subset": list(subset)})
    return request


@pytest.mark.parametrize("as_list", [True, False])
async def test_the_subset_hint_is_honoured(as_list: bool) -> None:
    request = headers()
    subset = ["10.0.0.1:202", "10.9.9.9:1"]
    hint = request.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({f"{KEY}-subset": subset if as_list else ",".join(subset)})
    async with gateway() as g:
        for _ in range(3):
            [response] = await g.exchange(request)
            assert response.dynamic_metadata["envoy.lb"][KEY] == "10.0.0.1:202"


async def test_a_shed_request_is_429_and_resource_exhausted() -> None:
    async with gateway(Settings(limits=Limits(max_pending_per_worker=1))) as g:
        for _ in range(3):
            await g.exchange(headers())
        [response] = await g.exchange(headers())
    assert refused(response) == (429, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert b"retry later" in response.immediate_response.body


@pytest.mark.parametrize(
    ("request_", "http", "code", "body"),
    [
        (within(), 503, grpc.StatusCode.UNAVAILABLE, b""),
        (within("10.9.9.9:1"), 503, grpc.StatusCode.UNAVAILABLE, b""),
        (
            headers("/v2/models/nope/infer"),
            404,
            grpc.StatusCode.NOT_FOUND,
            b'{"error":"Request for unknown model: \'nope\' is not found"}',
        ),
        (
            headers(x_batch_rows="1e308"),
            400,
            grpc.StatusCode.INVALID_ARGUMENT,
            b"x-batch-rows: '1e308' is refused; it is a whole number from 1 to 65536",
        ),
        (headers("/v2/repository/models/m/load"), 501, grpc.StatusCode.UNIMPLEMENTED, b"not balanced"),
    ],
    ids=["empty subset", "strange subset", "unknown model", "out of bounds", "per server"],
)
async def test_a_request_that_gets_no_pick_is_refused_in_its_protocols_own_words(
    request_: ext_proc.ProcessingRequest, http: int, code: grpc.StatusCode, body: bytes
) -> None:
    async with gateway() as g:
        [response] = await g.exchange(request_)
        assert g.listening.refusals == (["x-batch-rows"] if http == 400 else [])
    assert refused(response) == (http, code)
    assert body in response.immediate_response.body


async def test_questions_about_an_unknown_model_are_answered_by_some_server() -> None:
    async with gateway() as g:
        [response] = await g.exchange(headers("/v2/models/nope/ready"))
    assert response.dynamic_metadata["envoy.lb"][KEY]


async def test_an_internal_error_is_an_error_and_not_a_request_without_a_pick() -> None:
    class Broken(RoundRobin):
        @property
        def needs_key(self) -> bool:  # type: ignore[override]  # asked for each request, outside of what is caught
            raise RuntimeError("on purpose")

    async with gateway() as g:
        g.router.policy = Broken()
        [response] = await g.exchange(headers(x_routing_key="k"))
    assert [str(error) for error in g.listening.internal_errors] == ["on purpose"]
    assert refused(response) == (500, grpc.StatusCode.INTERNAL)
    assert dict(response.dynamic_metadata["balancer"]) == {"process": "7", "number": ""}


@pytest.mark.parametrize(("status", "read"), [(None, -1), ("5", 5), ("\u00b2", -1), ("9" * 5000, -1)])
async def test_a_grpc_status_in_the_responses_headers_is_read(status: str | None, read: int) -> None:
    async with gateway() as g:
        await g.exchange(headers(), answered(**({} if status is None else {"grpc_status": status})))
    [served] = g.listening.served_calls
    assert (served.status, served.grpc_status) == (200, read)


async def test_a_sequence_forbids_retries() -> None:
    async with gateway() as g:
        [response] = await g.exchange(headers(x_sequence_id="s"))
    assert "," not in response.dynamic_metadata["envoy.lb"][KEY]
    options = response.request_headers.response.header_mutation.set_headers
    assert {o.header.key: o.header.raw_value for o in options}["x-envoy-max-retries"] == b"0"


async def test_what_served_is_read_back_where_it_is_sent() -> None:
    answer = answered()
    answer.metadata_context.filter_metadata["envoy.lb"].update({f"{KEY}-served": "10.0.0.1:201"})
    async with gateway() as g:
        responses = await g.exchange(headers(), answer)
        assert responses[1].HasField("response_headers")
    [served] = g.listening.served_calls
    assert (served.endpoint, served.status, served.decision.number) == ("10.0.0.1:201", 200, 0)


def bodies(kind: str) -> list[ext_proc.ProcessingRequest]:
    chunks = ((b"abc", False), (b"def", True))
    return [
        ext_proc.ProcessingRequest(**{kind: ext_proc.HttpBody(body=body, end_of_stream=last)}) for body, last in chunks
    ]


def sent_back(kind: str, answers: list[ext_proc.ProcessingResponse]) -> list[tuple[bytes, bool]]:
    """What came back of a body; nothing where the answers change nothing."""
    mutations = [getattr(answer, kind).response.body_mutation for answer in answers]
    streamed = [one.streamed_response for one in mutations if one.WhichOneof("mutation") is not None]
    return [(one.body, one.end_of_stream) for one in streamed]


@pytest.mark.parametrize("kind", ["request_body", "response_body"])
async def test_a_gateway_that_names_no_modes_is_taken_for_full_duplex(kind: str) -> None:
    async with gateway() as g:
        answers = await g.exchange(headers(), *bodies(kind))
    assert sent_back(kind, answers[1:]) == [(b"abc", False), (b"def", True)]


async def test_an_empty_message_is_refused_in_words() -> None:
    async with gateway() as g:
        stream = g._process()
        await stream.write(headers())
        await stream.read()
        await stream.write(ext_proc.ProcessingRequest())
        with pytest.raises(grpc.aio.AioRpcError, match="a message of the stream is empty") as error:
            await stream.read()
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("subset", "picked"),
    [
        (["10.0.0.1:202"], "10.0.0.1:202"),  # Triton's HTTP port, though the request is gRPC: as the gateway has it
        (["10.0.0.1:202", "10.0.0.1:102"], "10.0.0.1:102"),
        (["10.0.0.1:102", "10.0.0.1:202"], "10.0.0.1:102"),
    ],
)
async def test_a_pick_is_an_endpoint_of_the_subset(subset: list[str], picked: str) -> None:
    async with gateway() as g:
        [response] = await g.exchange(within(*subset))
    assert response.dynamic_metadata["envoy.lb"][KEY] == picked


async def test_an_address_alone_in_the_subset_allows_the_workers_there() -> None:
    request = headers()
    request.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({f"{KEY}-subset": "10.0.0.1"})
    async with gateway() as g:
        picked = {(await g.exchange(request))[0].dynamic_metadata["envoy.lb"][KEY] for _ in range(3)}
    assert picked == {"10.0.0.1:200", "10.0.0.1:201", "10.0.0.1:202"}


async def test_headers_of_the_extension_are_read() -> None:
    path = "/inference.GRPCInferenceService/ModelInfer"
    extension = {
        "x_gateway_model_name": "m",
        "x_gateway_inference_objective": "batch",
        "x_gateway_inference_fairness_id": "somebody",
    }
    async with gateway(objectives={"batch": 200}) as g:
        await g.exchange(headers(path, content_type="application/grpc", **extension))
        await g.exchange(headers(x_tenant="own", **extension | {"x_gateway_inference_objective": "unknown"}))
        first, second = [call.request for call in g.listening.calls]
    assert (first.model, first.priority, first.tenant) == ("m", 200, "somebody")
    assert (second.model, second.priority, second.tenant) == ("m", 0, "own")


async def test_who_names_no_objective_that_is_known_has_the_place_of_those_without() -> None:
    async with gateway(objectives={"chat": 1, NO_OBJECTIVE: 2, "batch": 100}) as g:
        for name in ("chat", "batch", "unknown", ""):
            await g.exchange(headers(x_gateway_inference_objective=name))
        await g.exchange(headers())
        # What a client says of itself can make it less important alone.
        await g.exchange(headers(x_gateway_inference_objective="chat", x_priority="50"))
        assert [call.request.priority for call in g.listening.calls] == [1, 100, 2, 2, 2, 50]


ALONE = (("x-ext-proc-headers-only", "true"),)
"""Metadata of a stream of which the gateway says that the headers are all: the answer ends it."""


@pytest.mark.parametrize(
    ("ready", "request_", "code"),
    [
        (False, headers(), grpc.StatusCode.UNAVAILABLE),
        (True, ext_proc.ProcessingRequest(), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_stream_of_headers_alone_fails_without_an_answer(
    ready: bool, request_: ext_proc.ProcessingRequest, code: grpc.StatusCode
) -> None:
    async with gateway(ready=ready) as g:
        stream = g._process(metadata=ALONE)
        await stream.write(request_)
        assert await stream.code() == code
