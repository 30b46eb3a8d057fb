"""What OpenAI's API asks for, as Triton's `generate_stream` takes it, and the answer as OpenAI's clients read it."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.bounds import OutOfBoundsError
from balancer.extproc.names import CHAT, COMPLETIONS
from balancer.proxy.prompts.generated import Generated, WorkerError

QUESTION = {"role": "user", "content": "When?"}


def roles(messages: list[dict[str, Any]]) -> str:
    """A chat template."""
    return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<assistant>"


def generated(path: str = CHAT, defaults: dict[str, Any] | None = None, **asked: Any) -> Generated:
    begin = {"messages": [QUESTION]} if path == CHAT else {"prompt": "High: "}
    body = json.dumps({"model": "m", **begin, **asked}).encode()
    return Generated(path, body, roles, defaults or {}, name="7", at_s=5, prompt_tokens=3.4)


def said(text: str, **of: Any) -> bytes:
    return b"data: " + json.dumps({"model_name": "m", "text_output": text, **of}).encode()


def events(data: bytes) -> list[Any]:
    *found, after = data.split(b"\n\n")
    assert after == b""
    texts = [each.removeprefix(b"data: ").decode() for each in found]
    return [json.loads(text) if text != "[DONE]" else text for text in texts]


def text_of(streamed: Generated, *texts: str) -> tuple[str, str]:
    """What a client reads, and why it ended."""
    out = b"".join(streamed.take(said(text)) for text in texts) + streamed.end()
    choices = [event["choices"][0] for event in events(out)[:-1] if event["choices"]]
    pieces = [each["delta"].get("content", "") if "delta" in each else each["text"] for each in choices]
    return "".join(pieces), choices[-1]["finish_reason"]


def test_a_chat_becomes_a_text_and_members_keep_their_names() -> None:
    one = generated(temperature=0.5, max_completion_tokens=9, seed=1, stop=["."], user="u", n=1, tools=[])
    assert json.loads(one.body()) == {
        "text_input": "<user>When?<assistant>",
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 1,
        "stream": True,
        "exclude_input_in_output": True,
    }
    assert (one.path(""), one.path("2")) == ("/v2/models/m/generate_stream", "/v2/models/m/versions/2/generate_stream")


def test_what_a_request_leaves_out_is_the_operator_s() -> None:
    defaults = {"max_tokens": 5, "return_num_input_tokens": True, "text_input": "no", "stream": False}
    assert json.loads(generated(defaults=defaults).body())["max_tokens"] == 5
    asked = json.loads(generated(defaults=defaults, max_tokens=2).body())
    assert (asked["max_tokens"], asked["return_num_input_tokens"]) == (2, True)
    assert (asked["text_input"], asked["stream"]) == ("<user>When?<assistant>", True), "which no default replaces"


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "When"}, {"type": "text", "text": "is it?"}]
    asked = generated(messages=[{"role": "user", "content": parts}]).body()
    assert json.loads(asked)["text_input"] == "<user>When\nis it?<assistant>"


def test_a_stream_has_a_role_texts_a_reason_and_its_tokens() -> None:
    one = generated(stream=True, stream_options={"include_usage": True})
    first, second = events(one.take(said("At")) + one.take(said(" six")))
    head = {"id": "chatcmpl-7", "created": 5, "model": "m", "object": "chat.completion.chunk"}
    delta = {"role": "assistant", "content": "At"}
    assert first == {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
    assert second["choices"][0]["delta"] == {"content": " six"}
    end, told, done = events(one.end())
    assert (end["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")
    assert told == {**head, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}


@pytest.mark.parametrize(("path", "kind"), [(CHAT, "chat.completion"), (COMPLETIONS, "text_completion")])
def test_a_whole_answer_has_all_that_was_said(path: str, kind: str) -> None:
    one = generated(path, max_tokens=2)
    for text in ("At", " six"):
        one.take(said(text))
    whole = one.whole()
    (choice,) = whole["choices"]
    assert whole["object"] == kind
    assert (choice["message"]["content"] if path == CHAT else choice["text"]) == "At six"
    assert choice["finish_reason"] == "length", "it said as many as it might"


def test_what_a_worker_tells_of_tokens_and_its_end_counts() -> None:
    one = generated()
    one.take(said("At six", num_input_tokens=40, num_output_tokens=2))
    one.take(said("", num_input_tokens=40, num_output_tokens=1, finish_reason="length"))
    whole = one.whole()
    assert whole["usage"] == {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}
    assert whole["choices"][0]["finish_reason"] == "length"
    assert one.usage() == (40, 0, 3)


def test_an_answer_ends_before_a_stop_though_it_comes_in_pieces() -> None:
    assert text_of(generated(stop="\n\n"), "At six", ".\n", "\nQ:", " no") == ("At six.", "stop")
    assert text_of(generated(stop=["xyz"]), "xy", "x", "y") == ("xyxy", "stop")


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_a_stop_is_found_however_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    got, _ = text_of(generated(stop=stops), *pieces)
    assert got == (text[: min(found)[1]] if found else text), "before the stop that is complete first"


def test_the_rest_is_asked_for_with_what_was_said_and_once() -> None:
    one = generated(max_tokens=5, stop="zz")
    for text in ("At", " z"):
        one.take(said(text))
    rest = one.rest()
    assert rest is not None
    asked = json.loads(rest)
    assert (asked["text_input"], asked["max_tokens"]) == ("<user>When?<assistant>At z", 3)
    assert text_of(one, "z", "no") == ("", "stop"), "what was held goes on"
    assert one.rest() is None


def test_nothing_is_left_to_ask_where_all_was_said() -> None:
    one = generated(max_tokens=1)
    one.take(said("At"))
    assert one.rest() is None


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"text_input": "another"}, "text_input"),
        ({"cache_salt": "s"}, "cache_salt"),  # which Triton would not keep to
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(OutOfBoundsError, match=field) as refused:
        generated(**asked)
    assert refused.value.field == field


@given(
    st.dictionaries(
        st.sampled_from(["messages", "stream", "stream_options", "stop", "max_tokens", "n", "tools", "user", "seed"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content"]), inner),
            max_leaves=6,
        ),
    )
)
def test_whatever_is_asked_is_translated_or_refused_in_words(asked: dict[str, Any]) -> None:
    with contextlib.suppress(OutOfBoundsError):
        one = generated(**asked)
        assert json.loads(one.body())["text_input"].endswith("<assistant>")
        events(one.take(said("x")) + one.end())


@pytest.mark.parametrize("prompt", [[1, 2], ["a", "b"], None, [[1]]])
def test_a_prompt_is_one_text(prompt: Any) -> None:
    with pytest.raises(OutOfBoundsError, match="prompt"):
        generated(COMPLETIONS, prompt=prompt)


def test_without_a_template_there_are_no_chats() -> None:
    body = json.dumps({"model": "m", "messages": [QUESTION]}).encode()
    with pytest.raises(OutOfBoundsError, match="use /v1/completions"):
        Generated(CHAT, body, None, {}, name="7", at_s=5, prompt_tokens=1.0)


@pytest.mark.parametrize(
    "event", [b'data: {"error": "out of memory"}', b"data: {", b"data: {}", b'data: {"text_output": 5}']
)
def test_an_error_of_the_worker_s_and_what_is_no_event_are_its_error(event: bytes) -> None:
    with pytest.raises(WorkerError):
        generated().take(event)


@given(st.binary(max_size=60))
def test_whatever_a_worker_says_is_an_event_or_its_error(data: bytes) -> None:
    one = generated(stream=True)
    with contextlib.suppress(WorkerError):
        events(one.take(b"data:" + data) + one.end())
