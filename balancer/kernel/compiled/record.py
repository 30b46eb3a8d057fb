"""Records of arrays as compiled code sees them: one pointer, whatever is in them.

A record is a block of 64-bit words: an array's address, shape and strides; a whole number; the address of a nested
record. Whoever maps the block can read it, see `numba_records.py` for how compiled code does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from balancer.kernel.fleet_state import RECORDS


class Record:
    """The block of a record with the fields named; keeps the arrays alive.

    Args:
        record: Anything whose attributes are arrays, whole numbers and such records.
        fields: Names of the attributes; by default, those of a named tuple.
    """

    address: int
    """Of the block."""

    def __init__(self, record: Any, fields: tuple[str, ...] = ()) -> None:
        self.fields = fields or fields_of(record)
        self.values = [getattr(record, name) for name in self.fields]
        self.parts: list[Record] = []
        """Nested records."""
        words: list[int] = []
        self.places: list[int] = []
        """The first word of each field."""
        for value in self.values:
            self.places.append(len(words))
            if isinstance(value, np.ndarray):
                words += [value.ctypes.data, *value.shape, *value.strides]
            elif isinstance(value, int):
                words.append(value)
            else:
                part = self._part(value)
                self.parts.append(part)
                words.append(part.address)
        self.size = len(words)
        self._block = np.array(words, np.int64)
        self.address = int(self._block.ctypes.data)

    @classmethod
    def _part(cls, value: Any) -> Record:
        """Of a nested record."""
        return cls(value)


def fields_of(record: Any) -> tuple[str, ...]:
    """Names of the fields of a named tuple or a dataclass, in order."""
    names = getattr(record, "_fields", None) or record.__dataclass_fields__
    return tuple(names)


FLEET_STATE = tuple(RECORDS)
"""Fields of `balancer.kernel.state.FleetState`, in order."""
