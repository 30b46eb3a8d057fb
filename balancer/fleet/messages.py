"""Messages of KServe v2 as plain data and back, so that both protocols' answers are combined by one rule."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Plain = Any


def plain(message: Message) -> dict[str, Plain]:
    """Its fields by name, but for what can be absent and is; numbers as such, which protobuf's JSON has as text."""
    return {
        field.name: _value(getattr(message, field.name), field)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(value: Any, field: FieldDescriptor) -> Plain:
    of_message = field.message_type is not None
    if of_message and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {key: _value(value[key], inner) for key in value}
    if field.is_repeated:
        return [plain(each) if of_message else each for each in value]
    if of_message:
        return plain(value)
    return base64.b64encode(value).decode() if field.type == FieldDescriptor.TYPE_BYTES else value


def message(of: type[Message], content: dict[str, Plain]) -> Message:
    """The message of plain data."""
    return json_format.ParseDict(content, of())
