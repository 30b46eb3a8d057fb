"""How production hands a request to the library: one block of 64-bit slots, written and read by their numbers."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.bounds import MAX_FALLBACKS
from balancer.kernel.fleet_state import RECORDS
from balancer.kernel.reports import BATCH_COLUMNS, LINE_COLUMNS


class Record:
    """The block of a record with the fields named; keeps the arrays alive.

    Args:
        record: Anything whose attributes are arrays, whole numbers and such records.
        fields: Names of the attributes; by default, those of a named tuple.
    """

    address: int

    def __init__(self, record: Any, fields: tuple[str, ...] = ()) -> None:
        self.fields = fields or fields_of(record)
        self.values = [getattr(record, name) for name in self.fields]
        self.parts: list[Record] = []
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
        return cls(value)


def fields_of(record: Any) -> tuple[str, ...]:
    names = getattr(record, "_fields", None) or record.__dataclass_fields__
    return tuple(names)


FLEET_STATE = tuple(RECORDS)


(
    MODEL, ROWS, KEY, KEYED, PROMPT_TOKENS, MAX_TOKENS, DEADLINE_S, PRIORITY, NUMBER, NOW_S, SEED, HOW, PICKED,
    SERVED, LATENCY_S, OK, SHARE, LINES, BATCHES, BALANCERS, BEGINS, TO_COMPUTE, AHEAD, BESIDE, OUTPUT_TOKENS,
    BID, REFUSED_AT, PROPENSITY, AMONG, NAMED, FALLBACKS,
) = range(31)  # fmt: skip
DECLARED = {
    "MODEL": ("q", "column of the request's model, below `models`"),
    "ROWS": ("d", "of its inputs; for a request that is counted, those that it was counted in with"),
    "KEY": ("Q", "routing key"),
    "KEYED": ("d", "1 where it has a key, else 0"),
    "PROMPT_TOKENS": ("d", "of its prompt, which begins as `checkpoint` of the fleet state says; 0: it has none"),
    "MAX_TOKENS": ("d", "most that the request allows its answer; 0: it sets no bound"),
    "DEADLINE_S": ("d", "seconds from now; infinite: none"),
    "PRIORITY": ("d", "as Triton counts: 1 is the highest, 0 the default"),
    "NUMBER": ("Q", "of the decision, below 2 to the 53; with `seed` it gives the draw"),
    "NOW_S": ("d", "the balancer's clock, seconds"),
    "SEED": ("Q", "of the draws, mixed"),
    "HOW": ("q", "a decision is made: one or more of FRESH to ONE; 0: the policy only answers"),
    "PICKED": ("q", "row of the worker that was picked, that may be, with ONE, or that reports; below `workers`"),
    "SERVED": ("q", "row of the worker that answered; -1: nobody known"),
    "LATENCY_S": ("d", "seconds; not a number: none"),
    "OK": ("d", "0: it failed"),
    "SHARE": ("d", "of what was observed, to be forgotten, 0 to 1"),
    "LINES": ("q", "how many of the lines hold"),
    "BATCHES": ("q", "how many of the batches hold"),
    "BALANCERS": ("q", "that the worker's agent counts"),
    "BEGINS": ("q", "1: the report begins an incarnation of the worker"),
    "TO_COMPUTE": (
        "d",
        "tokens of a prompt that count as waiting, as `to_compute` had them at the pick",
    ),
    "AHEAD": ("d", "likewise, as `ahead`"),
    "BESIDE": ("d", "likewise, as `beside`"),
    "OUTPUT_TOKENS": ("d", "of an answer; 0: it is not to be learned from"),
    "BID": ("d", "written: what the worker `picked` bids for the key; the least one has the sequence"),
    "REFUSED_AT": ("d", "written: of FULL, how many pending are too many; of LATE, the seconds that it takes at best"),
    "PROPENSITY": ("d", "written: the probability with which the worker was picked"),
    "AMONG": ("d", "written: how many workers could have been picked"),
    "NAMED": ("d", "written: how many fallbacks there are"),
    "FALLBACKS": ("q", "written: rows of the workers to try next, best first; -1: none"),
}
"""The slots in order: type as `struct` writes it, and what is in there. The last is `MAX_FALLBACKS` slots."""
MOST_LINES, MOST_BATCHES = 64, 512
"""Of a report that the library takes; Python takes what is larger."""
SLOTS = FALLBACKS + MAX_FALLBACKS
REQUEST = struct.Struct("=qdQdddddQdQqq")


class KernelCall(NamedTuple):
    """The slots, as numbers of each kind: three views of one block."""

    numbers: npt.NDArray[np.float64]
    wholes: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint64]
    lines: npt.NDArray[np.float64]
    batches: npt.NDArray[np.float64]


def new_call() -> tuple[bytearray, KernelCall, Record]:
    """All slots at zero: as bytes, as numbers, and the record that the library takes."""
    slots = bytearray(8 * SLOTS)
    words = np.frombuffer(slots, np.uint64)
    report = np.zeros((MOST_LINES, LINE_COLUMNS)), np.zeros((MOST_BATCHES, BATCH_COLUMNS))
    call = KernelCall(words.view(np.float64), words.view(np.int64), words, *report)
    return slots, call, Record(call)


def symbol_of(name: str) -> str:
    return "answer_" + "".join(letter if letter.isalnum() else "_" for letter in name)
