"""How production hands a request to the library: one block of 64-bit slots, written and read by their numbers."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.core.bounds import MAX_FALLBACKS
from balancer.core.kernel.reports import BATCH_COLUMNS, LINE_COLUMNS
from balancer.native.record import Record

(
    MODEL, ROWS, KEY, KEYED, DEADLINE_S, PRIORITY, NUMBER, NOW_S, SEED,
    PICKED, SERVED, LATENCY_S, OK, SHARE, LINES, BATCHES, BALANCERS, PROPENSITY, FALLBACKS,
) = range(19)  # fmt: skip
MOST_LINES, MOST_BATCHES = 64, 512
"""Of a report that the library takes; Python takes what is larger."""
SLOTS = FALLBACKS + MAX_FALLBACKS
ASKED = struct.Struct("=qdQdddQdQ")
"""The slots from `MODEL` to `SEED`."""


class Call(NamedTuple):
    """The slots, as numbers of each kind: three views of one block."""

    numbers: npt.NDArray[np.float64]
    wholes: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]
    lines: npt.NDArray[np.float64]
    """Of a report, see `balancer.core.kernel.reports`."""
    batches: npt.NDArray[np.float64]


def new_call() -> tuple[bytearray, Call, Record]:
    """All slots at zero: as bytes, as numbers, and the record that the library takes."""
    slots = bytearray(8 * SLOTS)
    words = np.frombuffer(slots, np.uint64)
    report = np.zeros((MOST_LINES, LINE_COLUMNS)), np.zeros((MOST_BATCHES, BATCH_COLUMNS))
    call = Call(words.view(np.float64), words.view(np.int64), words, *report)
    return slots, call, Record(call)


def symbol_of(name: str) -> str:
    """The entry of an answer."""
    return "answer_" + "".join(letter if letter.isalnum() else "_" for letter in name)
