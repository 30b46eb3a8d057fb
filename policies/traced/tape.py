"""What stand-ins for arrays write down: operations, each once, and the branches that were taken."""

import math
from typing import Any

import numpy as np

from policies.base import FloatArray
from policies.traced.program import MOST_LINES, MOST_OPERATIONS, NAMES, WORDS

_MOST_WAYS = 16
_MOST_MET = 8 * MOST_OPERATIONS
"""Operations, of which the answer may rest on some alone."""


class Untraceable(Exception):
    """The policy is no program; the message says why."""


class Line:
    """What an operation wrote, by its place in `Tape.operations`."""

    def __init__(self, place: int, is_bool: bool, of_fleet: bool) -> None:
        self.place, self.is_bool, self.of_fleet = place, is_bool, of_fleet


class Tape:
    """Operations in the order in which they were met, each once; and the branches that were taken."""

    def __init__(self, axes: int, ways: list[bool]) -> None:
        self.axes, self.ways = axes, ways
        self.operations: dict[tuple[Any, ...], int] = {}
        """Name and operands, a line by its place and a number as a tuple; to the place in here."""
        self.branches: list[Line] = []

    def line(self, name: str, *operands: Any, is_bool: bool = False, of_fleet: bool = False) -> Line:
        """Of an operation: operands are lines first, then numbers."""
        key = (name, *(each.place if isinstance(each, Line) else _identity(each) for each in operands))
        if key not in self.operations:
            if len(self.operations) >= _MOST_MET:
                raise Untraceable("it takes too many operations, as loops over workers do")
            self.operations[key] = len(self.operations)
        return Line(self.operations[key], is_bool, of_fleet)

    def taken(self, condition: Line) -> bool:
        if len(self.branches) >= len(self.ways):
            self.ways.append(True)
        self.branches.append(condition)
        if len(self.branches) > _MOST_WAYS:
            raise Untraceable("it has too many branches that depend on the fleet, or a loop that does")
        return self.ways[len(self.branches) - 1]


def _identity(number: float) -> tuple[float, float]:
    """The number, and its sign: zeros are equal."""
    return float(number), math.copysign(1.0, number)


def encoded(tape: Tape, answer: Line) -> FloatArray:
    """As numbers: what the answer does not rest on is left out, and lines are used again."""
    kept = list(tape.operations)
    last: dict[int, int] = {answer.place: len(kept)}
    for place in range(len(kept) - 1, -1, -1):
        if place in last:
            for operand in kept[place][1:]:
                if not isinstance(operand, tuple):
                    last.setdefault(operand, place)
    words: list[float] = []
    lines: dict[int, int] = {}
    free: list[int] = []
    columns, most = 0, 0
    for place in sorted(last):
        name, *operands = kept[place]
        numbers = [lines[each] if not isinstance(each, tuple) else each[0] for each in operands]
        if not free:
            free.append(most)
            most += 1
        lines[place] = free.pop()
        free += [
            lines[each] for each in {each for each in operands if not isinstance(each, tuple)} if last[each] == place
        ]
        columns |= 1 << int(operands[0][0]) if name == "column" else 0
        words += [NAMES.index(name), lines[place], *numbers, *(0.0,) * (WORDS - 2 - len(numbers))]
    if len(words) > WORDS * MOST_OPERATIONS or most > MOST_LINES:
        raise Untraceable(f"it takes {len(words) // WORDS} operations and {most} lines, more than a program has")
    return np.array([len(words) // WORDS, most, columns, lines[answer.place], *words])
