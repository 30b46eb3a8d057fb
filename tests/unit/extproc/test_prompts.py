"""Requests to OpenAI's API as the balancer reads them: what they are for, and what their prompts begin with."""

import contextlib
import json
from typing import Any

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from hypothesis import given
from hypothesis import strategies as st

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.extproc import responses, wire
from balancer.extproc.kserve import Call, HeaderNames, Kind
from balancer.extproc.names import CHAT, COMPLETIONS, EMBEDDINGS
from balancer.extproc.outcomes import outcome_of
from balancer.extproc.prompts import (
    BLOCK_BYTES,
    AnswerReader,
    TokenShares,
    Usage,
    read_request,
    with_prompt_of,
)
from policies.base import Prefix

BLOCK = "x" * BLOCK_BYTES


def read(asked: Any, path: str = CHAT, shares: TokenShares | None = None, **headers: str) -> Call:
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    return read_request({":path": path, ":method": "POST"} | headers, body, HeaderNames(), shares or TokenShares())


def chat(*contents: Any, **further: Any) -> dict[str, Any]:
    roles = ["system", "user", "assistant"]
    messages = [{"role": roles[i % 3], "content": content} for i, content in enumerate(contents)]
    return {"model": "m", "messages": messages, **further}


def prefix(asked: Any, path: str = CHAT, **headers: str) -> Prefix:
    return read(asked, path, **headers).request.prefix


def shared(one: Prefix, other: Prefix) -> int:
    return len({value for value, _ in one} & {value for value, _ in other})


def test_model_stream_deadline_and_tenant_are_read() -> None:
    call = read(chat("hello", stream=True), **{"x-tenant": "a", "x-deadline-ms": "1500", "x-priority": "2"})
    assert (call.request.model, call.kind, call.port) == ("m", Kind.STREAM, "openai")
    assert (call.request.tenant, call.request.deadline_s, call.request.priority) == ("a", 1.5, 2)
    assert read(chat("hello")).kind is Kind.INFERENCE
    assert read({"model": "m", "input": "x", "stream": True}, EMBEDDINGS).kind is Kind.INFERENCE


def test_user_is_the_tenant_where_the_operator_says_so_and_no_header_names_one() -> None:
    def tenant(user: Any, says_so: bool = True, **headers: str) -> str:
        body = json.dumps(chat("hello", user=user)).encode()
        return read_request({":path": CHAT} | headers, body, HeaderNames(), TokenShares(), says_so).request.tenant

    assert tenant("ann", False) == ""
    assert tenant("ann") == "ann"
    assert tenant("ann", **{"x-tenant": "a"}) == "a"
    assert tenant(None) == tenant(5) == tenant(["ann"]) == ""
    for user in ("x" * 300, "a\n", "\ud800"):
        with pytest.raises(OutOfBoundsError) as refused:
            tenant(user)
        assert refused.value.field == "user"


def test_tensors_that_cannot_be_read_are_triton_s_to_judge() -> None:
    """A stream's message whose input has more fields than are walked through is one without a prompt."""
    call = read(chat("hello"))
    many_fields = wire.tagged(5, 1000 * b"\x18\x01")
    assert with_prompt_of(call, many_fields, TokenShares()) is call
    assert with_prompt_of(call, b"\xff\xff", TokenShares()) is call


def test_a_prompt_has_as_many_tokens_as_its_bytes_made_before() -> None:
    shares, asked = TokenShares(), chat(BLOCK * 4)
    size_bytes = len(json.dumps(asked))
    assert read(asked, shares=shares).request.prompt_tokens == size_bytes / 4
    shares.learn("m", 500, 1000)
    request = read(asked, shares=shares).request
    assert request.prompt_tokens == size_bytes / 2
    assert 0 < request.prefix[0][1] < request.prefix[-1][1] < request.prompt_tokens
    assert shares.of("another") == 1 / 4


def test_what_a_conversation_had_before_is_what_its_next_turn_begins_with() -> None:
    before = chat(BLOCK * 8, "question")
    after = chat(BLOCK * 8, "question", "answer " * 200, "another question")
    assert shared(prefix(before), prefix(after)) == len(prefix(before)) == 8


@pytest.mark.parametrize(
    "other",
    [
        chat(BLOCK * 8, cache_salt="s"),
        chat(BLOCK * 8) | {"model": "m:adapter"},
        chat("y" + BLOCK * 8),
        chat(BLOCK * 8, tools=[{"type": "function"}]),
        chat([{"type": "text", "text": "y"}, {"type": "text", "text": BLOCK * 8}]),
        {"model": "m", "messages": [{"role": "user", "content": BLOCK * 8}]},
    ],
)
def test_prompts_that_begin_otherwise_share_nothing(other: Any) -> None:
    assert shared(prefix(chat(BLOCK * 8)), prefix(other)) == 0


