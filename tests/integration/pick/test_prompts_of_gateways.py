"""Prompts for OpenAI's API that other gateways ask about: a real gRPC server, and this test as the gateway."""

import json

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from support.gateway_streams import KEY, SPEAKING_OPENAI, SPECS, answered, gateway, headers, refused


def chunks_of(asked: object, count: int) -> list[ext_proc.ProcessingRequest]:
    body = json.dumps(asked).encode()
    size = -(-len(body) // count)
    return [
        ext_proc.ProcessingRequest(
            request_body=ext_proc.HttpBody(body=body[at : at + size], end_of_stream=at + size >= len(body))
        )
        for at in range(0, len(body), size)
    ]


async def test_a_prompt_is_read_whole_before_the_pick_and_goes_on_as_it_came() -> None:
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "tide " * 500}]}
    usage = b'data: {"usage":{"prompt_tokens":500,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":9}}}'
    answer = [ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=body)) for body in (b"data: {}", usage)]
    async with gateway(specs=SPEAKING_OPENAI) as g:
        chunks = chunks_of(asked, 3)
        first, *passed = await g.all_of(headers("/v1/chat/completions"), *chunks, answered(), *answer)
        assert first.dynamic_metadata["envoy.lb"][KEY] == "10.0.0.1:300"
        sent_on = [each.request_body.response.body_mutation.streamed_response.body for each in passed[:3]]
        assert b"".join(sent_on) == json.dumps(asked).encode()
        (call,) = g.listening.calls
        assert call.request.model == "m"
        assert len(call.request.prefix) == 9
        served = await g.listening.end_of(call)
        assert served.usage == (500, 9, 2)
        assert g.listening.first_tokens == [served.decision.number]


async def test_each_protocol_s_requests_go_to_workers_that_speak_it() -> None:
    """Though all have the model."""
    async with gateway(specs=[SPECS[0], *SPEAKING_OPENAI[1:]]) as g:
        picked: dict[str, set[str]] = {"/v2/models/m/infer": set(), "/v1/chat/completions": set()}
        for path in sorted([*picked] * 4):
            request = headers(path, x_gateway_model_name="m")
            request.protocol_config.SetInParent()  # no bodies
            [response] = await g.exchange(request)
            picked[path].add(response.dynamic_metadata["envoy.lb"][KEY])
    assert [*picked.values()] == [{"10.0.0.1:200"}, {"10.0.0.1:301", "10.0.0.1:302"}]


async def test_without_its_body_a_header_names_the_model_of_a_prompt() -> None:
    request = headers("/v1/chat/completions", x_gateway_model_name="m")
    request.protocol_config.SetInParent()  # no bodies
    async with gateway(specs=SPEAKING_OPENAI) as g:
        [response] = await g.exchange(request)
        assert response.dynamic_metadata["envoy.lb"][KEY] == "10.0.0.1:300"
        unnamed = headers("/v1/chat/completions")
        unnamed.protocol_config.SetInParent()
        [response] = await g.exchange(unnamed)
    assert b"a header has to" in response.immediate_response.body


async def test_models_are_listed_and_no_other_path_of_openai_s_is_served() -> None:
    async with gateway(specs=SPEAKING_OPENAI) as g:
        [listed] = await g.all_of(headers("/v1/models?x"))
        [other] = await g.all_of(headers("/v1/files"), *chunks_of({"model": "m"}, 1))
    assert [model["id"] for model in json.loads(listed.immediate_response.body)["data"]] == ["m"]
    assert refused(other) == (501, grpc.StatusCode.UNIMPLEMENTED)


async def test_a_client_that_leaves_amid_its_prompt_is_not_picked_for() -> None:
    asked = {"model": "m", "prompt": "tide " * 500}
    async with gateway(specs=SPEAKING_OPENAI) as g:
        assert await g.all_of(headers("/v1/completions"), *chunks_of(asked, 3)[:2]) == []
        assert (g.listening.calls, g.listening.refusals) == ([], [])


async def test_a_prompt_that_cannot_be_read_or_is_too_large_is_refused_as_openai_has_it() -> None:
    chunk = ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=b"x" * 2**21))
    async with gateway(specs=SPEAKING_OPENAI) as g:
        for body, words in (([*chunks_of([], 1)], "is no JSON"), ([chunk] * 9, "has more than 16777216 bytes")):
            (response,) = await g.all_of(headers("/v1/chat/completions"), *body)
            assert response.immediate_response.status.code == 400
            error = json.loads(response.immediate_response.body)["error"]
            assert error["type"] == "invalid_request_error"
            assert words in error["message"]
