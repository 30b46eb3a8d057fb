"""Recorded requests as a workload: their times, and what else the file tells of each."""

from __future__ import annotations

import gzip
import json
import pathlib
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from balancer.files.schema import CHECKED, Positive
from balancer.load.arrivals import FloatArray, rescaled
from balancer.load.trace import read_trace
from policies.hashing import key_of
from simulator.arrivals import Prompts

_PROMPT_FIELDS = "timestamp", "input_length", "output_length", "hash_ids"
_HASHED_TOKENS = 512
"""Of a block in Mooncake's traces."""


@pydantic_dataclass(config=CHECKED, frozen=True, slots=True)
class TraceColumns:
    """How columns of a trace that are in other units become rows and work, such as the tokens of the Azure traces."""

    rows_column: str | None = None
    """Column that the rows are made of; none: the file's own column rows, size or batch, or else the workload's
    distribution."""
    units_per_row: Positive = 1.0
    """So many of it make a row; rounded up."""
    work_column: str | None = None
    """Column that the hidden work is made of: its value over the mean of the column; none: the workload's
    distribution."""
    prompt_column: str | None = None
    """Column with the tokens of prompts, and with `output_column` of answers; for models that generate."""
    output_column: str | None = None
    """Column with the tokens that were generated."""

    def __post_init__(self) -> None:
        if (self.prompt_column is None) != (self.output_column is None):
            raise ValueError("of prompt_column and output_column one is given alone: give both or none")


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A trace of k requests; columns of shape `(k,)`, None where the file does not tell."""

    time_s: FloatArray
    """From the first, ascending; mean rate 1."""
    models: tuple[str, ...] | None
    rows: FloatArray | None
    """Sizes, not yet rounded up nor capped by the model."""
    work: FloatArray | None
    keys: npt.NDArray[np.uint64] | None
    """Hashes; 0: none."""
    deadline_s: FloatArray | None = None
    """From arrival; infinite: none."""
    priorities: npt.NDArray[np.int16] | None = None
    tenants: npt.NDArray[np.int16] | None = None
    prompts: Prompts | None = None
    block: int = 0
    """Above 0: `window` draws blocks of so many requests on average; 0: all are in a row."""

    def window(
        self, rate_per_s: float, count: int, dice: np.random.Generator
    ) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """Times of `count` requests, and the position of each in the trace; shape `(count,)` each.

        They begin anywhere, and after the trace's end it begins again. In blocks it does so now and then before its
        end (the stationary bootstrap of Politis and Romano 1994): other hours, of which it is as probable an account.
        The mean rate of the whole trace is `rate_per_s`; that of a part may be another.
        """
        own, place = len(self.time_s), np.arange(count)
        position = int(dice.random() * own) + place
        # One round is as long as its requests at mean rate 1: the last is followed by a mean gap.
        time_s = self.time_s[position % own] + (position // own) * float(own)
        if self.block:
            begins = dice.random(count) < 1 / self.block
            begin = np.maximum.accumulate(np.where(begins, place, 0))
            position = np.where(begin, dice.integers(own, size=count)[begin] + place - begin, position)
            time_s = np.diff(self.time_s, prepend=self.time_s[-1] - own)[position % own].cumsum()
        shifted: FloatArray = (time_s - time_s[:1]) / rate_per_s
        return shifted, position % own

    def part(self, chosen: slice) -> Recorded:
        """Some of them, at their own times."""
        columns = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("prompts", "block")
        }
        parts: dict[str, Any] = {name: None if column is None else column[chosen] for name, column in columns.items()}
        return Recorded(**parts, prompts=self.prompts_at(np.arange(len(self.time_s))[chosen]))

    def prompts_at(self, position: npt.NDArray[np.int64]) -> Prompts | None:
        """Of requests at these places of the trace; each round of it has texts of its own."""
        if self.prompts is None:
            return None
        own = self.prompts
        blocks = own.blocks[position]
        first = (np.cumsum(own.blocks, dtype=np.int64) - own.blocks)[position]
        place = first.repeat(blocks) + np.arange(blocks.sum()) - (np.cumsum(blocks) - blocks).repeat(blocks)
        rounds = np.cumsum(np.diff(position, prepend=position[:1]) < 0).repeat(blocks)
        block = own.block[place] + rounds * (int(own.block.max(initial=0)) + 1)
        return Prompts(own.tokens[position], own.output[position], blocks, own.block_tokens, block)


@lru_cache(maxsize=8)
def read_recorded(path: pathlib.Path, columns: TraceColumns = TraceColumns()) -> Recorded:
    """Read a CSV trace, see `balancer.load.trace.read_trace`, or one with prompts, see `_read_prompts`.

    Raises:
        OSError: the file cannot be read.
        ValueError: naming the file, the line or column and the value that cannot be read.
    """
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return _read_prompts(path)
    prompt, output = columns.prompt_column, columns.output_column
    named = [name for name in (columns.rows_column, columns.work_column, prompt, output) if name is not None]
    trace = read_trace(path, named)
    for name in named:
        if not trace.numbers[name].min() > 0:
            raise ValueError(f"{path}: column {name!r} has {trace.numbers[name].min():g}: give numbers above 0")
    rows: FloatArray | None = trace.rows.astype(np.float64) if len(trace.rows) else None
    if columns.rows_column is not None:
        rows = trace.numbers[columns.rows_column] / columns.units_per_row
    work = trace.numbers[columns.work_column] if columns.work_column is not None else None
    return Recorded(
        time_s=rescaled(trace.time_s, 1.0),
        models=trace.models or None,
        rows=rows,
        work=None if work is None else work / work.mean(),
        keys=np.array([key_of(key) if key else 0 for key in trace.keys], dtype=np.uint64) if trace.keys else None,
        prompts=_unshared(trace.numbers[prompt], trace.numbers[output]) if prompt and output else None,
    )


def _unshared(tokens: FloatArray, output: FloatArray) -> Prompts:
    nothing = np.zeros(len(tokens), np.int32)
    return Prompts(tokens.astype(np.int32), output.astype(np.int32), nothing, 1, np.zeros(0, np.int64))


def _read_prompts(path: pathlib.Path) -> Recorded:
    """Requests as Mooncake's traces have them: a line of JSON each, with milliseconds, lengths and hashes of blocks.

    The stamps of many requests are equal: those are spread evenly until the next stamp.
    """
    times_ms: list[float] = []
    tokens, output, blocks = [], [], []
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                one = json.loads(line)
                time_ms, length, answer, hashes = (one[name] for name in _PROMPT_FIELDS)
                whole = [int(block) for block in hashes[: length // _HASHED_TOKENS]]
                fits = length >= 1 and time_ms >= (times_ms[-1] if times_ms else 0)
            except (ValueError, TypeError, KeyError):
                fits = False
            if not fits:
                fields = ", ".join(_PROMPT_FIELDS)
                raise ValueError(f"{path}, line {number}: is {line[:60]!r}: give {fields}, in order of time")
            times_ms.append(float(time_ms))
            tokens.append(length)
            output.append(max(answer, 1))
            blocks.append(whole)
    if not times_ms:
        raise ValueError(f"{path}: has no requests: give a file with one line for each")
    stamps, first, count = np.unique(times_ms, return_index=True, return_counts=True)
    gaps = np.diff(stamps, append=stamps[-1]).repeat(count)
    among = (np.arange(len(times_ms)) - first.repeat(count)) / count.repeat(count)
    return Recorded(
        time_s=rescaled(np.array(times_ms) + gaps * among, 1.0),
        models=None,
        rows=None,
        work=None,
        keys=None,
        prompts=Prompts(
            np.array(tokens, np.int32),
            np.array(output, np.int32),
            np.array([len(one) for one in blocks], np.int32),
            _HASHED_TOKENS,
            np.array([block for one in blocks for block in one], np.int64),
        ),
    )
