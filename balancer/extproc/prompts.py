"""What a request to a language model asks for, read from its body; and what its answer said of its tokens. By OpenAI's
API, or by Triton's `generate`.

The prompt goes by bytes, as there is no tokenizer here: how many tokens a byte makes is learned from what answers say.
What a prompt begins with is told by hashes of its first blocks, as they are written in the body. Tenant, model, salt
and tools are a part of them: so nobody finds out by hashes, or by time, what another tenant has asked, and who made two
prompts with one hash would steer none but his own. `envoy/module/prompt.c` reads the same within Envoy.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from balancer import bounds
from balancer.bounds import OutOfBoundsError, RefusedInputError
from balancer.extproc.inference_bytes import TRITON_PROMPT, prompt_of
from balancer.extproc.kserve import Call, HeaderNames, Kind, call_of, is_grpc, is_openai, read_call
from balancer.extproc.names import EMBEDDINGS
from balancer.kernel.estimators.prefixes import MOST_CHECKPOINTS, next_checkpoint
from policies.base import Prefix
from policies.hashing import mix

BLOCK_BYTES = 256
_hash = partial(blake2b, digest_size=8)
NO_SEED = 2 * _hash().digest()
TOKENS_A_BYTE = 0.25
"""Of English, until an answer says how many there were."""
_OF_LATE_TOKENS = 1e6
"""Of prompts, after which half of what was learned of a model's tokens is forgotten."""
_GENERATE = re.compile(r"/v2/models/[^/]+(/versions/[^/]+)?/generate(_stream)?")
"""As the bootstrap's route has it."""
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
MOST_TOKENS = ("max_tokens", "max_completion_tokens")
"""Members that bound the answer; of several, the least counts."""
_WHOLE = re.compile(rb"[1-9][0-9]{0,8}")
_MARK_OF_UTF_8 = "\xef\xbb\xbf"


class TokenShares:
    """How many tokens a byte of a request's body makes, by model."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def of(self, model: str) -> float:
        tokens, size_bytes = self._seen.get(model, (0.0, 0.0))
        return tokens / size_bytes if size_bytes else TOKENS_A_BYTE

    def all(self) -> Mapping[str, float]:
        """Of the models of which something was learned."""
        return {model: self.of(model) for model in self._seen}

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


def may_have_prompt(headers: Mapping[str, str]) -> bool:
    """Whether the body of a request with such headers is read for what it asks a language model."""
    path = headers.get(":path", "").partition("?")[0]
    return not is_grpc(headers) and (is_openai(path) or _GENERATE.fullmatch(path) is not None)


def read_request(
    headers: Mapping[str, str], body: bytes, names: HeaderNames, shares: TokenShares, tenant_of_user: bool = False
) -> Call:
    """Understand a request that has a body. A `Kind.STREAM`: its answer is streamed. `tenant_of_user`: OpenAI's member
    `user` names the tenant where no header does.

    Raises:
        OutOfBoundsError: a value that is not within bounds, or that cannot be read.
    """
    path = headers.get(":path", "").partition("?")[0]
    if not is_openai(path):
        return _read_generate(headers, body, names, shares)
    asked = _read(body)
    model = asked.model
    if not isinstance(model, str) or not model:
        rule = "is the name of a model, as /v1/models lists it"
        raise OutOfBoundsError("model", "" if model is None else model, rule)
    if path == EMBEDDINGS:
        inputs = asked.input
        rows = len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
        bounds.at_most("input", rows, bounds.MAX_ROWS)
        return call_of(headers, names, Kind.INFERENCE, model, rows=rows)
    call = call_of(headers, names, Kind.STREAM if asked.stream is True else Kind.INFERENCE, model)
    call = replace(call, request=replace(call.request, max_tokens=asked.max_tokens))
    if tenant_of_user and not call.request.tenant and isinstance(asked.user, str):
        tenant = bounds.text("user", asked.user)
        if not tenant.isprintable():
            raise OutOfBoundsError("user", tenant, "is printable text")
        call = replace(call, request=replace(call.request, tenant=tenant))
    return _with_prompt(call, asked.prompt, len(body.rstrip()), shares, asked.seed)


def _read_generate(headers: Mapping[str, str], body: bytes, names: HeaderNames, shares: TokenShares) -> Call:
    """As `read_request`, of Triton's `generate` and `generate_stream`. The path has all that decides who may serve it:
    a body that cannot be read, or has no prompt, is Triton's to judge."""
    call = read_call(headers, {}, names)
    try:
        asked = _read(body, (TRITON_PROMPT,))
    except RefusedInputError:
        return call
    if not asked.prompt.startswith(b'"'):
        return call
    call = replace(call, request=replace(call.request, max_tokens=asked.max_tokens))
    return _with_prompt(call, asked.prompt, len(body.rstrip()), shares)


def with_prompt_of(call: Call, message: bytes, shares: TokenShares) -> Call:
    """The same with the prompt that a ModelInferRequest has, if it has one. What cannot be read of its tensors is
    Triton's to judge."""
    try:
        prompt = prompt_of(message)
    except OutOfBoundsError:
        return call
    return _with_prompt(call, prompt, len(prompt), shares) if prompt else call


