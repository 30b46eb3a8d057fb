"""What routing needs of an inference's bytes, in the form in which Envoy hands extracted fields to a pick; what else is
read of them and written into them.

All of the message is walked, as protobuf takes the last of a field that is there twice: what a worker will read is what
was decided about. A version is written before a message, of which only the start has to be there: one that the client
names behind it stays in force.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from balancer import bounds
from balancer.bounds import OutOfBoundsError
from balancer.extproc import wire
from balancer.extproc.kserve import KIND_OF_PARAMETER
from balancer.extproc.wire import WireError, WireField
from balancer.scheduler.fleet import Fleet
from balancer.scheduler.worker import latest

MAX_VERSION_DIGITS = 19
"""Triton's versions are signed integers of 64 bits."""
FRAME_BYTES = 5
"""What precedes each message of gRPC: whether it is compressed, and its length in four bytes, big-endian.
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md"""
_MOST_MESSAGE = 2**32 - 1
TRITON_PROMPT = "text_input"
"""The input that has the prompt, as Triton's backends for vLLM and TensorRT-LLM name it."""
VERSION_FIELD = 2
"""Of ModelInferRequest: https://github.com/triton-inference-server/common, grpc_service.proto."""
_MOST_FIELDS = 64
_MODEL_IN_PATH = re.compile(r"(/[^/?]+){3}(?=/)")
"""Up to the model; whatever is encoded in it."""

COMPRESSED = "compressed"
NO_BODY = "no_body"
UNREADABLE = "unreadable"


class LeftError(Exception):
    """A message that stays as it is."""

    def __init__(self, why: str = "") -> None:
        """`why`: a label; empty: it names a version itself."""
        super().__init__(why)
        self.why = why


def framed_with_version(body: bytes, version: str) -> bytes:
    """The start of the body of a gRPC request, for that version.

    Raises:
        LeftError: it names one already, or nothing can be written into it.
    """
    if len(body) < FRAME_BYTES:
        raise LeftError(UNREADABLE)
    if body[0]:
        raise LeftError(COMPRESSED)
    message = body[FRAME_BYTES:]
    if _names_version(message):
        raise LeftError
    field = wire.tagged(VERSION_FIELD, version.encode())
    length = int.from_bytes(body[1:FRAME_BYTES], "big") + len(field)
    if length > _MOST_MESSAGE:
        raise LeftError(UNREADABLE)
    return b"".join((body[:1], length.to_bytes(FRAME_BYTES - 1, "big"), field, message))


def path_with_version(path: str, version: str) -> str:
    found = _MODEL_IN_PATH.match(path)
    return path if found is None else f"{found[0]}/versions/{version}{path[found.end() :]}"


def _names_version(message: bytes) -> bool:
    """Whether its first fields, as far as they are there, name one. The last of them may be cut."""
    try:
        for count, part in enumerate(wire.parts(message)):
            if part.number == VERSION_FIELD:
                return part.end > part.start
            if count == _MOST_FIELDS:
                break
    except OutOfBoundsError:
        pass
    return False


def pinned_version(fleet: Fleet, model: str) -> str:
    """The version to be written into a request; empty: none, as it is not pinned or Triton's choice is permitted.

    Triton gives a request that names none the latest version that is loaded, which the model table may not permit. The
    one version that is pinned, or the latest of several that is loaded, where some worker has a later one that is
    not permitted. None where workers have the model, but no permitted version of it: then nobody may serve it.
    """
    row = fleet.settings.models.get(model)
    if row is None or not row.versions:
        return ""
    loaded = [worker.versions[model] for worker in fleet.workers if model in worker.versions]
    permitted = {version for versions in loaded for version in versions if version in row.versions}
    if len(row.versions) == 1:
        found = row.versions[0] if permitted or not loaded else ""
    else:
        beyond = any(latest(versions) not in permitted and not permitted.isdisjoint(versions) for versions in loaded)
        found = latest(permitted) if beyond else ""
    return found if found.isascii() and found.isdigit() and len(found) <= MAX_VERSION_DIGITS else ""


