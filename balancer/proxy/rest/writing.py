"""An answer of gRPC as Triton's HTTP interface writes it: JSON, and behind it what is wanted as bytes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from balancer.bounds import shown
from balancer.proxy.rest.reading import OutputFormat, WantedOutputs
from balancer.proxy.rules.tensors import DTYPES, LENGTH_BYTES, TEXT, elements

_AT_ONCE = 4096
"""Elements that are written in one piece: a few milliseconds."""


class UnwritableError(Exception):
    """An answer that cannot be had in this form; `status` is that of HTTP."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def json_parts(response: service_pb2.ModelInferResponse, wanted: WantedOutputs) -> Iterator[bytes]:
    """The JSON of an answer, in pieces: a large one takes long, and others are to have their turn in between.

    Raises:
        UnwritableError: an output is none that JSON can carry, or does not fit its shape.
    """
    if len(response.raw_output_contents) != len(response.outputs):
        raise UnwritableError(500, "the worker's answer has outputs without their bytes")
    head: dict[str, Any] = {"id": response.id} if response.id else {}
    head |= {"model_name": response.model_name, "model_version": response.model_version}
    if response.parameters:
        head["parameters"] = {name: _value(each) for name, each in response.parameters.items()}
    yield _json(head)[:-1] + b',"outputs":['
    for number, (output, raw) in enumerate(zip(response.outputs, response.raw_output_contents, strict=True)):
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        how = wanted.of(output.name)
        own = {name: _value(each) for name, each in output.parameters.items()}
        if how is OutputFormat.BINARY:
            own["binary_data_size"] = len(raw)
        if own:
            entry["parameters"] = own
        yield (b"," if number else b"") + _json(entry)[:-1]
        if how is OutputFormat.JSON:
            yield b',"data":['
            yield from _data(output, raw)
            yield b"]"
        yield b"}"
    yield b"]}"


def binary_parts(response: service_pb2.ModelInferResponse, wanted: WantedOutputs) -> list[bytes]:
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return [raw for output, raw in pairs if wanted.of(output.name) is OutputFormat.BINARY]


def error_body(words: str) -> bytes:
    """A failure as Triton writes it."""
    return _json({"error": words})


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogateescape")


def _value(parameter: service_pb2.InferParameter) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


def _data(output: Any, raw: bytes) -> Iterator[bytes]:
    count = elements(output.shape)
    if count is None:
        raise _misfit(output)
    if output.datatype == TEXT:
        pieces = _texts(output, raw, count)
    elif (dtype := DTYPES.get(output.datatype)) is not None:
        if len(raw) != count * dtype.itemsize:
            raise _misfit(output)
        pieces = _numbers(np.frombuffer(raw, dtype))
    else:
        words = (
            f"sending {output.datatype} data via JSON is not supported. Please use the binary data format for output"
        )
        raise UnwritableError(400, words)
    first = True
    for piece in pieces:
        yield (b"" if first else b",") + _json(piece)[1:-1]
        first = False


def _numbers(array: np.ndarray[Any, Any]) -> Iterator[list[Any]]:
    for at in range(0, len(array), _AT_ONCE):
        # Python's floats are those of 64 bits: one of 32 is written as the same number.
        yield array[at : at + _AT_ONCE].tolist()


def _texts(output: Any, raw: bytes, count: int) -> Iterator[list[str]]:
    at, piece, left = 0, [], count
    while left:
        end = at + LENGTH_BYTES + int.from_bytes(raw[at : at + LENGTH_BYTES], "little")
        if at + LENGTH_BYTES > len(raw) or end > len(raw):
            raise _misfit(output)
        # What is no text goes out as the bytes that it is, as from a Triton.
        piece.append(raw[at + LENGTH_BYTES : end].decode(errors="surrogateescape"))
        at, left = end, left - 1
        if len(piece) == _AT_ONCE or not left:
            yield piece
            piece = []


def _misfit(output: Any) -> UnwritableError:
    return UnwritableError(500, f"output tensor shape does not match size of output for {shown(output.name)}")
