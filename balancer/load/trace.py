"""Recorded arrivals: a CSV file with a time column, and if it has them, model, rows and routing key."""

import contextlib
import csv
import dataclasses
import datetime
import gzip
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TextIO

import numpy as np

from balancer.load.arrivals import FloatArray
from balancer.load.workload import IntArray

_TIME = ("time_s", "arrival_s", "time", "timestamp", "arrival")
_MODEL = ("model", "model_name")
_ROWS = ("rows", "size", "batch", "batch_size")
_KEY = ("key", "routing_key", "session", "user")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Arrivals in order of time; columns that the file lacks are empty."""

    time_s: FloatArray
    """From the first arrival; shape `(n,)`."""
    models: tuple[str, ...] = ()
    rows: IntArray = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    keys: tuple[str, ...] = ()
    numbers: Mapping[str, FloatArray] = dataclasses.field(default_factory=dict)


def read_trace(path: pathlib.Path, numbers: Sequence[str] = ()) -> Trace:
    """Read a trace, gzipped if its name ends in `.gz`; column names are matched without case.

    Columns beside the known ones are ignored, but for those named in `numbers`.

    The time is seconds or an ISO 8601 time stamp (fractions of any length), so that the Azure LLM inference traces
    of 2023 (TIMESTAMP,ContextTokens,GeneratedTokens) are read as they come. Raises `ValueError` naming the file, the
    line and the value that cannot be read.
    """
    with _opened(path) as file:
        lines = csv.DictReader(file)
        columns = {name.strip().lower(): name for name in lines.fieldnames or ()}
        time_name = _first(columns, _TIME)
        if time_name is None:
            raise ValueError(f"{path}: columns are {sorted(columns)}: name the one with the time one of {_TIME}")
        model_name, rows_name, key_name = (_first(columns, names) for names in (_MODEL, _ROWS, _KEY))
        if lacking := [name for name in numbers if name.lower() not in columns]:
            raise ValueError(f"{path}: has no column {lacking[0]!r}: name one of {sorted(columns.values())}")
        times, models, rows, keys = [], [], [], []
        further: dict[str, list[float]] = {name: [] for name in numbers}
        for line in lines:
            where = f"{path}, line {lines.line_num}"
            times.append(_seconds(line[time_name], where))
            if model_name:
                models.append(line[model_name])
            if rows_name:
                rows.append(_whole(line[rows_name], where))
            if key_name:
                keys.append(line[key_name])
            for name, column in further.items():
                column.append(_number(line[columns[name.lower()]], name, where))
    if not times:
        raise ValueError(f"{path}: has no arrivals: give a file with one line for each request")
    time_s = np.array(times)
    order = np.argsort(time_s, kind="stable")
    return Trace(
        time_s[order] - time_s[order[0]],
        tuple(models[i] for i in order) if models else (),
        np.array(rows, dtype=np.int64)[order] if rows else np.empty(0, dtype=np.int64),
        tuple(keys[i] for i in order) if keys else (),
        {name: np.array(column)[order] for name, column in further.items()},
    )


def _opened(path: pathlib.Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig")
    return path.open(newline="", encoding="utf-8-sig")


def _first(columns: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((columns[name] for name in names if name in columns), None)


def _seconds(text: str, where: str) -> float:
    with contextlib.suppress(TypeError, ValueError):
        return float(text)
    try:
        moment = datetime.datetime.fromisoformat((text or "").strip())
    except ValueError:
        raise ValueError(f"{where}: time is {text!r}: give seconds, or a time such as 2023-11-16 18:17:03.97") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{where}: {name} is {text!r}: give a number")
    return value


def _whole(text: str, where: str) -> int:
    try:
        value = int(text)
    except (TypeError, ValueError):
        value = 0
    if value < 1:
        raise ValueError(f"{where}: rows is {text!r}: give a whole number of at least 1")
    return value
