"""What transactions of Kafka took back. Brokers name it beside the records, for `read_committed`; Tansu marks it only.

https://kafka.apache.org/protocol (Fetch, version 4), https://kafka.apache.org/documentation/#recordbatch.
"""

import socket
import struct
from collections import defaultdict

_FETCH, _VERSION, _MOST_BYTES, _WAIT_MS = 1, 4, 2**24, 500
_READ_COMMITTED = 1
_TRANSACTIONAL, _CONTROL = 1 << 4, 1 << 5
_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Of a record batch: base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and last
timestamp, producer id, producer epoch, base sequence, record count."""
_LENGTH_ENDS, _KEY_BEGINS = 12, 5


class Aborted:
    """Offsets of one partition that were taken back."""

    def __init__(self, port: int, topic: str, partition: int) -> None:
        self._port, self._topic, self._partition = port, topic.encode(), partition
        self._next, self._open = 0, defaultdict[int, set[int]](set)
        self._offsets: set[int] = set()

    def before(self, end: int) -> set[int]:
        """Those before this one, up to where all is decided."""
        while self._next < end and (batches := self._fetched()):
            at = 0
            while at + _HEADER.size <= len(batches):
                first, length, *_, attributes, further, _, _, producer, _, _, _ = _HEADER.unpack_from(batches, at)
                if attributes & _CONTROL:
                    _, commits = struct.unpack_from(">hh", batches, at + _HEADER.size + _KEY_BEGINS)
                    ended = self._open.pop(producer, set())
                    self._offsets |= set() if commits else ended
                elif attributes & _TRANSACTIONAL:
                    self._open[producer] |= {*range(first, first + further + 1)}
                self._next = first + further + 1
                at += _LENGTH_ENDS + length
        return self._offsets

    def _fetched(self) -> bytes:
        topic = struct.pack(">h", len(self._topic)) + self._topic
        asked = struct.pack(">hhih", _FETCH, _VERSION, 0, 0) + struct.pack(
            ">iiiibi", -1, _WAIT_MS, 1, _MOST_BYTES, _READ_COMMITTED, 1
        )
        asked += topic + struct.pack(">iiqi", 1, self._partition, self._next, _MOST_BYTES)
        with socket.create_connection(("127.0.0.1", self._port), 10) as connection, connection.makefile("rb") as said:
            connection.sendall(struct.pack(">i", len(asked)) + asked)
            (size,) = struct.unpack(">i", said.read(4))
            answer = said.read(size)
        # Correlation, throttling, one topic by its name, one partition: error, two watermarks, and what was aborted.
        at = 12 + len(topic) + 4
        if len(answer) < at:
            return b""
        _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, at)
        assert error == 0
        at += 26 + 16 * max(aborted, 0)
        return answer[at + 4 : at + 4 + max(0, struct.unpack_from(">i", answer, at)[0])]