# Of ModelInferRequest.
_NAME, _VERSION, _ID, _PARAMETER, _INPUT = 1, VERSION_FIELD, 3, 4, 5
_TEXTS = {_NAME: "model_name", _VERSION: "model_version", _ID: "id"}
_REQUESTED_OUTPUT = 6
_OF_TENSORS = (_PARAMETER, _INPUT, _REQUESTED_OUTPUT)
"""Where shared memory may be named."""
_RAW_CONTENTS = 7
_INPUT_NAME, _SHAPE, _INPUT_CONTENTS = 1, 3, 5
"""Of an input."""
_ELEMENT_LENGTH_BYTES = 4
"""Before each element of a text tensor."""
_PARAMETER_OF_OUTPUT = 2
_SHARED_MEMORY = b"shared_memory_region"
RESPONSE_ID = 3
"""Of ModelInferResponse."""
_ERROR, _RESPONSE = 1, 2
"""Of ModelStreamInferResponse."""
_KEY, _VALUE = 1, 2
_KINDS = {1: "bool_param", 2: "int64_param", 3: "string_param", 5: "uint64_param"}
_OF_SEQUENCE_ID = ("int64_param", "string_param")
_MOST_OF_INPUT = 64
_MOST_OF_PARAMETER = 16
_PARAMETER_BYTES = 8 * bounds.MAX_TEXT_BYTES

Fields = Mapping[str, Sequence[object]]


@dataclass(frozen=True, slots=True)
class RoutingFields:
    fields: Fields
    id_spans: tuple[tuple[int, int], ...]
    in_memory: bool = False
    """Whether an input or output may be in shared memory."""


def read(data: bytes) -> RoutingFields:
    """The fields of a ModelInferRequest; OutOfBoundsError where it is none, or too much of it."""
    fields: dict[str, Sequence[object]] = dict.fromkeys(_TEXTS.values(), ())
    parameters: dict[str, tuple[str, object]] = {}
    spans: list[tuple[int, int]] = []
    shape: Sequence[object] | None = None
    entries, in_memory = 0, False
    for part in wire.parts(data):
        # A parameter's name stands in the message as it is. One who sends it as a value gets no kept answer, no more.
        if part.number in _OF_TENSORS and not in_memory:
            in_memory = data.find(_SHARED_MEMORY, part.start, part.end) >= 0
        if part.number in _TEXTS:
            name = _TEXTS[part.number]
            fields[name] = (_short(data, part, name),)
            if part.number == _ID:
                spans.append((part.begin, part.end))
        elif part.number == _PARAMETER:
            entries += 1
            if entries > bounds.MAX_PARAMETERS:
                raise OutOfBoundsError("parameters", entries, f"counts {bounds.MAX_PARAMETERS} at most")
            _read_parameter(data, _of_bytes(part), parameters)
        elif part.number == _INPUT and shape is None:
            shape = first_dimension(data, _of_bytes(part).start, part.end)
    fields["inputs.shape"] = shape or ()
    _add_parameters(fields, parameters)
    return RoutingFields(fields, tuple(spans), in_memory)


def prompt_of(data: bytes) -> bytes:
    """What a ModelInferRequest asks a language model: the text of the input `TRITON_PROMPT`, as clients send it, raw;
    empty: it has none, or there is too much before its end. The module's reader finds the same."""
    inputs = contents = prompt_at = 0
    tensors = typed = False
    for part in wire.parts(data):
        if not part.is_bytes:
            continue
        if part.number == _INPUT and not tensors:
            inputs += 1
            if inputs <= bounds.MAX_PROMPT_INPUTS:
                is_prompt, has_contents = _is_prompt(data, part)
                prompt_at, typed = prompt_at or inputs * is_prompt, typed or has_contents
        tensors = tensors or part.number in (_REQUESTED_OUTPUT, _RAW_CONTENTS)
        if part.number == _RAW_CONTENTS:
            contents += 1
            if contents == prompt_at and not typed:
                return data[part.start + _ELEMENT_LENGTH_BYTES : part.end] if part.end <= bounds.MAX_JSON_BYTES else b""
    return b""


def _is_prompt(data: bytes, part: WireField) -> tuple[bool, bool]:
    """Whether an input is the prompt, and whether its elements stand in it one by one."""
    name, has_contents = b"", False
    for inner in wire.parts(data, part.start, part.end, _MOST_OF_INPUT):
        if inner.number == _INPUT_NAME and inner.is_bytes:
            name = data[inner.start : inner.end]
        has_contents = has_contents or (inner.number == _INPUT_CONTENTS and inner.is_bytes)
    return name == TRITON_PROMPT.encode(), has_contents