def _with_prompt(call: Call, prompt: bytes, size_bytes: int, shares: TokenShares, seed: bytes = NO_SEED) -> Call:
    """`size_bytes`: of the whole body."""
    model = call.request.model
    tokens = min(max(size_bytes * shares.of(model), 1.0), bounds.MAX_PROMPT_TOKENS)
    return call.with_prompt(tokens, prefix_of(prompt, tokens, seed_of(model, call.request.tenant, seed)))


def seed_of(model: str, tenant: str, further: bytes) -> int:
    """What prompts of that model and tenant are told apart by from all others: 64 bits."""
    words = b"\0".join((model.encode(errors="surrogatepass"), tenant.encode(errors="surrogatepass"), further))
    return int.from_bytes(_hash(words).digest(), "little")


def prefix_of(prompt: bytes, tokens: float, seed: int) -> Prefix:
    """The hashes of what a prompt of so many tokens begins with, at the lengths of `next_checkpoint`, in blocks."""
    blocks = len(prompt) // BLOCK_BYTES
    hashed, done = _hash(), 0
    found: list[tuple[int, float]] = []
    while done < blocks and len(found) < MOST_CHECKPOINTS:
        until = min(next_checkpoint(done), blocks)
        hashed.update(prompt[done * BLOCK_BYTES : until * BLOCK_BYTES])
        # 0 stands for none.
        value = mix(int.from_bytes(hashed.copy().digest(), "little") ^ seed) or 1
        found.append((value, tokens * until * BLOCK_BYTES / len(prompt)))
        done = until
    return tuple(found)


class _Asked(NamedTuple):
    """What matters of a body."""

    prompt: bytes
    """As it stands in there: JSON."""
    seed: bytes
    """Of what else a prefix is told apart by: salt, and tools, which templates put before all messages."""
    max_tokens: float
    model: Any = None
    stream: Any = None
    input: Any = None
    user: Any = None


def _read(body: bytes, prompts: Collection[str] = ("messages", "prompt")) -> _Asked:
    """`prompts`: names of the members that have the prompt."""
    if not body or len(body) > bounds.MAX_PROMPT_BYTES:
        raise _refused(f"is empty, or has more than {bounds.MAX_PROMPT_BYTES} bytes")
    # Shorter ones have not as many, and counting takes as long as reading.
    if len(body) > bounds.MAX_JSON_NODES and body.count(b"{") + body.count(b"[") > bounds.MAX_JSON_NODES:
        raise _refused(f"has more than {bounds.MAX_JSON_NODES} objects and arrays")
    if len(body) > bounds.MAX_JSON_VALUES and body.count(b",") > bounds.MAX_JSON_VALUES:
        raise _refused(f"has more than {bounds.MAX_JSON_VALUES} commas")
    prompt, salt, tools, most = [], [], [], []
    kept: dict[str, Any] = {}
    try:
        for name, value, raw in _members(body):
            if name in prompts:
                prompt.append(raw)
            elif name == "cache_salt":
                salt.append(raw)
            elif name == "tools":
                tools.append(raw)
            elif name == "model":
                if name in kept:
                    raise ValueError("names a model twice")
                kept[name] = json.loads(raw)
            elif name in MOST_TOKENS and _WHOLE.fullmatch(raw):
                most.append(float(raw))
            elif name in ("stream", "input", "user"):
                kept[name] = value
    except (ValueError, RecursionError) as error:
        raise _refused(f"is no JSON: {bounds.shown(error)}") from None
    seed = _hash(b"".join(salt)).digest() + _hash(b"".join(tools)).digest()
    return _Asked(b"".join(prompt), seed, min(most, default=0.0), **kept)


def _members(body: bytes) -> Iterator[tuple[str, Any, bytes]]:
    """Names of the members of a JSON object, their values, and how these are written. Texts are as in Latin-1, so that
    places in them are places in the body."""
    text = body.decode("latin-1").removeprefix(_MARK_OF_UTF_8)
    skipped = len(body) - len(text)
    at = _expect(text, 0, "{")
    more = text[at : at + 1] != "}"
    while more:
        if text[at : at + 1] != '"':
            raise ValueError(f"a name is missing at byte {at}")
        name, at = _DECODER.raw_decode(text, at)
        begin = _expect(text, at, ":")
        value, end = _DECODER.raw_decode(text, begin)
        yield name, value, body[skipped + begin : skipped + end]
        at = _past_space(text, end)
        more = text[at : at + 1] == ","
        if more:
            at = _expect(text, at, ",")
    at = _expect(text, at, "}")
    if at < len(text):
        raise ValueError(f"it goes on at byte {at}")


def _expect(text: str, at: int, what: str) -> int:
    """Where what stands behind it begins."""
    at = _past_space(text, at)
    if text[at : at + 1] != what:
        raise ValueError(f"{what!r} is missing at byte {at}")
    return _past_space(text, at + 1)


def _past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it may be empty
    return found.end()


def _refused(words: str) -> RefusedInputError:
    return RefusedInputError("body", f"body: {words}")
