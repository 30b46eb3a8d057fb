"""Random requests for the module's reader, under sanitizers: mutations of honest ones.

Neither how a body is cut into chunks, nor what lay in memory before, may make a difference to what is read.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from support.c_programs import SANITIZED
from support.understand import INFER, Reader, Refused, Understood, framed, reader_program
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.extproc.kserve import SERVICE
from balancer.extproc.names import CHAT, COMPLETIONS
from fuzz import hostile

_GRPC, _REST = {":path": INFER, "content-type": "application/grpc"}, {":path": "/v2/models/m/infer"}
_LENGTH = "inference-header-content-length"
_WORDS = (
    *(bytes([each]) for each in b'\0\1\2\5\7\x08\n\x12\x1a"*2:\x7f\x80\xc3\xed\xf4\xff\\{}[],/%-09u'),
    *(
        b'"id":',
        b'"parameters":{',
        b'"inputs":[{"shape":[',
        b"sequence_id",
        b"priority",
        b"timeout",
        *(
            b'"model":"m"',
            b'"messages":[',
            b'"prompt":"',
            b'"text_input":"',
            b"\n\ntext_input",
            b'"stream":true',
            b'"max_tokens":9',
            b'"tools":',
            b'"cache_salt":',
        ),
        b"\\ud83d",
        b"\\u0000",
    ),
    *(b"%2f", b"%c3%a9", b"9" * 20, b"\xff" * 9 + b"\1", b"\x80" * 4 + b"\1"),
)
"""That mean something in protobuf, JSON or a path."""
_MOST_BYTES = 2**17

Request = tuple[dict[str, str], bytes]
"""Headers and body."""


def fuzzed(folder: Path, inputs: int, seed: int, options: Sequence[str] = SANITIZED) -> None:
    """Try so many inputs; AssertionError naming the one that breaks the reader.

    Args:
        folder: For the program.
        inputs: How many.
        seed: Equal seeds try equal inputs.
        options: Of the compiler.
    """
    program, honest = reader_program(folder / "understand", options), list(corpus())
    with Reader(program, "00") as reader, Reader(program, "a5") as of_chunks:
        for number in range(inputs):
            rng = Random(f"{seed}/{number}")
            headers, body = _mutated(rng, honest)
            size = rng.randrange(1, 64)
            chunks = [body[at : at + size] for at in range(0, len(body), size)]
            try:
                read = reader.ask(headers, [body])
                assert read == of_chunks.ask(headers, chunks), f"in chunks of {size} it is another"
                _check(read)
            except AssertionError as error:
                raise AssertionError(f"input {number} of seed {seed}, {headers}, {body!r}: {error}") from None


def _check(read: Understood | Refused) -> None:
    if isinstance(read, Refused):
        assert read.text, "a refusal has words"
        assert read.text.isascii(), "a refusal can be read"
        assert read.text.isprintable(), "a refusal can be read"
        return
    texts = (read.model, read.version, read.tenant, read.request_id, read.triton_id)
    assert all(len(text) <= bounds.MAX_TEXT_BYTES for text in texts), "texts are within bounds"
    assert 1 <= read.rows <= bounds.MAX_ROWS, "rows are within bounds"
    assert 0 <= read.priority <= bounds.MAX_PRIORITY, "the priority is within bounds"
    assert read.deadline_s >= 0, "the deadline is a time"
    assert read.key is not None or not read.sequence, "a sequence has a key"
    if read.prompt is not None:
        tokens, prefix, max_tokens = read.prompt
        lengths = [length for _, length in prefix]
        assert 0 <= max_tokens < 10**9, "what bounds the answer is within bounds"
        assert lengths == sorted(set(lengths)), "each beginning is longer than the one before"
        assert all(0 < length <= tokens and 0 < value < 2**64 for value, length in prefix), "hashes of what is there"
    assert read.model or read.kind in {"server", "per_server"}, "a call about a model names one"


def _mutated(rng: Random, honest: Sequence[Request]) -> Request:
    headers, body = rng.choice(honest)
    headers = headers | {
        name: value.decode("latin-1") for name, value in map(hostile.header, [rng] * rng.choice((0, 0, 1, 4)))
    }
    if rng.random() < 0.05:
        headers[":path"] = rng.choice(hostile.GRPC_PATHS + hostile.REST_PATHS)
    for _ in range(rng.randrange(9)):
        at, other = rng.randrange(len(body) + 1), rng.choice(honest)[1]
        start = rng.randrange(len(other) + 1)
        new = rng.choice(
            (
                rng.randbytes(1),
                rng.choice(_WORDS),
                rng.choice(_WORDS),
                b"",
                body[at - 64 : at],
                other[start : start + 300],
            )
        )
        # In place of as much, of nothing, or of a part that is lost.
        body = (
            body[:at]
            + new
            + body[at + rng.choice((len(new), len(new), 0, rng.randrange(8), rng.randrange(len(body) + 1))) :]
        )
    return headers, body[:_MOST_BYTES]


def corpus() -> Iterator[Request]:
    """Honest requests."""
    message = service_pb2.ModelInferRequest(model_name="model", model_version="1", id="é🙂")
    message.parameters["sequence_id"].int64_param = 42
    message.parameters["sequence_start"].bool_param = True
    message.parameters["priority"].uint64_param = 3
    message.parameters["timeout"].int64_param = 250_000
    message.parameters["colour"].string_param = "red"
    message.parameters["half"].double_param = 0.5
    message.inputs.add(name="INPUT", datatype="FP32", shape=[8, 3])
    typed = service_pb2.ModelInferRequest.FromString(message.SerializeToString())
    typed.inputs[0].contents.fp32_contents.extend([1.0] * 24)
    message.outputs.add(name="OUTPUT")
    message.raw_input_contents.append(b"\x0a\x01x" * 32)
    asked = service_pb2.ModelInferRequest(model_name="m")
    for name in ("stream", "text_input"):
        asked.inputs.add(name=name, datatype="BYTES", shape=[1])
    asked.raw_input_contents.extend([b"\1", b"\x14\x05\0\0" + b"tide " * 260])
    yield _GRPC | {":path": SERVICE + "ModelStreamInfer", "x-tenant": "a"}, framed(asked.SerializeToString())
    for each in (message, typed, service_pb2.ModelInferRequest(model_name="m")):
        yield _GRPC | {"grpc-timeout": "5S", "x-sequence-id": "s"}, framed(each.SerializeToString())
    ready = service_pb2.ModelReadyRequest(name="m", version="2").SerializeToString()
    yield _GRPC | {":path": SERVICE + "ModelReady"}, framed(ready)
    for container in (16 + zlib.MAX_WBITS, zlib.MAX_WBITS):
        for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY):
            packer = zlib.compressobj(9, zlib.DEFLATED, container, strategy=strategy)
            packed = packer.compress(message.SerializeToString()) + packer.flush()
            yield _GRPC, b"\1" + framed(packed)[1:]
    json = (
        b'{"id": "a\\u00e9\\ud83d\\ude42", "inputs": [{"name": "A", "shape": [8, 2], "datatype": "FP32", "data": '
        b'[[1.0, -2e3], ["a\\"]"]]}], "parameters": {"sequence_id": 42, "sequence_start": true, "priority": 3, '
        b'"timeout": 250000, "mine": {"x": [null]}}}'
    )
    yield _REST, json
    yield _REST | {_LENGTH: str(len(json)), "x-deadline-ms": " 1.5 "}, json + b"\x00\xff" * 40
    yield _REST | {"content-encoding": "gzip"}, gzip.compress(json)
    yield _REST | {"content-encoding": "deflate"}, zlib.compress(json, 0)
    yield _REST | {":path": "/v2/models/%c3%a9%20x/versions/2/infer?q=%2f"}, json
    said = b'[{"role": "user", "content": [{"type": "text", "text": "t\\u00e9\\"' + b"tide " * 300 + b'"}]}]'
    chat = b'{"messages": ' + said + b', "tools": [{}], "cache_salt": "s", "stream": true, "model": "m"}'
    yield _REST | {":path": CHAT, "x-tenant": "a"}, chat
    yield _REST | {":path": CHAT, "content-encoding": "gzip"}, gzip.compress(chat)
    yield _REST | {":path": COMPLETIONS}, b'{"model":"m","prompt":[' + b"[1,2,3]," * 200 + b"[4]]}"
    yield (
        _REST | {":path": "/v2/models/m/generate_stream"},
        b'{"text_input":"' + b"tide " * 300 + b'","parameters":{"n":1}}',
    )
