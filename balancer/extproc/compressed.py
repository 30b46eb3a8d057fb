"""The fields of a gRPC message that may be compressed, which Envoy cannot extract: read as it comes, within bounds.

What stands before the tensors decides, and nothing is kept of the rest. It is inflated to its end all the same: a field
that decides must not come again behind them, as the last is the one that a worker takes.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Iterator, Sequence

from balancer import bounds
from balancer.bounds import OutOfBoundsError, RefusedInputError
from balancer.extproc import wire
from balancer.extproc.inference_bytes import FRAME_BYTES, Fields, first_dimension, read
from balancer.extproc.wire import WireError

_PIECE_BYTES = 2**18
_IDLE_BYTES = 2**17
"""Compressed, besides twice what they inflate to: blocks without content."""
_WINDOW = zlib.MAX_WBITS + 32
"""Of gzip and zlib, which the first byte tells apart."""
_HEAD_BYTES = 20
"""Of a field: its tag and its length, ten each at most."""
# Of ModelInferRequest; of the messages that ask about a model, the first two are name and version.
_NAMES = ("", "model_name", "model_version", "id", "parameters")
_PARAMETER, _INPUT, _OUTPUT, _CONTENTS = 4, 5, 6, 7
_INPUT_BYTES = 4096
"""Of an input, that are looked at for its shape."""
_VARINT, _FIXED_8, _BYTES, _FIXED_4 = 0, 1, 2, 5


def _refused(words: str, field: str = "message") -> RefusedInputError:
    return RefusedInputError(field, f"{field}: {words}, which is refused")


class CompressedMessage:
    def __init__(self, *, inference: bool) -> None:
        """`inference`: a ModelInferRequest; else one that asks about a model."""
        self._inference = inference
        self._frame = bytearray()
        self._left = 0
        self._unpacker: zlib._Decompress | None = None
        self._packed_bytes = self._inflated_bytes = 0
        self._buffer = bytearray()
        self._skip = 0
        self._read_bytes = 0
        self._tensors = False
        self._over = False
        self._kept = bytearray()
        self._parameters = self._count = 0
        self._rows: Sequence[object] = ()

    @property
    def is_decided(self) -> bool:
        return self._tensors or self._over

    async def feed(self, data: bytes) -> None:
        """The next bytes of the body; OutOfBoundsError: it must not go on."""
        if self._over:
            return
        missing = FRAME_BYTES - len(self._frame)
        if missing:
            self._frame += data[:missing]
            data = data[missing:]
            if len(self._frame) < FRAME_BYTES:
                return
            if self._frame[0] > 1:
                raise _refused("is in no frame of gRPC's")
            self._left = int.from_bytes(self._frame[1:], "big")
            self._unpacker = zlib.decompressobj(_WINDOW) if self._frame[0] else None
        data = data[: self._left]
        self._left -= len(data)
        for piece in self._inflated(data):
            self._scan(piece)
            # Others have their turn.
            await asyncio.sleep(0)
        if not self._left:
            if self._buffer or self._skip:
                raise WireError
            self._over = True

    def end(self) -> None:
        """The body is over; OutOfBoundsError: too early."""
        if not self.is_decided:
            raise _refused("ends before it is whole")

    def fields(self) -> Fields:
        found = read(bytes(self._kept)).fields
        if self._inference:
            return {**found, "inputs.shape": self._rows}
        return {"name": found["model_name"], "version": found["model_version"]}

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        unpacker = self._unpacker
        if unpacker is None:
            if data:
                yield data
            return
        self._packed_bytes += len(data)
        more = True
        while more:
            try:
                piece = unpacker.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise _refused("is not compressed by gzip or deflate") from error
            data = unpacker.unconsumed_tail
            self._inflated_bytes += len(piece)
            if self._inflated_bytes > bounds.MAX_INFLATED_BYTES:
                raise _refused(f"has more than {bounds.MAX_INFLATED_BYTES} bytes inflated")
            more = bool(data) or len(piece) == _PIECE_BYTES
            if piece:
                yield piece
        idle = self._packed_bytes > 2 * self._inflated_bytes + _IDLE_BYTES
        if idle or unpacker.unused_data or (not self._left and not unpacker.eof):
            raise _refused("is not compressed by gzip or deflate")

    def _scan(self, piece: bytes) -> None:
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        self._buffer += piece[skipped:]
        while self._buffer and not self._skip:
            size = self._field()
            if size is None:
                return
            self._count += 1
            if self._count > wire.MOST_FIELDS:
                raise WireError("message", self._count, f"has {wire.MOST_FIELDS} fields at most")
            self._read_bytes += size
            if not self._tensors and self._read_bytes > bounds.MAX_PREFIX_BYTES:
                raise _refused(f"has more than {bounds.MAX_PREFIX_BYTES} bytes before its tensors")
            self._skip = max(0, size - len(self._buffer))
            del self._buffer[:size]

    def _field(self) -> int | None:
        """Take the first field of what is there; how many bytes it has, None: it has not come as far as is needed."""
        buffer = self._buffer
        head = bytes(buffer[:_HEAD_BYTES])
        try:
            tag, at = wire.varint(head, 0, len(head))
            kind = tag & 7
            value, start = wire.varint(head, at, len(head)) if kind in (_VARINT, _BYTES) else (0, at)
        except WireError:
            # A number that is cut may still come.
            if len(head) == _HEAD_BYTES:
                raise
            return None
        number = tag >> 3
        if not number or kind not in (_VARINT, _FIXED_8, _BYTES, _FIXED_4):
            raise WireError
        if kind != _BYTES:
            return start + {_FIXED_8: 8, _FIXED_4: 4}.get(kind, 0)
        end = start + value
        decides = number < len(_NAMES) if self._inference else number <= 2
        if decides:
            return self._keep(number, start, end)
        if self._inference and number == _INPUT and not self._tensors:
            looked_at = min(end, start + _INPUT_BYTES)
            if len(buffer) < looked_at:
                return None
            with contextlib.suppress(OutOfBoundsError):  # what is looked at may be cut
                self._rows = self._rows or first_dimension(bytes(buffer), start, looked_at) or ()
            self._tensors = looked_at < end
        self._tensors = self._tensors or (self._inference and number in (_OUTPUT, _CONTENTS))
        return end

    def _keep(self, number: int, start: int, end: int) -> int | None:
        name = _NAMES[number] if self._inference else ("name", "version")[number - 1]
        if self._tensors:
            raise _refused("comes after the tensors", name)
        if end - start > bounds.MAX_FIELD_BYTES:
            raise _refused(f"has more than {bounds.MAX_FIELD_BYTES} bytes", name)
        if len(self._buffer) < end:
            return None
        if number == _PARAMETER:
            self._parameters += 1
            if self._parameters > bounds.MAX_PARAMETERS:
                raise OutOfBoundsError("parameters", self._parameters, f"counts {bounds.MAX_PARAMETERS} at most")
        self._kept += self._buffer[:end]
        return end
