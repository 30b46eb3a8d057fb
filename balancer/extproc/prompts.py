"""What a request to a language model asks for, read from its body; and what its answer said of its tokens. By OpenAI's
API, or by Triton's `generate`.

The prompt goes by bytes, as there is no tokenizer here: how many tokens a byte makes is learned from what answers say.
What a prompt begins with is told by hashes of its first blocks, of which tenant, model and `cache_salt` are a part: so
nobody finds out by hashes, or by time, what another tenant has asked, and who made two prompts with one hash would
steer none but his own.
"""

import contextlib
import json
import re
from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from balancer import bounds
from balancer.bounds import OutOfBoundsError, RefusedInputError
from balancer.extproc.kserve import Call, HeaderNames, Kind, call_of, is_openai, read_call
from balancer.extproc.names import EMBEDDINGS
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS, next_checkpoint
from policies.base import Prefix

BLOCK_BYTES = 256
_HASH_BYTES = 8
_TOKENS_A_BYTE = 0.25
"""Of English, until an answer says how many there were."""
_OF_LATE_TOKENS = 1e6
"""Of prompts, after which half of what was learned of a model's tokens is forgotten."""
TRITON_PROMPT = "text_input"
"""The input that has the prompt, as Triton's backends for vLLM and TensorRT-LLM name it."""
_MARK, _END = b"\x1e", b"\x1f"
"""Before each part of a prompt, and behind its name."""


class TokenShares:
    """How many tokens a byte of a request's body makes, by model."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def of(self, model: str) -> float:
        tokens, size_bytes = self._seen.get(model, (0.0, 0.0))
        return tokens / size_bytes if size_bytes else _TOKENS_A_BYTE

    def learn(self, model: str, tokens: float, size_bytes: float) -> None:
        """A body of so many bytes was answered, and its prompt had so many tokens."""
        if tokens <= 0 or size_bytes <= 0 or (model not in self._seen and len(self._seen) >= bounds.MAX_FLEET_MODELS):
            return
        before_tokens, before_bytes = self._seen.get(model, (0.0, 0.0))
        kept = 0.5 if before_tokens > _OF_LATE_TOKENS else 1.0
        # None has more tokens than bytes, whatever an answer says.
        self._seen[model] = kept * before_tokens + min(tokens, size_bytes), kept * before_bytes + size_bytes


class Usage(NamedTuple):
    """Tokens, as an answer has them; 0: it does not say."""

    prompt: float
    cached: float
    """Of the prompt, that the worker had."""
    output: float


USAGE_KEYS = ("prompt_tokens", "completion_tokens", "cached_tokens", "events")
"""What is read of an answer, by Envoy's script or here; the last: of a stream, how many events had a token."""
_LAST_BYTES = 8192
_TOLD = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)"\s*:\s*(\d{1,9})\b')


def usage_of(read: Mapping[str, float]) -> Usage:
    """What was read by `USAGE_KEYS`, within bounds."""

    def tokens(key: str) -> float:
        found = read.get(key, 0.0)
        return found if 0 <= found <= bounds.MAX_PROMPT_TOKENS else 0.0

    prompt = tokens("prompt_tokens")
    return Usage(prompt, min(tokens("cached_tokens"), prompt), tokens("completion_tokens") or tokens("events"))


class AnswerReader:
    """Reads an answer as it comes, as the script in Envoy's bootstrap does: its end, where its tokens are told."""

    def __init__(self) -> None:
        self._ending, self._events = b"", 0

    def feed(self, data: bytes) -> None:
        self._events += data.count(b"data:")
        self._ending = (self._ending + data)[-_LAST_BYTES:]

    def usage(self) -> Usage:
        told = {key.decode(): float(digits) for key, digits in _TOLD.findall(self._ending)}
        return usage_of(told | {"events": max(self._events - (b"[DONE]" in self._ending), 0)})


def read_request(headers: Mapping[str, str], body: bytes, names: HeaderNames, shares: TokenShares) -> Call:
    """Understand a request that has a body. A `Kind.STREAM`: its answer is streamed.

    Raises:
        OutOfBoundsError: a value that is not within bounds, or that cannot be read.
    """
    path = headers.get(":path", "").partition("?")[0]
    if not is_openai(path):
        return _read_generate(headers, body, names, shares)
    asked = _json(body)
    model = asked.get("model")
    if not isinstance(model, str) or not model:
        rule = "is the name of a model, as /v1/models lists it"
        raise OutOfBoundsError("model", "" if model is None else model, rule)
    if path == EMBEDDINGS:
        inputs = asked.get("input")
        rows = len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
        bounds.at_most("input", rows, bounds.MAX_ROWS)
        return call_of(headers, names, Kind.INFERENCE, model, rows=rows)
    call = call_of(headers, names, Kind.STREAM if asked.get("stream") is True else Kind.INFERENCE, model)
    salt = asked.get("cache_salt")
    try:
        prompt = b"".join(_parts(asked))
    except RecursionError:
        raise _refused("is nested too deeply") from None
    return _with_prompt(call, prompt, len(body), shares, salt if isinstance(salt, str) else "")


