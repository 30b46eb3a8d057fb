"""Arrays in one contiguous block of memory, which another process can map; pure: a buffer comes in, arrays go out.

A block begins with a header and a table that tells where each array lies, by its distance from the block's start, so
that the block may lie at another address elsewhere. Numbers are in the machine's own order. Nothing in here is atomic:
one process writes, and who else reads or writes has to agree with it on when.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.kernel.state import AnyArray

Memory = Callable[[int], Any]
"""Gives as many bytes, zeros, as a buffer that can be written to; aligned to `ALIGNED_TO`."""

MAGIC = int.from_bytes(b"balancer", "little")
ABI = 1
"""Of header and table: grows when they change. What the arrays are is told by the stamp."""
ALIGNED_TO = 64
MOST_AXES = 3
FLEET_STATE, OPTIONS = 1, 2
"""Kinds of blocks."""

Declared = dict[str, tuple[str, int, str]]
"""Fields: type, how many of it, what it says. Of texts, `how many` are the bytes."""
OF_HEADER: Declared = {
    "magic": ("u8", 1, "tells a block; written last"),
    "abi": ("u8", 1, "of header and table"),
    "stamp": ("S", 16, "of the sources that declare the arrays; no zero at its end"),
    "kind": ("u8", 1, "fleet state or options"),
    "bytes": ("u8", 1, "of the whole block"),
    "generation": ("u8", 1, "grows whenever arrays are laid out anew, over all blocks of a fleet"),
    "in_force": ("u8", 1, "0 once another block has taken its place"),
    "workers": ("u8", 1, "that there are; of options: 0"),
    "models": ("u8", 1, "columns of models; column 0 is for what has none of its own"),
    "room_workers": ("u8", 1, "that there may be without another block; of options: that they are for"),
    "room_models": ("u8", 1, "that there may be without another block"),
    "arrays": ("u8", 1, "in the table, which follows"),
    "reserved": ("u8", 3, "zeros"),
    "entry": ("S", 128, "of options: the function that takes them, without balancer_"),
}
OF_ARRAY: Declared = {
    "offset": ("u8", 1, "bytes from the block's start"),
    "room_bytes": ("u8", 1, "that the array may take"),
    "type": ("u8", 1, "'f' double, 'u' uint64_t, 'b' bool of one byte"),
    "axes": ("u8", 1, "that it has"),
    "shape": ("i8", MOST_AXES, "0 beyond its axes"),
    "strides": ("i8", MOST_AXES, "bytes; arrays have no gaps"),
}


def _dtype_of(declared: Declared) -> np.dtype[Any]:
    fields: list[Any] = [
        (name, f"S{count}") if kind == "S" else (name, kind, count) if count > 1 else (name, kind)
        for name, (kind, count, _) in declared.items()
    ]
    return np.dtype(fields)


HEADER, ENTRY = _dtype_of(OF_HEADER), _dtype_of(OF_ARRAY)
"""A block's header, and what its table has of each array."""

# Arrays at distances of a power of two would all share a few sets of the processor's cache.
_GAP = 13 * ALIGNED_TO


class FleetSizes(NamedTuple):
    """How many there are, or may be."""

    workers: int
    models: int


class ArrayPlace(NamedTuple):
    """An array to be placed."""

    dtype: np.dtype[Any]
    room_bytes: int


def ordinary_memory(size_bytes: int) -> AnyArray:
    """Of this process alone."""
    memory = np.zeros(size_bytes + ALIGNED_TO, np.uint8)
    start = -memory.ctypes.data % ALIGNED_TO
    return memory[start : start + size_bytes]


class Block:
    """A block that this process writes. Arrays are without gaps, from their place on."""

    def __init__(
        self,
        parts: Mapping[str, ArrayPlace],
        room: FleetSizes,
        memory: Memory = ordinary_memory,
        *,
        kind: int = FLEET_STATE,
        stamp: str = "",
        entry: str = "",
    ) -> None:
        self.room = room
        self.arrays: dict[str, AnyArray] = {}
        self._parts = parts
        self._offsets: dict[str, int] = {}
        end = _aligned(HEADER.itemsize + len(parts) * ENTRY.itemsize)
        for name, part in parts.items():
            self._offsets[name] = end
            end += _aligned(part.room_bytes) + _GAP
        self.buffer = memory(end)
        """What `memory` gave."""
        self._bytes = np.frombuffer(self.buffer, np.uint8)
        self.header, self._table = head(self.buffer, len(parts))
        for field, value in {
            **{"abi": ABI, "stamp": stamp.encode(), "kind": kind, "bytes": end, "arrays": len(parts)},
            **{"room_workers": room.workers, "room_models": room.models, "entry": entry.encode()},
        }.items():
            self.header[field] = value
        self._table["offset"] = list(self._offsets.values())
        self._table["room_bytes"] = [part.room_bytes for part in parts.values()]
        self._table["type"] = [ord(part.dtype.kind) for part in parts.values()]

    def view(self, name: str, shape: tuple[int, ...]) -> AnyArray:
        """The array of that shape at the place of `name`, with what is there."""
        part = self._parts[name]
        array: AnyArray = np.ndarray(shape, part.dtype, self._bytes, self._offsets[name])
        assert array.nbytes <= part.room_bytes
        return array

    def lay_out(self, arrays: dict[str, AnyArray], sizes: FleetSizes, generation: int) -> None:
        """Say that these are the arrays, all of them, made by `view`."""
        self.arrays = arrays
        self._table["axes"] = [array.ndim for array in arrays.values()]
        self._table["shape"] = [_padded(array.shape) for array in arrays.values()]
        self._table["strides"] = [_padded(array.strides) for array in arrays.values()]
        self.header["workers"], self.header["models"] = sizes
        self.header["generation"], self.header["in_force"] = generation, 1
        # The last, so that no block is taken for one before it is.
        self.header["magic"] = MAGIC

    @property
    def generation(self) -> int:
        """Of the layout; 0: none yet."""
        return int(self.header["generation"])

    def replaced(self) -> None:
        """Another block takes its place."""
        self.header["in_force"] = 0


def _aligned(count: int) -> int:
    return -(-count // ALIGNED_TO) * ALIGNED_TO


def _padded(numbers: Sequence[int]) -> tuple[int, ...]:
    return (*numbers, *(0,) * (MOST_AXES - len(numbers)))


def head(buffer: Any, count: int) -> tuple[Any, npt.NDArray[Any]]:
    """Header and table of a block."""
    return (
        np.frombuffer(buffer, HEADER, 1)[0:1].reshape(()),
        np.frombuffer(buffer, ENTRY, count, HEADER.itemsize),
    )
