"""How sure an answer says it is: one of its outputs, read. Pure, and bounded, whatever the answer holds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from balancer.bounds import OutOfBoundsError
from balancer.extproc import wire
from balancer.extproc.wire import WireField
from balancer.proxy.rules.tensors import elements

MOST_BYTES = 2**18
"""Of the output that is read."""
_OUTPUT, _RAW = 5, 6
"""Of ModelInferResponse."""
_NAME = 1
"""Of an output."""
_MOST_OF_OUTPUT = 64
_TYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
_CONTENTS = {"FP32": "fp32_contents", "FP64": "fp64_contents"}
"""Where numbers stand that are not raw bytes; Triton has no such place for FP16."""


def confidence(data: bytes, output: str) -> float | None:
    """The greatest element of each row of this output of a ModelInferResponse, and of those the least.

    Rows are the first dimension; a tensor of fewer than two dimensions is one row. None where the answer does not have
    such an output, or it cannot be read: not of floating point, of another size than its shape, not a number.
    """
    try:
        rows = _rows(data, output)
    except (OutOfBoundsError, DecodeError):
        return None
    if rows is None:
        return None
    least = float(rows.max(axis=1).min())
    return None if math.isnan(least) else least


def _rows(data: bytes, output: str) -> npt.NDArray[np.float64] | None:
    outputs, raw = [], []
    for part in wire.parts(data):
        if part.number == _OUTPUT and part.is_bytes:
            outputs.append(part)
        elif part.number == _RAW and part.is_bytes:
            raw.append(part)
    name = output.encode()
    place = next((place for place, part in enumerate(outputs) if _name(data, part) == name), None)
    if place is None or outputs[place].end - outputs[place].start > MOST_BYTES:
        return None
    tensor = service_pb2.ModelInferResponse.InferOutputTensor.FromString(
        data[outputs[place].start : outputs[place].end]
    )
    values = _raw(data, tensor.datatype, raw[place]) if len(raw) == len(outputs) else _explicit(tensor)
    if values is None or elements(tensor.shape) != len(values):
        return None
    if not len(values):
        return None
    return values.astype(np.float64).reshape(tensor.shape[0] if len(tensor.shape) > 1 else 1, -1)


def _name(data: bytes, output: WireField) -> bytes:
    """The last one counts, as protobuf has it."""
    name = b""
    for part in wire.parts(data, output.start, output.end, _MOST_OF_OUTPUT):
        if part.number == _NAME and part.is_bytes:
            name = data[part.start : part.end]
    return name


def _raw(data: bytes, datatype: str, part: WireField) -> npt.NDArray[np.floating] | None:
    kind = _TYPES.get(datatype)
    length = part.end - part.start
    if kind is None or length > MOST_BYTES or length % np.dtype(kind).itemsize:
        return None
    return np.frombuffer(data, kind, length // np.dtype(kind).itemsize, part.start)


def _explicit(tensor: service_pb2.ModelInferResponse.InferOutputTensor) -> npt.NDArray[np.floating] | None:
    field = _CONTENTS.get(tensor.datatype)
    return None if field is None else np.array(getattr(tensor.contents, field), np.float64)
