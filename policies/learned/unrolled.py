"""Functions declared in a list, called one after the other from loops that are compiled.

A compiler of Python finds what a function calls by the names in its globals, and not in a list. So a step is copied
once for each entry of the list, with globals of its own in which the name stands for that entry.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any


def with_names(function: Callable[..., Any], **names: Any) -> types.FunctionType:
    """A copy of the function, for which these global names stand for other things."""
    assert isinstance(function, types.FunctionType)
    return types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)


def in_turn(steps: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """A function of `(lines, facts, out, i)` that calls each of the steps, the first with `i`, the next with one more.

    It halves the list again and again: a chain would be compiled once for each of its links.
    """
    if len(steps) == 1:
        return steps[0]
    half = len(steps) // 2
    return with_names(_both, _first=in_turn(steps[:half]), _second=in_turn(steps[half:]), _half=half)


def _first(lines: Any, facts: Any, out: Any, i: int) -> None:
    """Stands for one half of the steps, and `_second` for the other."""


_second, _half = _first, 0


def _both(lines: Any, facts: Any, out: Any, i: int) -> None:
    _first(lines, facts, out, i)
    _second(lines, facts, out, i + _half)
