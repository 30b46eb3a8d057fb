"""Recorded requests as a workload: their times, and what else the file tells of each."""

import pathlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from balancer.files.schema import CHECKED, Positive
from balancer.load.arrivals import FloatArray, rescaled
from balancer.load.trace import read_trace
from policies.hashing import key_of


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

    def window(self, rate_per_s: float, count: int, start: float) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """Times of `count` requests in a row, and the position of each in the trace; shape `(count,)` each.

        They begin at the share `start` of the trace, 0 to below 1, and after its end it begins again. The mean rate of
        the whole trace is `rate_per_s`; that of a part may be another.
        """
        own = len(self.time_s)
        position = int(start * own) + np.arange(count)
        # One round is as long as its requests at mean rate 1: the last is followed by a mean gap.
        time_s = self.time_s[position % own] + (position // own) * float(own)
        shifted: FloatArray = (time_s - time_s[:1]) / rate_per_s
        return shifted, position % own


@lru_cache(maxsize=8)
def read_recorded(path: pathlib.Path, columns: TraceColumns = TraceColumns()) -> Recorded:
    """Read a CSV trace, see `balancer.load.trace.read_trace`.

    Raises:
        OSError: the file cannot be read.
        ValueError: naming the file, the line or column and the value that cannot be read.
    """
    named = [name for name in (columns.rows_column, columns.work_column) if name is not None]
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
    )