def test_a_mark_of_utf_8_and_spaces_around_are_none_of_the_prompt() -> None:
    plain = json.dumps(chat("täg " * 200), ensure_ascii=False).encode()
    marked = b"\xef\xbb\xbf \n" + plain.replace(b'"model": "m"', b' "model"\t:\n "m" ') + b"\r\n"
    assert read(marked).request.prefix[0][0] == read(plain).request.prefix[0][0]
    assert read(b'{"model": "t\xc3\xa4g"}').request.model == "täg"


def test_tenants_share_nothing() -> None:
    asked = chat(BLOCK * 8)
    one, other = (prefix(asked, **{"x-tenant": tenant}) for tenant in "ab")
    assert shared(one, other) == 0
    assert prefix(asked, **{"x-tenant": "a"}) == one


def test_an_image_is_told_by_what_it_is() -> None:
    def with_image(data: str) -> Any:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return chat([image, {"type": "text", "text": BLOCK * 4}])

    one, same, other = (prefix(with_image(data * 10_000)) for data in "AAB")
    assert one == same
    assert shared(one, other) == 0


def test_completions_take_a_text_or_its_tokens() -> None:
    text = prefix({"model": "m", "prompt": BLOCK * 5}, COMPLETIONS)
    assert len(text) == 5
    tokens = [{"model": "m", "prompt": [*range(1000), last]} for last in (1, 2)]
    one, other = (prefix(each, COMPLETIONS) for each in tokens)
    assert shared(one, other) >= len(one) - 1 > 0


def test_embeddings_are_rows_and_no_prompt() -> None:
    call = read({"model": "m", "input": ["a", "b", "c"]}, EMBEDDINGS)
    assert (call.request.rows, call.request.prompt_tokens, call.request.prefix) == (3, 0.0, ())
    assert read({"model": "m", "input": [1, 2, 3]}, EMBEDDINGS).request.rows == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b'{"model":', "body"),
        (b'{"model": "\xff"}', "body"),
        (b'{"model": "m", "model": "other"}', "body"),
        (b'{"model": "m"} {}', "body"),
        (b'{"model" "m"}', "body"),
        (b'{"model": "m",}', "body"),
        (b'{"a":' * 100_000, "body"),
        (b"[" * (bounds.MAX_JSON_NODES + 1), "body"),
        (b'{"prompt": [' + b"1," * (bounds.MAX_JSON_VALUES + 1) + b"1]}", "body"),
        (b'{"model": "m", "n": ' + b"9" * 5000 + b"}", "body"),
        (b"{}", "model"),
        (b'{"model": 5}', "model"),
        (b'{"model": ""}', "model"),
        (json.dumps({"model": "m" * 300}).encode(), "model"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_in_words(body: bytes, field: str) -> None:
    with pytest.raises(OutOfBoundsError, match=f"^{field}: ") as refused:
        read(body)
    assert refused.value.field == field
    assert len(str(refused.value)) < 300


def test_no_depth_of_nesting_is_an_internal_error() -> None:
    """Reading and writing JSON give up at different depths."""
    for depth in range(850, 1050):
        nested = b"[" * depth + b"]" * depth
        with contextlib.suppress(OutOfBoundsError):
            read(b'{"model": "m", "tools": [{"a": ' + nested + b"}]}")


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    further=st.dictionaries(st.sampled_from(["messages", "prompt", "tools", "stream", "input", "cache_salt"]), _JSON),
    path=st.sampled_from([CHAT, COMPLETIONS, EMBEDDINGS]),
)
def test_whatever_else_is_in_it_is_left_to_the_worker(further: dict[str, Any], path: str) -> None:
    request = read({"model": "m", **further}, path).request
    assert request.model == "m"
    assert 0 <= request.prompt_tokens <= bounds.MAX_PROMPT_TOKENS
    lengths = [tokens for _, tokens in request.prefix]
    assert lengths == sorted(lengths)
    assert all(0 < value < 2**64 and 0 < tokens <= request.prompt_tokens for value, tokens in request.prefix)


@given(beginning=st.text(min_size=300, max_size=3000), ends=st.tuples(st.text(), st.text()))
def test_prompts_share_the_hashes_of_what_they_both_begin_with(beginning: str, ends: tuple[str, str]) -> None:
    one, other = (prefix({"model": "m", "prompt": beginning + end}, COMPLETIONS) for end in ends)
    whole_blocks = (len(json.dumps(beginning)) - 1) // BLOCK_BYTES
    assert shared(one, other) >= min(whole_blocks, 4)
    if ends[0] == ends[1]:
        assert one == other


