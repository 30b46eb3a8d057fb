"""The outermost fields of a protobuf message, found by skipping over what they hold: tensors are never read.

Whatever a client sends is walked through here, so the number of fields is bounded: each costs the same, however small.

Messages of Envoy's access log are read here where a client got text into them that is none: Envoy writes x-request-id
as it came, and protobuf refuses a whole message for one byte that is not UTF-8. The outcomes of others in it would be
lost, and their requests would count in flight until they expire. So each entry is then read by itself, and in one that
cannot be read either, the fields that quote headers of the request are left out where they are no text.
"""

from collections.abc import Iterator
from typing import NamedTuple

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from balancer.bounds import OutOfBoundsError
from balancer.kernel.python_kernel import new_tuple

MOST_FIELDS = 4096
"""Of one message; one inference has one for each tensor, parameter and output, and some more."""
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_MOST_VARINT_BYTES = 10


class WireField(NamedTuple):
    number: int
    begin: int
    start: int
    """Of what it holds; of a number, its first byte."""
    end: int
    value: int
    """Of a number; 0 for what holds bytes."""
    is_bytes: bool


class WireError(OutOfBoundsError):
    """Bytes that are no protobuf message."""

    def __init__(self, field: str = "message", value: object = "", rule: str = "is a protobuf message") -> None:
        super().__init__(field, value, rule)


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, and where it ends; WireError where it does not before `end`."""
    value = shift = 0
    for place in range(at, min(end, at + _MOST_VARINT_BYTES)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise WireError


def parts(data: bytes, start: int = 0, end: int | None = None, most: int = MOST_FIELDS) -> Iterator[WireField]:
    """The fields of the message between `start` and `end`, in their order; WireError where it is none."""
    stop = len(data) if end is None else end
    at, left = start, most
    while at < stop:
        left -= 1
        if left < 0:
            raise WireError("message", most + 1, f"has {most} fields at most")
        begin = at
        tag = data[at]
        # Most tags and many lengths are one byte: reading them here takes a third of the time.
        if tag < 0x80:
            at += 1
        else:
            tag, at = varint(data, at, stop)
        number, kind, value, from_ = tag >> 3, tag & 7, 0, at
        if kind == _BYTES:
            if at < stop and data[at] < 0x80:
                from_ = at + 1
                at = from_ + data[at]
            else:
                size, from_ = varint(data, at, stop)
                at = from_ + size
        elif kind == _VARINT:
            value, at = varint(data, at, stop)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise WireError
        if at > stop or not number:
            raise WireError
        yield new_tuple(WireField, (number, begin, from_, at, value, kind == _BYTES))


def text(data: bytes, part: WireField, field: str) -> str:
    """What a field holds, as text; refused where it is not UTF-8."""
    held = data[part.start : part.end]
    try:
        return held.decode()
    except UnicodeDecodeError:
        raise OutOfBoundsError(field, held.decode("latin-1"), "is UTF-8") from None


def tagged(number: int, value: bytes) -> bytes:
    return head(number, len(value)) + value


def head(number: int, size_bytes: int) -> bytes:
    return _number(number << 3 | _BYTES) + _number(size_bytes)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_QUOTED = {"common_properties": {"stream_id"}, "request": {"request_id", "request_headers"}}
"""Fields of the parts of an entry that repeat what a client sent as it came; Envoy mends the others itself."""


def _field_number(message: Descriptor, field: str) -> int:
    return int(message.fields_by_name[field].number)


_MESSAGE = als_pb2.StreamAccessLogsMessage
_IDENTIFIER = _field_number(_MESSAGE.DESCRIPTOR, "identifier")
_HTTP_LOGS = _field_number(_MESSAGE.DESCRIPTOR, "http_logs")
_LOG_ENTRY = _field_number(_MESSAGE.HTTPAccessLogEntries.DESCRIPTOR, "log_entry")
_ENTRY = accesslog_pb2.HTTPAccessLogEntry.DESCRIPTOR
_QUOTED_NUMBERS = {
    _field_number(_ENTRY, part): {_field_number(_ENTRY.fields_by_name[part].message_type, field) for field in fields}
    for part, fields in _QUOTED.items()
}


def read_message(data: bytes) -> als_pb2.StreamAccessLogsMessage:
    """Parse a message of the access log service.

    Raises:
        DecodeError: it is none, or an entry cannot be read even without what it quotes.
    """
    try:
        return _MESSAGE.FromString(data)
    except DecodeError as error:
        try:
            message = _read_apart(data)
        except WireError as refused:
            raise DecodeError(str(refused)) from error
        if not message.http_logs.log_entry:
            raise
        return message


def _read_apart(data: bytes) -> als_pb2.StreamAccessLogsMessage:
    message = _MESSAGE()
    for part in parts(data, most=len(data)):
        if part.number == _IDENTIFIER:
            message.identifier.MergeFromString(data[part.start : part.end])
        elif part.number == _HTTP_LOGS:
            for inner in parts(data, part.start, part.end, len(data)):
                if inner.number == _LOG_ENTRY:
                    message.http_logs.log_entry.append(_entry(data[inner.start : inner.end]))
    return message


def _entry(data: bytes) -> accesslog_pb2.HTTPAccessLogEntry:
    try:
        return accesslog_pb2.HTTPAccessLogEntry.FromString(data)
    except DecodeError:
        return accesslog_pb2.HTTPAccessLogEntry.FromString(_without_quotes(data))


def _without_quotes(entry: bytes) -> bytes:
    kept = []
    for part in parts(entry, most=len(entry)):
        quoted = _QUOTED_NUMBERS.get(part.number)
        if quoted is None:
            kept.append(entry[part.begin : part.end])
            continue
        readable = [
            entry[inner.begin : inner.end]
            for inner in parts(entry, part.start, part.end, len(entry))
            if inner.number not in quoted or _is_text(entry[inner.start : inner.end])
        ]
        kept.append(tagged(part.number, b"".join(readable)))
    return b"".join(kept)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
