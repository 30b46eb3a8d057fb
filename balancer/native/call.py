"""How production hands a request to the library: one block of 64-bit slots, written and read by their numbers."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.native.record import Record

(
    MODEL, ROWS, KEY, KEYED, DEADLINE_S, PRIORITY, NUMBER, NOW_S, SEED,
    PICKED, SERVED, LATENCY_S, OK, SHARE, PROPENSITY, FALLBACKS,
) = range(16)  # fmt: skip
MOST_FALLBACKS = 8
SLOTS = FALLBACKS + MOST_FALLBACKS
ASKED = struct.Struct("=qdQdddQdQ")
"""The slots from `MODEL` to `SEED`."""


class Call(NamedTuple):
    """The slots, as numbers of each kind: three views of one block."""

    numbers: npt.NDArray[np.float64]
    wholes: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]


def new_call() -> tuple[bytearray, Call, Record]:
    """All slots at zero: as bytes, as numbers, and the record that the library takes."""
    slots = bytearray(8 * SLOTS)
    words = np.frombuffer(slots, np.uint64)
    call = Call(words.view(np.float64), words.view(np.int64), words)
    return slots, call, Record(call)


def symbol_of(name: str) -> str:
    """The entry of an answer."""
    return "answer_" + "".join(letter if letter.isalnum() else "_" for letter in name)
