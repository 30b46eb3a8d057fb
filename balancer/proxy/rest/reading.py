"""An inference of Triton's HTTP interface as the message that gRPC has for it. Pure.

The rules are Triton's: JSON, with tensors in it or, as raw bytes, behind it. A number that does not fit its type is
refused, where Triton would cut it.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from balancer import bounds
from balancer.bounds import OutOfBoundsError, RefusedInputError, shown
from balancer.extproc import wire
from balancer.proxy.messages import DTYPES, LENGTH_BYTES, MOST_RANK, ONLY_BINARY, TEXT, elements

_BINARY_BYTES, _BINARY, _BINARY_DEFAULT = "binary_data_size", "binary_data", "binary_data_output"
_REGION = "shared_memory_region"
_IN_MEMORY = {_REGION: str, "shared_memory_byte_size": int, "shared_memory_offset": int}
_CLASSES = "classification"
_RESERVED = "triton_"
_RAW = service_pb2.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_MISFIT = "Unable to parse 'data': Shape does not match true shape of 'data' field"

Json = Any


class OutputFormat(enum.Enum):
    JSON = "json"
    BINARY = "binary"
    MEMORY = "memory"
    """It is where the client reads it already."""


@dataclass(frozen=True, slots=True)
class WantedOutputs:
    named: Mapping[str, OutputFormat]
    unnamed: OutputFormat = OutputFormat.JSON

    def of(self, output: str) -> OutputFormat:
        return self.named.get(output, self.unnamed)


def read_request(body: bytes, json_bytes: int | None, model: str, version: str) -> tuple[bytes, WantedOutputs]:
    """The message as gRPC has it on the wire, and how its client wants the answer.

    Args:
        body: Of the request, decompressed.
        json_bytes: How many of its bytes are JSON, if others follow; None: all.
        model: That the path names; `version`: likewise, empty where it names none.

    Raises:
        UnreadableError: it is no such request.
    """
    content = _read_json(body, json_bytes)
    name = _member(content, "id", str, "id", "")
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=name)
    unnamed = _add_parameters(request, _member(content, "parameters", dict, "parameters", {}))
    at = len(body) if json_bytes is None else json_bytes
    inputs = _objects(_member(content, "inputs", list, "inputs"), "inputs")
    tensors: list[bytes | memoryview] = []
    for given in inputs:
        at = _add_input(request, given, memoryview(body), at, tensors)
    if at != len(body):
        raise RefusedInputError("inputs", f"unexpected additional input data for model {shown(model)}")
    outputs = _objects(_member(content, "outputs", list, "outputs", []), "outputs")
    wanted = WantedOutputs(dict(_add_output(request, each) for each in outputs), unnamed)
    # Equal requests have equal bytes, whatever the order of their parameters. Large tensors are copied once.
    parts = [request.SerializeToString(deterministic=True)]
    for tensor in tensors:
        parts += (wire.head(_RAW, len(tensor)), tensor)
    return b"".join(parts), wanted


def _read_json(body: bytes, json_bytes: int | None) -> dict[str, Json]:
    size = len(body) if json_bytes is None else json_bytes
    if size > len(body):
        words = f"unexpected size for request JSON, expecting {size - len(body)} more bytes"
        raise RefusedInputError("json", words)
    if size > bounds.MAX_JSON_BYTES:
        rule = f"{bounds.MAX_JSON_BYTES} at most are read; send tensors as binary data"
        raise RefusedInputError("json", f"the request's JSON has {size} bytes, of which {rule}")
    try:
        content = json.loads(memoryview(body)[:size].tobytes())
    except (ValueError, RecursionError) as error:
        raise RefusedInputError("json", f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(content, dict):
        raise RefusedInputError("json", "failed to parse the request JSON buffer: it is no object")
    return content


_KINDS = {str: "a text", int: "a whole number", bool: "true or false", list: "an array", dict: "an object"}
_NEEDED: Any = object()


def _member(of: Mapping[str, Json], name: str, kind: type, field: str, without: Any = _NEEDED) -> Any:
    value = of.get(name, without)
    if value is _NEEDED:
        raise RefusedInputError(field, f"Unable to parse {shown(name)}: it is not there")
    if value is not without and type(value) is not kind:
        raise RefusedInputError(field, f"Unable to parse {shown(name)}: it is {_KINDS[kind]}")
    if kind is str:
        _encoded(value, field)
    return value


def _encoded(value: str, field: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise RefusedInputError(field, f"{field}: {shown(value)} is no text") from None


def _objects(values: list[Json], field: str) -> list[dict[str, Json]]:
    for each in values:
        if type(each) is not dict:
            raise RefusedInputError(field, f"Unable to parse {shown(field)}: each is an object")
    return values


def _add_parameters(request: service_pb2.ModelInferRequest, parameters: Mapping[str, Json]) -> OutputFormat:
    """Set them, by the kind that routing and Triton know each by; how outputs are wanted that are not named."""
    if len(parameters) > bounds.MAX_PARAMETERS:
        raise OutOfBoundsError("parameters", len(parameters), f"counts {bounds.MAX_PARAMETERS} at most")
    unnamed = OutputFormat.JSON
    for name, value in parameters.items():
        _encoded(name, "parameters")
        if name == _BINARY_DEFAULT:
            unnamed = OutputFormat.BINARY if _member(parameters, name, bool, "parameters") else OutputFormat.JSON
        elif name.startswith(_RESERVED):
            words = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            raise RefusedInputError("parameters", words)
        else:
            _set(request.parameters[name], name, value)
    return unnamed


_FLAGS, _COUNTS = ("sequence_start", "sequence_end"), ("priority", "timeout")


def _set(parameter: service_pb2.InferParameter, name: str, value: Json) -> None:
    if name in _FLAGS and type(value) is not bool:
        raise RefusedInputError("parameters", f"Unable to parse '{name}': it is true or false")
    if name in _COUNTS and (type(value) is not int or value < 0):
        raise RefusedInputError("parameters", f"Unable to parse '{name}': it is a whole number, and not negative")
    if name == "sequence_id" and type(value) not in (int, str):
        raise RefusedInputError("parameters", "Unable to parse 'sequence_id': it is a whole number or a text")
    try:
        if type(value) is bool:
            parameter.bool_param = value
        elif type(value) is int and name == "priority":
            parameter.uint64_param = value
        elif type(value) is int:
            parameter.int64_param = value
        elif type(value) is float:
            parameter.double_param = value
        elif type(value) is str:
            parameter.string_param = value
        else:
            rule = "has invalid type. It should be either 'int', 'bool', or 'string'."
            raise RefusedInputError("parameters", f"parameter {shown(name)} {rule}")
    except (ValueError, UnicodeEncodeError) as error:
        if isinstance(error, OutOfBoundsError):
            raise
        raise RefusedInputError("parameters", f"parameter {shown(name)}: {shown(value)} does not fit") from None


def _add_input(
    request: service_pb2.ModelInferRequest,
    given: Mapping[str, Json],
    body: memoryview,
    at: int,
    tensors: list[bytes | memoryview],
) -> int:
    """Add a tensor, and its bytes to `tensors`; where those of the next one begin in the body."""
    name, datatype = _member(given, "name", str, "inputs"), _member(given, "datatype", str, "inputs")
    shape = _shape(_member(given, "shape", list, "inputs"))
    own = _member(given, "parameters", dict, "inputs", {})
    _check_one_source(given, own)
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    if _REGION in own:
        _add_memory(tensor.parameters, own)
        return at
    if _BINARY_BYTES in own:
        size: int = _member(own, _BINARY_BYTES, int, "inputs")
        if not 0 <= size <= len(body) - at:
            more = f"expecting {shown(size - (len(body) - at))} additional bytes for model {shown(request.model_name)}"
            raise RefusedInputError("inputs", f"unexpected size for input {shown(name)}, {more}")
        tensors.append(body[at : at + size])
        return at + size
    data = _member(given, "data", list, "inputs")
    count = elements(shape)
    if count is None:
        words = f"Unable to parse 'shape': it has {len(shape)} dimensions; in JSON {MOST_RANK} at most are read"
        raise RefusedInputError("inputs", words)
    tensors.append(_tensor(name, datatype, count, data))
    return at


def _check_one_source(given: Mapping[str, Json], own: Mapping[str, Json]) -> None:
    there = [name for name, of in (("data", given), (_BINARY_BYTES, own), (_REGION, own)) if name in of]
    if len(there) != 1:
        words = (
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But"
        )
        what = f" set {' '.join(map(repr, there))}" if there else " no field is set"
        raise RefusedInputError("inputs", words + what)


def _shape(dimensions: list[Json]) -> list[int]:
    for each in dimensions:
        if type(each) is not int or not 0 <= each < 2**63:
            raise RefusedInputError("inputs", f"Unable to parse 'shape': {shown(each)} is no size of a dimension")
    return dimensions


def _tensor(name: str, datatype: str, count: int, data: list[Json]) -> bytes:
    if datatype in ONLY_BINARY:
        words = f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input"
        raise RefusedInputError("data", f"{words} {_readable(name)}")
    dtype = DTYPES.get(datatype)
    if dtype is None and datatype != TEXT:
        raise RefusedInputError("data", f"invalid datatype for input {_readable(name)}")
    if count == 0:
        return b""
    values = _flat(data)
    if len(values) != count:
        raise RefusedInputError("data", _MISFIT)
    if not {*map(type, values)} <= _of_json(dtype):
        raise RefusedInputError(
            "data", f"Unable to parse 'data': an element of input {_readable(name)} is not of type {datatype}"
        )
    if dtype is None:
        texts = [_encoded(each, "data") for each in values]
        return b"".join(len(each).to_bytes(LENGTH_BYTES, "little") + each for each in texts)
    try:
        with np.errstate(over="ignore"):  # to infinity, as Triton has it
            return np.array(values, dtype).tobytes()
    except OverflowError:
        words = f"Unable to parse 'data': an element of input {_readable(name)} does not fit {datatype}"
        raise RefusedInputError("data", words) from None


def _readable(name: str) -> str:
    return name if name.isprintable() and len(name) <= bounds.SHOWN_CHARACTERS else shown(name)


def _of_json(dtype: np.dtype[Any] | None) -> set[type]:
    if dtype is None:
        return {str}
    kinds: dict[str, set[type]] = {"b": {bool}, "f": {int, float}}
    return kinds.get(dtype.kind, {int})


def _flat(data: Sequence[Json]) -> list[Json]:
    """The leaves of nested arrays, in order; each is looked at once, however deep they nest."""
    found: list[Json] = []
    open_ = [iter(data)]
    while open_:
        for each in open_[-1]:
            if type(each) is list:
                open_.append(iter(each))
                break
            found.append(each)
        else:
            open_.pop()
    return found


def _add_memory(parameters: Any, own: Mapping[str, Json]) -> None:
    for name, kind in _IN_MEMORY.items():
        if name in own:
            _member(own, name, kind, "parameters")
            _set(parameters[name], name, own[name])


def _add_output(request: service_pb2.ModelInferRequest, wanted: Mapping[str, Json]) -> tuple[str, OutputFormat]:
    name = _member(wanted, "name", str, "outputs")
    own = _member(wanted, "parameters", dict, "outputs", {})
    output = request.outputs.add(name=name)
    binary = _member(own, _BINARY, bool, "outputs", False)
    if _CLASSES in own:
        _member(own, _CLASSES, int, "outputs")
        _set(output.parameters[_CLASSES], _CLASSES, own[_CLASSES])
    if _REGION not in own:
        return name, OutputFormat.BINARY if binary else OutputFormat.JSON
    if _CLASSES in own or binary:
        other = _CLASSES if _CLASSES in own else _BINARY
        raise RefusedInputError("outputs", f"Output can't set both '{_REGION}' and '{other}'")
    _add_memory(output.parameters, own)
    return name, OutputFormat.MEMORY
