"""Requests joined along the batch axis, and their answer taken apart again. Pure.

Only what is certain to be right is joined: tensors as raw bytes whose lengths fit their shapes, and nothing that names
memory. All else goes alone, so that Triton itself says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.proxy.rules.tensors import LENGTH_BYTES, SIZES, TEXT, elements

_MOST_BYTES = 2**20
"""Of a request that is joined: a larger one fills a device by itself."""
_MOST_TEXTS = 4096
"""Elements of a text tensor of such a request, each of which is walked over."""

Kind = tuple[object, ...]


class UnlikeError(Exception):
    """An answer that cannot be taken apart by rows."""


@dataclass(frozen=True, slots=True)
class Joinable:
    """A request that may be joined with those of its kind."""

    message: service_pb2.ModelInferRequest
    rows: int
    kind: Kind
    """Equal where requests may be joined."""


def joinable(data: bytes) -> Joinable | None:
    if len(data) > _MOST_BYTES:
        return None
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return None
    inputs, raw = message.inputs, message.raw_input_contents
    rows = inputs[0].shape[0] if inputs and inputs[0].shape else 0
    if len(inputs) != len(raw) or message.parameters or not 1 <= rows <= bounds.MAX_ROWS:
        return None
    names = {each.name for each in inputs}
    if len(names) < len(inputs) or any(each.parameters for each in message.outputs):
        return None
    if not all(_is_plain(each, content, rows) for each, content in zip(inputs, raw, strict=True)):
        return None
    shapes = tuple((each.name, each.datatype, tuple(each.shape[1:])) for each in inputs)
    outputs = tuple(each.name for each in message.outputs)
    return Joinable(message, rows, (message.model_name, message.model_version, shapes, outputs))


def _is_plain(tensor: service_pb2.ModelInferRequest.InferInputTensor, content: bytes, rows: int) -> bool:
    if tensor.parameters or tensor.HasField("contents"):
        return False
    if tensor.datatype == TEXT and (elements(tensor.shape) or 0) > _MOST_TEXTS:
        return False
    return _fits(tensor.datatype, tensor.shape, content, rows)


def join(requests: Sequence[Joinable]) -> bytes:
    """One request for all of them, which are of one kind."""
    first = requests[0].message
    whole = service_pb2.ModelInferRequest(model_name=first.model_name, model_version=first.model_version)
    whole.outputs.extend(first.outputs)
    rows = sum(request.rows for request in requests)
    for number, each in enumerate(first.inputs):
        whole.inputs.add(name=each.name, datatype=each.datatype, shape=[rows, *each.shape[1:]])
        whole.raw_input_contents.append(b"".join(request.message.raw_input_contents[number] for request in requests))
    data: bytes = whole.SerializeToString()
    return data


def split(data: bytes, requests: Sequence[Joinable]) -> list[bytes]:
    """The answer to each of the requests, in their order, with its id; UnlikeError where rows do not tell them
    apart."""
    try:
        whole = service_pb2.ModelInferResponse.FromString(data)
    except DecodeError as error:
        raise UnlikeError from error
    if len(whole.outputs) != len(whole.raw_output_contents):
        raise UnlikeError
    counts = [request.rows for request in requests]
    answers = [
        service_pb2.ModelInferResponse(
            model_name=whole.model_name,
            model_version=whole.model_version,
            id=request.message.id,
            parameters=whole.parameters,
        )
        for request in requests
    ]
    for each, content in zip(whole.outputs, whole.raw_output_contents, strict=True):
        if not each.shape or each.shape[0] != sum(counts) or each.HasField("contents"):
            raise UnlikeError
        for answer, rows, part in zip(answers, counts, _parts(each, content, counts), strict=True):
            output = answer.outputs.add(name=each.name, datatype=each.datatype, shape=[rows, *each.shape[1:]])
            for key, value in each.parameters.items():
                output.parameters[key].CopyFrom(value)
            answer.raw_output_contents.append(part)
    return [answer.SerializeToString() for answer in answers]


def _fits(datatype: str, shape: Sequence[int], content: bytes, rows: int) -> bool:
    count = elements(shape)
    if count is None or not shape or shape[0] != rows:
        return False
    if datatype == TEXT:
        ends = _ends_of_texts(content, count)
        return ends is not None and ends[-1] == len(content)
    return len(content) == count * SIZES.get(datatype, -1)


def _ends_of_texts(content: bytes, count: int) -> list[int] | None:
    """Where each element ends, after a 0; None where there are not so many."""
    ends = [0]
    if count * LENGTH_BYTES > len(content):
        return None
    for _ in range(count):
        start = ends[-1] + LENGTH_BYTES
        end = start + int.from_bytes(content[start - LENGTH_BYTES : start], "little")
        if end > len(content):
            return None
        ends.append(end)
    return ends


def _parts(output: service_pb2.ModelInferResponse.InferOutputTensor, content: bytes, counts: list[int]) -> list[bytes]:
    bounds_of_rows = [0, *accumulate(counts)]
    per_row = elements(output.shape[1:])
    if per_row is None or not _fits(output.datatype, output.shape, content, bounds_of_rows[-1]):
        raise UnlikeError
    if output.datatype == TEXT:
        ends = _ends_of_texts(content, per_row * bounds_of_rows[-1])
        assert ends is not None  # as it fits
        cuts = [ends[rows * per_row] for rows in bounds_of_rows]
    else:
        cuts = [rows * per_row * SIZES[output.datatype] for rows in bounds_of_rows]
    return [content[start:end] for start, end in pairwise(cuts)]
