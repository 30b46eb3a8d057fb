"""The outermost fields of a protobuf message, found by skipping over what they hold: tensors are never read.

Whatever a client sends is walked through here, so the number of fields is bounded: each costs the same, however small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from balancer.bounds import OutOfBoundsError
from balancer.kernel.python_kernel import new_tuple

MOST_FIELDS = 4096
"""Of one message; one inference has one for each tensor, parameter and output, and some more."""
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of the kinds that have always as many."""
_MOST_VARINT_BYTES = 10


class WireField(NamedTuple):
    number: int
    begin: int
    """Of the field, with its tag."""
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
    """What precedes the bytes of such a field."""
    return _number(number << 3 | _BYTES) + _number(size_bytes)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