def test_errors_are_as_openai_writes_them() -> None:
    refused = responses.immediate(404, 5, "model 'x' is not known", "openai")
    answer = ext_proc.ProcessingResponse.FromString(refused).immediate_response
    assert answer.status.code == 404
    assert json.loads(answer.body)["error"] == {
        "message": "model 'x' is not known",
        "type": "invalid_request_error",
        "param": None,
        "code": "model_not_found",
    }


@pytest.mark.parametrize(
    ("read_by_envoy", "usage"),
    [
        ({"prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 7, "events": 9}, Usage(100, 60, 7)),
        ({"events": 9}, Usage(0, 0, 9)),
        ({"prompt_tokens": 10, "cached_tokens": 60}, Usage(10, 10, 0)),
        ({"prompt_tokens": 1e30, "completion_tokens": -5, "events": float("nan")}, Usage(0, 0, 0)),
    ],
)
def test_what_an_answer_says_of_its_tokens_is_bounded(read_by_envoy: dict[str, float], usage: Usage) -> None:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.request.path = CHAT
    metadata = entry.common_properties.metadata.filter_metadata
    metadata["balancer.usage"].update(read_by_envoy)
    metadata["balancer.logged"].update({"model": "m"})
    outcome = outcome_of(entry)
    assert (outcome.usage, outcome.model) == (usage, "m")


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_an_answer_is_read_in_whatever_pieces_it_comes(piece: int) -> None:
    event = b'data: {"choices":[{"delta":{"content":"say \\"prompt_tokens\\": 5"}}]}\n\n'
    usage = (
        b'data: {"usage":{"completion_tokens":3,"prompt_tokens":32,"prompt_tokens_details":{"cached_tokens":30}}}\n\n'
    )
    answer = event * 200 + usage + b"data: [DONE]\n\n"
    read_of = AnswerReader()
    for at in range(0, len(answer), piece):
        read_of.feed(answer[at : at + piece])
    assert read_of.usage() == Usage(32, 30, 3)


GENERATE, GENERATE_STREAM = "/v2/models/m/generate", "/v2/models/m/versions/3/generate_stream"


@pytest.mark.parametrize("path", [COMPLETIONS, GENERATE])
@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ({}, 0),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, 0),
        ({"max_tokens": 2.5}, 0),
        ({"max_tokens": "5"}, 0),
        ({"max_tokens": True}, 0),
        ({"max_tokens": 10**9}, 0),
    ],
)
def test_what_bounds_the_answer_is_read_and_what_cannot_be_is_not(
    asked: dict[str, Any], most: float, path: str
) -> None:
    body = {"model": "m", "prompt": "x", "text_input": "x", **asked}
    assert read(body, path).request.max_tokens == most


def test_triton_s_generate_has_its_prompt_in_text_input() -> None:
    asked = {"text_input": BLOCK * 4, "parameters": {"max_tokens": 5}}
    call = read(asked, GENERATE, **{"x-tenant": "a"})
    assert (call.request.model, call.kind, call.port) == ("m", Kind.INFERENCE, "http")
    assert (call.request.tenant, call.request.prompt_tokens) == ("a", len(json.dumps(asked)) / 4)
    streamed = read(asked, GENERATE_STREAM)
    assert (streamed.request.version, streamed.kind, streamed.streams_tokens) == ("3", Kind.STREAM, True)
    assert call.request.prefix
    assert not shared(call.request.prefix, streamed.request.prefix)
    assert streamed.request.prefix == prefix(asked | {"text_input": BLOCK * 4}, "/v2/models/m/generate_stream")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"text_input": ["a"]}', b'{"COUNT": 3}', b"\xff" * 9, b"[" * 10_000]
)
def test_what_has_no_prompt_is_for_triton_to_judge(body: bytes) -> None:
    call = read(body, GENERATE)
    assert (call.request.model, call.request.prompt_tokens, call.request.prefix) == ("m", 0.0, ())


def test_the_path_s_bounds_hold_whatever_the_body_is() -> None:
    with pytest.raises(OutOfBoundsError, match="model"):
        read({"text_input": "x"}, f"/v2/models/{'m' * 300}/generate")


def test_an_event_that_ends_openai_s_stream_is_no_token() -> None:
    reader = AnswerReader()
    for piece in (b'data: {"text_output": "a"}\n\n', b'data: {"text_output": "b"}\n\n'):
        reader.feed(piece)
    assert reader.usage().output == 2
    reader.feed(b"data: [DONE]\n\n")
    assert reader.usage().output == 2
