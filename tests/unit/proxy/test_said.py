"""What a stream has said, and the request for the rest of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.extproc.names import CHAT, COMPLETIONS
from balancer.proxy.prompts.said import MOST_CHARACTERS, Said

QUESTION = {"role": "user", "content": "When is it high?"}
ASKED: dict[str, Any] = {"model": "m", "messages": [QUESTION], "max_tokens": 9, "stream": True, "temperature": 0}


def chunk(text: str | None = None, finish: str | None = None, **of: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return event({"id": "a", "created": 1, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **of})


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode()


def said(*events: bytes, path: str = CHAT, **asked: Any) -> Said:
    stream = Said(path, json.dumps(ASKED | asked).encode())
    for each in events:
        assert stream.take(each) == each, "what the first worker says passes as it is"
    return stream


def rest_of(stream: Said) -> dict[str, Any]:
    rest = stream.rest()
    assert rest is not None
    found: dict[str, Any] = json.loads(rest)
    return found


def test_the_rest_of_a_chat_continues_what_the_assistant_said() -> None:
    assert rest_of(said(chunk(""), chunk("At"), chunk(" six"))) == {
        **ASKED,
        "messages": [QUESTION, {"role": "assistant", "content": "At six"}],
        "max_tokens": 7,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


def test_the_rest_of_a_completion_has_what_was_said_in_its_prompt() -> None:
    texts = (event({"choices": [{"index": 0, "text": text}]}) for text in ("At", " six"))
    asked = {"model": "m", "prompt": "High: ", "stream": True}
    stream = Said(COMPLETIONS, json.dumps(asked).encode())
    for each in texts:
        stream.take(each)
    assert rest_of(stream) == {**asked, "prompt": "High: At six"}


def test_where_nothing_was_said_the_same_is_asked_again_whatever_it_is() -> None:
    further = {"tools": [{"type": "function"}], "n": 2}
    assert rest_of(said(chunk(""), **further)) == ASKED | further


@pytest.mark.parametrize(
    ("asked", "events"),
    [
        ({"tools": [{"type": "function"}]}, [chunk("At")]),
        ({"n": 2}, [chunk("At")]),
        ({"response_format": {"type": "json_object"}}, [chunk("At")]),
        ({"messages": [QUESTION, {"role": "assistant", "content": "At"}]}, [chunk(" six")]),
        ({"max_tokens": 2}, [chunk("At"), chunk(" six")]),
        ({"max_tokens": None, "max_completion_tokens": 1}, [chunk("At")]),
        ({}, [chunk("At"), chunk(finish="stop")]),
        ({}, [event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]})]),
        ({}, [event({"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}}]})]),
        ({}, [event({"choices": [{"index": 1, "delta": {"content": "At"}}]})]),
        ({}, [event({"error": {"message": "no memory"}})]),
        ({}, [b"data: {not JSON"]),
        ({}, [chunk("x" * (MOST_CHARACTERS + 1))]),
    ],
)
def test_what_cannot_be_continued_is_not(asked: dict[str, Any], events: list[bytes]) -> None:
    assert said(*events, **asked).rest() is None


def test_tokens_of_a_completion_cannot_be_put_behind_what_was_said() -> None:
    stream = Said(COMPLETIONS, b'{"prompt": [1, 2]}')
    stream.take(event({"choices": [{"index": 0, "text": "At"}]}))
    assert stream.rest() is None


def test_the_next_worker_goes_on_under_the_same_id_and_tokens_count_as_of_one_answer() -> None:
    stream = said(chunk("At"), chunk(" six"))
    stream.rest()
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    other = {"id": "b", "created": 2, "choices": []}
    assert json.loads(stream.take(event({**other, "usage": usage}))[6:]) == {
        "id": "a",
        "created": 1,
        "choices": [],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
    assert stream.take(b"data: [DONE]") == b"data: [DONE]"


def test_a_stream_goes_on_once() -> None:
    stream = said(chunk("At"))
    assert stream.rest() is not None
    assert stream.rest() is None


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["choices", "delta", "content", "index", "text", "usage"]), inner)
                ),
                max_leaves=8,
            ).map(event),
        ),
        max_size=6,
    ),
    st.sampled_from([CHAT, COMPLETIONS]),
)
def test_whatever_a_worker_says_passes_and_fails_nothing(events: list[bytes], path: str) -> None:
    said(*events, path=path).rest()
