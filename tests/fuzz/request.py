"""Random requests for the module's reader, by the million.

`entry.c` is an entry for any fuzzer. With libFuzzer: `clang -fsanitize=fuzzer,address,undefined entry.c` and the
reader's sources. `driver.c` calls it with mutations of honest requests, where there is a C compiler only.
"""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.c_programs import SANITIZED, compiled
from tritonclient.grpc import service_pb2

from balancer.native import header

_READER = ("text.c", "hash.c", "inflate.c", "protobuf.c", "json.c", "headers.c", "request.c")
READER = tuple(header.SOURCES / name for name in _READER)
"""Sources of the module's reader."""
_FOLDER = Path(__file__).parent
# As entry.c has them: places of paths and headers in its tables, and what the second byte says of the body.
_INFER, _READY, _REST, _PATH_OF_HEADER = 0, 2, 4, 7
_SEQUENCE, _DEADLINE, _TIMEOUT, _JSON_BYTES, _ENCODING, _PATH = 2, 5, 6, 9, 10, 11
_FRAMED = 1
_CHUNK = 16 << 2


def fuzzed(folder: Path, inputs: int, seed: int, options: Sequence[str] = SANITIZED) -> str:
    """Try so many inputs, and return what the driver says; CalledProcessError where one breaks the reader.

    Args:
        folder: For the driver, its corpus, and the input that broke the reader.
        inputs: How many.
        seed: Equal seeds try equal inputs.
        options: Of the compiler.
    """
    driver = compiled(folder / "driver", *options, _FOLDER / "entry.c", _FOLDER / "driver.c", *READER)
    files = []
    for number, data in enumerate(corpus()):
        files.append(folder / f"seed-{number}")
        files[-1].write_bytes(data)
    # So that the driver keeps the input at hand.
    environment = os.environ | {"ASAN_OPTIONS": "abort_on_error=1", "UBSAN_OPTIONS": "abort_on_error=1"}
    command: list[str | Path] = [driver, str(inputs), str(seed), *files]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def corpus() -> Iterator[bytes]:
    """Honest requests, as entry.c takes them."""
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
    for each in (message, typed, service_pb2.ModelInferRequest(model_name="m")):
        data = each.SerializeToString()
        yield _input(_INFER, _FRAMED, [], data)
        yield _input(_INFER, 0, [(_TIMEOUT, b"5S"), (_SEQUENCE, b"s")], b"\0" + struct.pack(">I", len(data)) + data)
    yield _input(_READY, _FRAMED, [], service_pb2.ModelReadyRequest(name="m", version="2").SerializeToString())
    for container in (16 + zlib.MAX_WBITS, zlib.MAX_WBITS):
        for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY):
            packer = zlib.compressobj(9, zlib.DEFLATED, container, strategy=strategy)
            packed = packer.compress(message.SerializeToString()) + packer.flush()
            yield _input(_INFER, 0, [], b"\1" + struct.pack(">I", len(packed)) + packed)
    json = (
        b'{"id": "a\\u00e9\\ud83d\\ude42", "inputs": [{"name": "A", "shape": [8, 2], "datatype": "FP32", "data": '
        b'[[1.0, -2e3], ["a\\"]"]]}], "parameters": {"sequence_id": 42, "sequence_start": true, "priority": 3, '
        b'"timeout": 250000, "mine": {"x": [null]}}}'
    )
    yield _input(_REST, 0, [], json)
    yield _input(_REST, 0, [(_JSON_BYTES, b"%d" % len(json)), (_DEADLINE, b" 1.5 ")], json + b"\x00\xff" * 40)
    yield _input(_REST, 0, [(_ENCODING, b"gzip")], gzip.compress(json))
    yield _input(_REST, 0, [(_ENCODING, b"deflate")], zlib.compress(json, 0))
    yield _input(_PATH_OF_HEADER, 0, [(_PATH, b"/v2/models/%c3%a9%20x/versions/2/infer?q=%2f")], json)


def _input(path: int, how: int, headers: Sequence[tuple[int, bytes]], body: bytes) -> bytes:
    start = bytes([path, how | _CHUNK, len(headers)])
    return start + b"".join(bytes([which, len(value)]) + value for which, value in headers) + body
