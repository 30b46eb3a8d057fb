"""Reads a block of memory as another process would that is handed it: the layout is the block's own table."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from balancer.kernel.block import head
from balancer.kernel.fleet_state import FIELDS, KINDS, RECORDS
from balancer.kernel.state import AnyArray

_DTYPES = {ord(dtype.kind): dtype for dtype in (np.dtype(np.float64), np.dtype(np.uint64), np.dtype(np.bool_))}


def read(buffer: Any, names: Sequence[str]) -> tuple[Any, dict[str, AnyArray]]:
    """Header and arrays of a block that somebody else laid out."""
    header, table = head(buffer, len(names))
    found = np.frombuffer(buffer, np.uint8)
    return header, {
        name: np.ndarray(entry["shape"][: entry["axes"]], _DTYPES[int(entry["type"])], found, int(entry["offset"]))
        for name, entry in zip(names, table, strict=True)
    }


def fleet_states_in(buffer: Any) -> Any:
    """The fleet's state in a block that another process laid out."""
    _, arrays = read(buffer, list(FIELDS))
    return SimpleNamespace(
        **{
            record: kind(**{name: arrays[f"{record}.{name}"] for name in RECORDS[record]})
            for record, kind in KINDS.items()
        }
    )
