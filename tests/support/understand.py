"""The module's reader of requests as a program, and what the gateway makes of the same facts."""

import json
import math
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from balancer.bounds import OutOfBoundsError
from balancer.extproc.kserve import KIND_OF_PARAMETER, SERVICE, HeaderNames, read_call
from balancer.extproc.prompts import TokenShares, read_request, with_prompt_of
from balancer.native.header import KINDS_OF_PARAMETER, SOURCES
from policies.base import Prefix
from support.c_programs import SANITIZED, compiled

PROGRAM = Path(__file__).parents[1] / "unit" / "kernel" / "understand.c"
INFER = SERVICE + "ModelInfer"
_READER = ("text", "hash", "inflate", "protobuf", "prompt", "json", "headers", "request")

TOKENS_A_BYTE = TokenShares().of("")
Headers = Mapping[str, str]


class Understood(NamedTuple):
    """What routing goes by. Texts are UTF-8."""

    kind: str
    grpc: bool
    sequence: bool
    key: int | None
    deadline_s: float
    rows: int
    priority: int
    model: bytes
    version: bytes
    tenant: bytes
    request_id: bytes
    triton_id: bytes
    prompt: tuple[float, Prefix, float] | None = None
    """Its tokens, where a byte of the body makes `TOKENS_A_BYTE`, what it begins with, and `max_tokens`."""


class Refused(NamedTuple):
    """Which field is refused, and what the client is told."""

    grpc: bool
    field: str
    text: str


def reader_program(made: Path, options: Sequence[str] = SANITIZED) -> Path:
    """Compile the program for `Reader`."""
    return compiled(made, *options, PROGRAM, *(SOURCES / f"{name}.c" for name in _READER))


class Reader:
    """The program, kept running. `held_bytes` says how much of the last body was needed."""

    def __init__(self, program: Path, memory: str = "aa") -> None:
        """`memory`: the bytes that lie where a request is read to, as one in hexadecimal."""
        self._process = subprocess.Popen([program, memory], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def ask(self, headers: Headers, chunks: Sequence[bytes] | None) -> Understood | Refused:
        """What it makes of a request; without chunks, the headers are all of it."""
        question = struct.pack("=I", len(headers))
        question += b"".join(
            _counted(name.encode()) + _counted(value.encode("latin-1")) for name, value in headers.items()
        )
        question += struct.pack("=II", chunks is not None, len(chunks or ())) + b"".join(map(_counted, chunks or ()))
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(question)
        stdin.flush()
        line = stdout.readline().decode()
        assert line, "the program is gone: a sanitizer says why above"
        return self._answer(line.split())

    def _answer(self, words: list[str]) -> Understood | Refused:
        if words[0] == "refused":
            return Refused(words[1] == "1", *(_text(word).decode() for word in words[2:]))
        kind, grpc, sequence, keyed, key, deadline_s, rows, priority, held, prompt, *texts = words
        self.held_bytes = int(held)
        return Understood(
            kind,
            grpc == "1",
            sequence == "1",
            int(key) if keyed == "1" else None,
            float.fromhex(deadline_s) if deadline_s != "inf" else math.inf,
            int(rows),
            int(priority),
            *map(_text, texts),
            _prompt(prompt.removeprefix("=")),
        )


def _prompt(word: str) -> tuple[float, Prefix, float] | None:
    if not word:
        return None
    body_bytes, prompt_bytes, max_tokens, *beginnings = map(int, word.split(","))
    tokens = max(body_bytes * TOKENS_A_BYTE, 1.0)
    pairs = zip(beginnings[::2], beginnings[1::2], strict=True)
    prefix = tuple((value, tokens * size_bytes / prompt_bytes) for value, size_bytes in pairs)
    return tokens, prefix, float(max_tokens)


def _counted(data: bytes) -> bytes:
    return struct.pack("=I", len(data)) + data


def _text(word: str) -> bytes:
    return bytes.fromhex(word.removeprefix("="))


def gateway(
    headers: Headers, fields: Mapping[str, Sequence[object]], body: bytes | None = None, first: bytes = b""
) -> Understood | Refused:
    """What the gateway makes of it; `body`: of one by HTTP that may have a prompt; `first`: message of a stream."""
    grpc = headers.get("content-type", "").startswith("application/grpc")
    try:
        if body is None:
            call = with_prompt_of(read_call(headers, fields, HeaderNames()), first, TokenShares())
        else:
            call = read_request(headers, body, HeaderNames(), TokenShares())
    except OutOfBoundsError as error:
        return Refused(grpc, error.field, str(error))
    request = call.request
    texts = (request.model, request.version, request.tenant, call.request_id, call.triton_request_id)
    return Understood(
        call.kind.value,
        call.grpc,
        request.sequence,
        request.key,  # type: ignore[arg-type]  # of one request: arrays are for the simulator's
        float(request.deadline_s),
        int(request.rows),  # type: ignore[arg-type]  # likewise
        int(request.priority),  # type: ignore[arg-type]  # likewise
        *(text.encode("utf-8", "surrogatepass") for text in texts),
        (float(request.prompt_tokens), request.prefix, float(request.max_tokens)) if call.has_prompt else None,
    )


def framed(message: bytes) -> bytes:
    """As gRPC sends it."""
    return b"\0" + struct.pack(">I", len(message)) + message


def fields_of(message: Any) -> dict[str, list[str]]:
    """What a ModelInferRequest says, each parameter with its own value and so without doubt."""
    given = []
    for key, parameter in message.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        given.append((key, kind, str(getattr(parameter, kind)) if kind else ""))
    shape = [str(dimension) for each in message.inputs for dimension in each.shape]
    return _fields(message.model_name, message.model_version, message.id, shape, given)


def fields_of_json(body: bytes) -> dict[str, list[str]]:
    """What the JSON of an inference says; of a name that comes twice, the first counts."""

    def first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(reversed(pairs))

    def kind_of(key: str, value: object) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return "int64_param" if key == "sequence_id" else KIND_OF_PARAMETER.get(key, "int64_param")
        return "string_param" if isinstance(value, str) else "double_param"

    read = json.loads(body, object_pairs_hook=first)
    parameters = read.get("parameters")
    pairs = parameters.items() if isinstance(parameters, dict) else ()
    given = [(key, kind_of(key, value), str(value)) for key, value in pairs]
    inputs = read.get("inputs")
    shape = [str(size) for each in (inputs if isinstance(inputs, list) else ()) for size in each.get("shape", ())]
    identity = read.get("id")
    return _fields("", "", identity if isinstance(identity, str) else "", shape, given)


def _fields(
    model: str, version: str, identity: str, shape: list[str], given: Sequence[tuple[str, str | None, str]]
) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {f"parameters.value.{kind}": [] for kind in sorted(set(KIND_OF_PARAMETER.values()))}
    fields |= {"parameters.value.string_param": [], "parameters.key": []}
    for key, kind, value in given:
        if kind in KINDS_OF_PARAMETER.get(key, (KIND_OF_PARAMETER.get(key),)) and kind is not None:
            fields["parameters.key"].append(key)
            # The gateway takes a sequence's id as either, and all else as one.
            of_key = kind if key == "sequence_id" else KIND_OF_PARAMETER[key]
            fields[f"parameters.value.{of_key}"].append(value)
        else:
            # One that Triton refuses, or of no concern, is there and says nothing.
            fields["parameters.key"].append("")
    return fields | {"model_name": [model], "model_version": [version], "id": [identity], "inputs.shape": shape}
