"""Messages of Envoy's access log, also where a client got text into them that is none.

Envoy writes x-request-id as it came, and protobuf refuses a whole message for one byte that is not UTF-8: the outcomes
of others in it would be lost, and their requests would count in flight until they expire. So where a message cannot be
read, each of its entries is read by itself, and in one that cannot be read either, the fields that quote headers of the
request are left out where they are no text.
"""

from __future__ import annotations

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from balancer.extproc import wire

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
    except DecodeError as error:
        try:
            message = _read_apart(data)
        except wire.WireError as refused:
            raise DecodeError(str(refused)) from error
        if not message.http_logs.log_entry:
            raise
        return message


def _read_apart(data: bytes) -> als_pb2.StreamAccessLogsMessage:
    message = _MESSAGE()
    for part in wire.parts(data, most=len(data)):
        if part.number == _IDENTIFIER:
            message.identifier.MergeFromString(data[part.start : part.end])
        elif part.number == _HTTP_LOGS:
            for inner in wire.parts(data, part.start, part.end, len(data)):
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
    for part in wire.parts(entry, most=len(entry)):
        quoted = _QUOTED_NUMBERS.get(part.number)
        if quoted is None:
            kept.append(entry[part.begin : part.end])
            continue
        readable = [
            entry[inner.begin : inner.end]
            for inner in wire.parts(entry, part.start, part.end, len(entry))
            if inner.number not in quoted or _is_text(entry[inner.start : inner.end])
        ]
        kept.append(wire.tagged(part.number, b"".join(readable)))
    return b"".join(kept)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
