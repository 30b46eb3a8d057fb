"""Reads a block of memory as another process would that is handed it: the layout is the block's own table."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from balancer.kernel.block import ABI, ENTRY, FLEET_STATE, HEADER, MAGIC, MOST_AXES, head
from balancer.kernel.fleet_state import FIELDS, KINDS, RECORDS
from balancer.kernel.state import AnyArray, FleetState


class BlockError(Exception):
    """The memory is no block that fits; the message says why."""


def read(buffer: Any, names: Sequence[str], *, kind: int, stamp: str) -> tuple[Any, dict[str, AnyArray]]:
    """Header and arrays of a block that somebody else laid out.

    Raises:
        BlockError: It is no block, of another version, kind or stamp, or its parts are not all within.
    """
    size = memoryview(buffer).nbytes
    if size < HEADER.itemsize or int(np.frombuffer(buffer, np.uint64, 1)[0]) != MAGIC:
        raise BlockError("no block")
    header = head(buffer, 0)[0]
    if header["abi"] != ABI:
        raise BlockError(f"a block of version {header['abi']}, and this is {ABI}")
    if header["stamp"] != stamp.encode():
        raise BlockError(f"a block of the sources {bytes(header['stamp']).decode()!r}, and these are {stamp!r}")
    if header["kind"] != kind or header["arrays"] != len(names):
        raise BlockError(
            f"a block of kind {header['kind']} with {header['arrays']} arrays, not {kind} with {len(names)}"
        )
    if header["bytes"] > size or HEADER.itemsize + len(names) * ENTRY.itemsize > size:
        raise BlockError(f"a block of {header['bytes']} bytes, of which {size} are there")
    arrays = {}
    for name, entry in zip(names, head(buffer, len(names))[1].copy(), strict=True):
        axes, dtype = int(entry["axes"]), _DTYPES.get(int(entry["type"]))
        shape = tuple(int(length) for length in entry["shape"][:axes])
        if dtype is None or axes > MOST_AXES or min(shape, default=0) < 0:
            raise BlockError(f"{name} is no array")
        try:
            arrays[name] = np.ndarray(shape, dtype, np.frombuffer(buffer, np.uint8), int(entry["offset"]))
        except (TypeError, ValueError, OverflowError) as error:
            raise BlockError(f"{name} is not within the block") from error
    return header, arrays


_DTYPES = {ord(dtype.kind): dtype for dtype in (np.dtype(np.float64), np.dtype(np.uint64), np.dtype(np.bool_))}


def fleet_states_in(buffer: Any, stamp: str) -> FleetState:
    """The fleet's state in a block that another process laid out; looked up anew when the block's generation changes.

    Raises:
        BlockError: They do not fit.
    """
    _, arrays = read(buffer, list(FIELDS), kind=FLEET_STATE, stamp=stamp)
    records = {
        record: kind(**{name: arrays[f"{record}.{name}"] for name in RECORDS[record]}) for record, kind in KINDS.items()
    }
    fleet_state: Any = SimpleNamespace(**records)
    found: FleetState = fleet_state
    return found
