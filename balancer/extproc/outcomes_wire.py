"""Messages of Envoy's access log, also where a client got text into them that is none.

Envoy writes x-request-id as it came, and protobuf refuses a whole message for one byte that is not UTF-8: the outcomes
of others in it would be lost, and their requests would count in flight until they expire. So where a message cannot be
read, each of its entries is read by itself, and in one that cannot be read either, the fields that quote headers of the
request are left out where they are no text.
"""

from __future__ import annotations

from collections.abc import Iterator

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_QUOTED = {"common_properties": {"stream_id"}, "request": {"request_id", "request_headers"}}
"""Fields of the parts of an entry that repeat what a client sent as it came; Envoy mends the others itself."""


def _number(message: Descriptor, field: str) -> int:
    return int(message.fields_by_name[field].number)


_MESSAGE = als_pb2.StreamAccessLogsMessage
_IDENTIFIER = _number(_MESSAGE.DESCRIPTOR, "identifier")
_HTTP_LOGS = _number(_MESSAGE.DESCRIPTOR, "http_logs")
_LOG_ENTRY = _number(_MESSAGE.HTTPAccessLogEntries.DESCRIPTOR, "log_entry")
_ENTRY = accesslog_pb2.HTTPAccessLogEntry.DESCRIPTOR
_QUOTED_NUMBERS = {
    _number(_ENTRY, part): {_number(_ENTRY.fields_by_name[part].message_type, field) for field in fields}
    for part, fields in _QUOTED.items()
}


def read_message(data: bytes) -> als_pb2.StreamAccessLogsMessage:
    """Parse a message of the access log service.

    Raises:
        DecodeError: it is none, or an entry cannot be read even without what it quotes.
    """
    try:
        return _MESSAGE.FromString(data)
    except DecodeError:
        message = _MESSAGE()
        for number, _, logs in fields(data):
            if number == _IDENTIFIER:
                message.identifier.MergeFromString(logs)
            for inner, _, entry in fields(logs) if number == _HTTP_LOGS else ():
                if inner == _LOG_ENTRY:
                    message.http_logs.log_entry.append(_entry(entry))
        if not message.http_logs.log_entry:
            raise
        return message


def _entry(data: bytes) -> accesslog_pb2.HTTPAccessLogEntry:
    try:
        return accesslog_pb2.HTTPAccessLogEntry.FromString(data)
    except DecodeError:
        return accesslog_pb2.HTTPAccessLogEntry.FromString(_without_quotes(data))


def _without_quotes(entry: bytes) -> bytes:
    kept = bytearray()
    for number, raw, content in fields(entry):
        quoted = _QUOTED_NUMBERS.get(number)
        if quoted is None:
            kept += raw
            continue
        part = b"".join(inner for field, inner, text in fields(content) if field not in quoted or _is_text(text))
        kept += raw[:1] + _varint(len(part)) + part
    return bytes(kept)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Each field of a serialised message: its number, the whole of it, and its content where that has a length.

    Source: https://protobuf.dev/programming-guides/encoding.

    Raises:
        DecodeError: it is no serialised message.
    """
    position = 0
    while position < len(data):
        start = position
        tag, position = _read_varint(data, position)
        kind, content = tag & 7, b""
        if kind == _VARINT:
            _, position = _read_varint(data, position)
        elif kind == _LENGTH_DELIMITED:
            size, position = _read_varint(data, position)
            content = data[position : position + size]
            position += size
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError("a field is of a kind that is not known")
        if position > len(data):
            raise DecodeError("a field is longer than the message")
        yield tag >> 3, data[start:position], content


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise DecodeError("a number is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DecodeError("a number has more than 64 bits")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