def writes_memory(data: bytes) -> bool:
    """Whether a ModelInferRequest may want an output written into shared memory, where each execution writes it; also
    where its outputs cannot be read."""
    try:
        for part in wire.parts(data):
            if part.number != _REQUESTED_OUTPUT:
                continue
            for inner in wire.parts(data, _of_bytes(part).start, part.end, _MOST_OF_INPUT):
                if inner.number == _PARAMETER_OF_OUTPUT and _SHARED_MEMORY in data[inner.start : inner.end]:
                    return True
    except WireError:
        return True
    return False


def with_model(data: bytes, model: str) -> bytes:
    """A ModelInferRequest for another model: protobuf takes the last that is named."""
    return data + wire.tagged(_NAME, model.encode())


def with_version(data: bytes, version: str) -> bytes:
    """A ModelInferRequest for another version: protobuf takes the last that is named."""
    return data + wire.tagged(_VERSION, version.encode())


def digest(data: bytes, without: Sequence[tuple[int, int]] = ()) -> bytes:
    """Tells messages apart, whoever chose them; `without`: places that do not count."""
    found, at = hashlib.blake2b(digest_size=32), 0
    view = memoryview(data)
    for begin, end in without:
        found.update(view[at:begin])
        at = end
    found.update(view[at:])
    return found.digest()


def with_id(data: bytes, name: str) -> bytes:
    kept, at = [], 0
    for part in wire.parts(data):
        if part.number == RESPONSE_ID:
            kept.append(data[at : part.begin])
            at = part.end
    kept.append(data[at:])
    if name:
        kept.append(wire.tagged(RESPONSE_ID, name.encode()))
    return b"".join(kept)


def refused_in_stream(data: bytes, why: str) -> bytes:
    """The ModelStreamInferResponse, as a Triton writes it, to a ModelInferRequest that is refused."""
    try:
        name = str(*read(data).fields["id"])
    except OutOfBoundsError:
        name = ""
    return wire.tagged(_ERROR, why.encode()) + wire.tagged(_RESPONSE, wire.tagged(RESPONSE_ID, name.encode()))


def _of_bytes(part: WireField) -> WireField:
    if not part.is_bytes:
        raise WireError
    return part


def _short(data: bytes, part: WireField, field: str) -> str:
    size = _of_bytes(part).end - part.start
    if size > bounds.MAX_FIELD_BYTES:
        raise OutOfBoundsError(field, f"a text of {size} bytes", f"has {bounds.MAX_TEXT_BYTES} bytes at most")
    return bounds.text(field, wire.text(data, part, field))


def first_dimension(data: bytes, start: int, end: int) -> Sequence[object] | None:
    """That of the input between `start` and `end`, as Envoy writes numbers; None where the input has none."""
    for part in wire.parts(data, start, end, _MOST_OF_INPUT):
        if part.number != _SHAPE:
            continue
        if not part.is_bytes:
            return (str(_signed(part.value)),)
        if part.start < part.end:
            return (str(_signed(wire.varint(data, part.start, part.end)[0])),)
    return None


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _read_parameter(data: bytes, entry: WireField, into: dict[str, tuple[str, object]]) -> None:
    key, values = "", []
    for part in wire.parts(data, entry.start, entry.end, _MOST_OF_PARAMETER):
        if part.number == _KEY:
            key = (
                wire.text(data, _of_bytes(part), "parameters.key") if part.end - part.start <= _PARAMETER_BYTES else ""
            )
        elif part.number == _VALUE:
            values.append(_of_bytes(part))  # protobuf merges them
    if key not in KIND_OF_PARAMETER and key != "sequence_id":
        return
    into.pop(key, None)
    for part in (each for value in values for each in wire.parts(data, value.start, value.end, _MOST_OF_PARAMETER)):
        kind = _KINDS.get(part.number)
        if kind == "string_param":
            into[key] = kind, _short(data, part, key)
        elif kind is not None and not part.is_bytes:
            into[key] = kind, str(_signed(part.value) if kind == "int64_param" else part.value)


def _add_parameters(fields: dict[str, Sequence[object]], parameters: Mapping[str, tuple[str, object]]) -> None:
    """Those of the kind that they should have: of others, Triton says what is wrong."""
    if not parameters:
        return
    lists: dict[str, list[object]] = {kind: [] for kind in _KINDS.values()}
    keys = []
    for key, (kind, value) in parameters.items():
        if kind == KIND_OF_PARAMETER.get(key) or (key == "sequence_id" and kind in _OF_SEQUENCE_ID):
            keys.append(key)
            lists[kind].append(value)
    fields["parameters.key"] = keys
    fields |= {f"parameters.value.{kind}": values for kind, values in lists.items()}
