"""The module reads prompts as the balancer does: the same hashes of the same bodies, in whatever pieces they come."""

import gzip
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.understand import Reader, Refused, Understood, gateway

from balancer.bounds import MAX_PROMPT_BYTES
from balancer.extproc.names import CHAT, COMPLETIONS
from balancer.extproc.prompts import BLOCK_BYTES

GENERATE = "/v2/models/m/generate"
PATHS = (CHAT, COMPLETIONS, GENERATE, "/v2/models/m/versions/2/generate_stream")
fixtures = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=900),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
NAMES = ("messages", "prompt", "text_input", "tools", "cache_salt", "stream", "input", "parameters", "id", "x")
MOST = ("max_tokens", "max_completion_tokens")


def headers(path: str, **more: str) -> dict[str, str]:
    return {"content-type": "application/json", ":path": path, ":method": "POST"} | more


def same(reader: Reader, of: dict[str, str], chunks: list[bytes]) -> Understood:
    read, expected = reader.ask(of, chunks), gateway(of, {}, b"".join(chunks))
    assert read == expected
    assert isinstance(read, Understood)
    return read


@fixtures
@given(
    members=st.lists(
        st.tuples(st.sampled_from(NAMES), VALUES)
        | st.tuples(st.sampled_from(MOST), VALUES | st.integers(0, 10**10) | st.sampled_from([0.5, 1e3, "7"])),
        max_size=6,
    ),
    model=st.text(min_size=1, max_size=40),
    at=st.integers(0, 6),
    path=st.sampled_from(PATHS),
    tenant=st.sampled_from(["", "a"]),
    spaces=st.sampled_from(["", " ", "\n\t "]),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 4000), max_size=6),
)
def test_any_body_is_read_alike(
    reader: Reader,
    members: list[tuple[str, Any]],
    model: str,
    at: int,
    path: str,
    tenant: str,
    spaces: str,
    ascii_only: bool,
    cuts: list[int],
) -> None:
    listed = [*members[:at], ("model", model), *members[at:]]
    written = [
        f"{spaces}{json.dumps(name)}{spaces}:{spaces}{json.dumps(value, ensure_ascii=ascii_only)}{spaces}"
        for name, value in listed
    ]
    body = f"{spaces}{{{','.join(written)}}}{spaces}".encode(errors="replace")
    places = sorted({min(cut, len(body)) for cut in (0, *cuts)} | {len(body)})
    chunks = [body[begin:end] for begin, end in pairwise(places)]
    if path.startswith("/v1") and not model.isprintable():
        return  # what cannot be written here is another test's
    same(reader, headers(path, **{"x-tenant": tenant}), chunks)


@pytest.mark.parametrize("size_bytes", [1, 255, 256, 257, 1024, 100_000, 3_000_000])
@pytest.mark.parametrize("piece", [997, 16_384, 4_000_000])
def test_long_prompts_are_hashed_at_the_same_lengths(reader: Reader, size_bytes: int, piece: int) -> None:
    text = "".join(random.Random(size_bytes).choices('abc \\"\n', k=size_bytes))
    body = json.dumps({"messages": [{"role": "user", "content": text}], "model": "m", "stream": True}).encode()
    chunks = [body[at : at + piece] for at in range(0, len(body), piece)]
    read = same(reader, headers(CHAT), chunks)
    assert read.kind == "stream"
    assert read.prompt is not None
    assert bool(read.prompt[1]) == (size_bytes > BLOCK_BYTES - 40)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "prompt": "x"',
        b'{"model": "m", "prompt": "x',
        b'{"model": "m", "prompt": "x", \'model\': "other"}',
        b'{"model": "m", "prompt": "x"], "model": "other"}',
        b'{"model": "m", /* */ "model": "other"}',
        b'{"model": "m", "prompt": "' + b"x" * MAX_PROMPT_BYTES + b'", "model": "other"}',
    ],
    ids=["no end", "no end of a text", "quotes", "brackets", "comment", "too long"],
)
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_what_is_not_read_to_its_end_cannot_name_another_model(reader: Reader, body: bytes, encoding: str) -> None:
    """Nor can what a compressed body has beyond the bound, which is short as it is sent."""
    sent = gzip.compress(body) if encoding == "gzip" else body
    read = reader.ask(headers(COMPLETIONS, **{"content-encoding": encoding}), [sent])
    assert isinstance(read, Refused)
    assert read.field == "body"
    words = "has more than 16777216 bytes" if len(body) > MAX_PROMPT_BYTES else "is no JSON object"
    assert read.text == f"body: {words}, which is refused"
    assert isinstance(gateway(headers(COMPLETIONS), {}, body), Refused)


def test_a_compressed_body_is_that_of_its_content(reader: Reader) -> None:
    body = json.dumps({"model": "m", "prompt": "tide " * 1000}).encode()
    packed = reader.ask(headers(COMPLETIONS, **{"content-encoding": "gzip"}), [gzip.compress(body)])
    assert packed == reader.ask(headers(COMPLETIONS), [body])


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "prompt": "x", "model": "other"}',
        b'{"model": "m", "prompt": "x", "mod\\u0065l": "m"}',
        b'{"model": "m", "prompt": "x", "model": 5}',
        b'{"model": "\xff", "prompt": "x"}',
        b'{"prompt": "x"}',
        b'{"model": 5, "prompt": "x"}',
        b'{"model": "", "prompt": "x"}',
        b'{"model": "%s", "prompt": "x"}' % (b"m" * 300),
        b"[]",
        b"",
    ],
)
def test_a_model_that_is_not_clear_is_refused(reader: Reader, body: bytes) -> None:
    read = reader.ask(headers(CHAT), [body])
    assert isinstance(read, Refused)
    assert isinstance(gateway(headers(CHAT), {}, body), Refused)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"text_input": ["a"]}', b'{"COUNT": 3}', b"\xff" * 9, b"[" * 10_000]
)
def test_a_body_of_generate_without_a_prompt_is_triton_s_to_judge(reader: Reader, body: bytes) -> None:
    assert same(reader, headers(GENERATE), [body]).prompt is None
