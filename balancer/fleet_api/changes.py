"""Changes as Triton's HTTP interface has them, as messages of gRPC, and the answers back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from balancer.fleet_api.fan_out import FailedError, Failure
from balancer.fleet_api.ports import REQUESTS, plain

Plain = Any
_FILE = "file:"
"""Begins a parameter of a load that is the content of a file."""


def refused(words: str) -> FailedError:
    return FailedError(Failure(grpc.StatusCode.INVALID_ARGUMENT, words))


def read_object(body: bytes) -> dict[str, Plain]:
    """A body, which may be empty."""
    if not body.strip():
        return {}
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise refused(f"failed to parse the request JSON buffer: {error}") from error
    if not isinstance(content, dict):
        raise refused("failed to parse the request JSON buffer: it is no object")
    return content


def request_of(call: str, name: str, body: bytes) -> Message:
    """The message of a change.

    Raises:
        FailedError: the body does not fit; the words say which member.
    """
    content = read_object(body)
    request = REQUESTS[call]()
    try:
        _FILLED[call](request, name, content)
    except (ValueError, TypeError, AttributeError, KeyError, binascii.Error, OverflowError) as error:
        # The messages know the types, so what they refuse is what does not fit.
        raise refused(f"{call}: its JSON does not fit: {error}") from error
    return request


def _repository(request: Any, name: str, content: Mapping[str, Plain]) -> None:
    request.model_name = name
    for key, value in content.get("parameters", {}).items():
        parameter = request.parameters[key]
        if key.startswith(_FILE):
            parameter.bytes_param = base64.b64decode(value, validate=True)
        elif isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        else:
            parameter.string_param = value


def _log(request: Any, _: str, content: Mapping[str, Plain]) -> None:
    for key, value in content.items():
        if isinstance(value, bool):
            request.settings[key].bool_param = value
        elif isinstance(value, int):
            request.settings[key].uint32_param = value
        else:
            request.settings[key].string_param = value


def _trace(request: Any, name: str, content: Mapping[str, Plain]) -> None:
    request.model_name = name
    for key, value in content.items():
        # Without a value, the model's goes back to the server's.
        request.settings[key].SetInParent()
        if value is not None:
            request.settings[key].value.extend(value if isinstance(value, list) else [value])


def _system(request: Any, name: str, content: Mapping[str, Plain]) -> None:
    request.name, request.key, request.byte_size = name, content["key"], content["byte_size"]
    request.offset = content.get("offset", 0)


def _cuda(request: Any, name: str, content: Mapping[str, Plain]) -> None:
    request.raw_handle = base64.b64decode(content["raw_handle"]["b64"], validate=True)
    request.name, request.device_id, request.byte_size = name, content["device_id"], content["byte_size"]


def _unregister(request: Any, name: str, _: Mapping[str, Plain]) -> None:
    request.name = name


_FILLED: Mapping[str, Callable[[Any, str, Mapping[str, Plain]], None]] = {
    "RepositoryModelLoad": _repository,
    "RepositoryModelUnload": _repository,
    "LogSettings": _log,
    "TraceSetting": _trace,
    "SystemSharedMemoryRegister": _system,
    "CudaSharedMemoryRegister": _cuda,
    "SystemSharedMemoryUnregister": _unregister,
    "CudaSharedMemoryUnregister": _unregister,
}


def answer_of(call: str, message: Message) -> bytes:
    if call == "LogSettings":
        settings = plain(message)["settings"]
        return written({key: next(iter(value.values()), None) for key, value in settings.items()})
    if call == "TraceSetting":
        settings = plain(message)["settings"]
        return written({key: _of_trace(key, value["value"]) for key, value in settings.items()})
    return b""


def _of_trace(key: str, values: list[str]) -> Plain:
    return values if key == "trace_level" else next(iter(values), "")


def written(content: Plain) -> bytes:
    """JSON as Triton writes it."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
