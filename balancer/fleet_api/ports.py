"""Asks one worker by gRPC, as a client would; its messages as plain data and back, so that both protocols' answers are
combined by one rule."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2

from balancer.channels import restricted
from balancer.channels.channels import Channels, UnknownWorkerError
from balancer.channels.restricted import Headers
from balancer.extproc.kserve import SERVICE
from balancer.fleet_api.fan_out import FailedError, Failure

_METHODS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
REQUESTS: Mapping[str, type[Message]] = {name: GetMessageClass(its.input_type) for name, its in _METHODS.items()}
RESPONSES: Mapping[str, type[Message]] = {name: GetMessageClass(its.output_type) for name, its in _METHODS.items()}


def gone(worker: str) -> FailedError:
    """Of a worker that has left since."""
    return FailedError(Failure(grpc.StatusCode.UNAVAILABLE, f"{worker} is not listed any more"))


async def ask(channels: Channels, worker: str, method: str, request: Message, headers: Headers = ()) -> Any:
    """One worker's answer.

    Raises:
        FailedError: what it said in place of one.
    """
    try:
        # With the methods' own serializers, a message that is none would end in gRPC's words.
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channels.of(worker).unary_unary(f"{SERVICE}{method}")
        return RESPONSES[method].FromString(await call(request.SerializeToString(), metadata=headers))
    except UnknownWorkerError as error:
        raise gone(worker) from error
    except grpc.aio.AioRpcError as error:
        words = error.details() or ""
        raise FailedError(Failure(error.code(), words, restricted.status_of(words))) from error
    except DecodeError as error:
        raise FailedError(Failure(grpc.StatusCode.INTERNAL, f"{worker} answered what is no answer")) from error


def plain(message: Message) -> dict[str, Any]:
    """Its fields by name, but for what can be absent and is; numbers as such, which protobuf's JSON has as text."""
    return {
        field.name: _value(getattr(message, field.name), field)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(value: Any, field: FieldDescriptor) -> Any:
    of_message = field.message_type is not None
    if of_message and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {key: _value(value[key], inner) for key in value}
    if field.is_repeated:
        return [plain(each) if of_message else each for each in value]
    if of_message:
        return plain(value)
    return base64.b64encode(value).decode() if field.type == FieldDescriptor.TYPE_BYTES else value


def message(of: type[Message], content: dict[str, Any]) -> Message:
    return json_format.ParseDict(content, of())