def _read_generate(headers: Mapping[str, str], body: bytes, names: HeaderNames, shares: TokenShares) -> Call:
    """As `read_request`, of Triton's `generate` and `generate_stream`. The path has all that decides who may serve it:
    a body that cannot be read, or has no prompt, is Triton's to judge."""
    call = read_call(headers, {}, names)
    try:
        text = _json(body).get(TRITON_PROMPT)
    except RefusedInputError:
        return call
    return _with_prompt(call, _content(text), len(body), shares) if isinstance(text, str) else call


def _with_prompt(call: Call, prompt: bytes, size_bytes: int, shares: TokenShares, salt: str = "") -> Call:
    """`size_bytes`: of the whole body."""
    model = call.request.model
    tokens = min(max(size_bytes * shares.of(model), 1.0), bounds.MAX_PROMPT_TOKENS)
    return call.with_prompt(tokens, prefix_of(prompt, tokens, "\0".join((model, call.request.tenant, salt))))


def prefix_of(prompt: bytes, tokens: float, seed: str) -> Prefix:
    """The hashes of what a prompt of so many tokens begins with, at the lengths of `next_checkpoint`, in blocks."""
    blocks = len(prompt) // BLOCK_BYTES
    key = blake2b(seed.encode(errors="surrogatepass"), digest_size=32).digest()
    hashed, done = blake2b(digest_size=_HASH_BYTES, key=key), 0
    found: list[tuple[int, float]] = []
    while done < blocks and len(found) < MOST_CHECKPOINTS:
        until = min(next_checkpoint(done), blocks)
        hashed.update(prompt[done * BLOCK_BYTES : until * BLOCK_BYTES])
        # 0 stands for none.
        value = int.from_bytes(hashed.copy().digest(), "little") or 1
        found.append((value, tokens * until * BLOCK_BYTES / len(prompt)))
        done = until
    return tuple(found)


def _json(body: bytes) -> Mapping[str, Any]:
    if not body or len(body) > bounds.MAX_PROMPT_BYTES:
        raise _refused(f"is empty, or has more than {bounds.MAX_PROMPT_BYTES} bytes")
    # Shorter ones have not as many, and counting takes as long as reading.
    if len(body) > bounds.MAX_JSON_NODES and body.count(b"{") + body.count(b"[") > bounds.MAX_JSON_NODES:
        raise _refused(f"has more than {bounds.MAX_JSON_NODES} objects and arrays")
    if len(body) > bounds.MAX_JSON_VALUES and body.count(b",") > bounds.MAX_JSON_VALUES:
        raise _refused(f"has more than {bounds.MAX_JSON_VALUES} commas")
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _refused(f"is no JSON: {bounds.shown(error)}") from None
    if not isinstance(read, dict):
        raise _refused("is no JSON object")
    return read


def _refused(words: str) -> RefusedInputError:
    return RefusedInputError("body", f"body: {words}")


def _parts(asked: Mapping[str, Any]) -> Iterator[bytes]:
    """The prompt in the order in which templates put it: tools, then messages; or the text, or its tokens."""
    if asked.get("tools"):
        yield _part("tools", asked["tools"])
    messages = asked.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        yield _part("role", message.get("role"))
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            yield _content(part)
        for key in ("tool_calls", "tool_call_id", "name"):
            if message.get(key):
                yield _part(key, message[key])
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    yield _content(prompt)


def _content(part: object) -> bytes:
    """A text, or a part of a message: a text too, or an image and the like, of which a digest stands for all."""
    if part is None:
        return b""
    if isinstance(part, list):
        with contextlib.suppress(TypeError, OverflowError):  # else it is no list of tokens
            return _part("tokens", "") + array("q", part).tobytes()
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        part = part["text"]
    if isinstance(part, str):
        return _part("text", part)
    digest = blake2b(json.dumps(part).encode(errors="surrogatepass"), digest_size=32)
    return _part("part", digest.hexdigest())


def _part(name: str, value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return _MARK + name.encode() + _END + text.encode(errors="surrogatepass")
