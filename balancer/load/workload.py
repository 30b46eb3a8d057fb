"""What is sent: which model, how many rows, by which deadline, at which time; columns of equal length."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from balancer.load.arrivals import FloatArray

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelMix:
    name: str
    weight: float = 1.0
    """Its share of the requests is its weight over the sum of weights; above 0."""
    deadline_s: float = math.inf
    """Time from the scheduled start within which an answer is in time."""

    @classmethod
    def parse(cls, text: str, default_deadline_s: float = math.inf) -> ModelMix:
        """Read `NAME[:weight][@deadline_ms]`; raises `ValueError` naming the part that cannot be read."""
        found = re.fullmatch(r"(?P<name>[^:@\s]+)(:(?P<weight>[^:@]*))?(@(?P<deadline>[^:@]*))?", text)
        if not found:
            raise ValueError(f"model is {text!r}: give NAME, NAME:weight, NAME@deadline_ms or NAME:weight@deadline_ms")
        weight, deadline_s = 1.0, default_deadline_s
        if found["weight"] is not None:
            weight = _positive(found["weight"], f"weight in {text!r}")
        if found["deadline"] is not None:
            deadline_s = _positive(found["deadline"], f"deadline in {text!r} (milliseconds)") / 1e3
        return cls(found["name"], weight, deadline_s)


@dataclasses.dataclass(frozen=True, slots=True)
class RowSizes:
    values: tuple[int, ...] = (1,)
    shares: tuple[float, ...] = (1.0,)

    @classmethod
    def parse(cls, text: str) -> RowSizes:
        """Read `4`, `1-8` (each equally often) or `1:0.7,4:0.2,8:0.1` (weights); raises `ValueError`."""
        remedy = "give N, LOW-HIGH or N:weight,N:weight,... with whole numbers of at least 1"
        if found := re.fullmatch(r"(\d+)-(\d+)", text):
            values = tuple(range(int(found[1]), int(found[2]) + 1))
            weights = (1.0,) * len(values)
        elif re.fullmatch(r"\d+(:[^,:]+)?(,\d+(:[^,:]+)?)*", text):
            parts = [part.partition(":") for part in text.split(",")]
            values = tuple(int(value) for value, _, _ in parts)
            weights = tuple(_positive(weight or "1", f"weight in rows {text!r}") for _, _, weight in parts)
        else:
            raise ValueError(f"rows is {text!r}: {remedy}")
        if not values or min(values) < 1:
            raise ValueError(f"rows is {text!r}: {remedy}")
        return cls(values, tuple(weight / sum(weights) for weight in weights))

    def sample(self, count: int, generator: np.random.Generator) -> IntArray:
        """Independent sizes; shape `(count,)`."""
        if len(self.values) == 1:
            return np.full(count, self.values[0], dtype=np.int64)
        return generator.choice(np.array(self.values, dtype=np.int64), size=count, p=self.shares)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LoadWorkload:
    """Requests in order of time: columns of shape `(n,)`."""

    models: tuple[str, ...]
    time_s: FloatArray
    """Scheduled start, ascending, from the start of the run."""
    model: IntArray
    rows: IntArray
    deadline_s: FloatArray
    """From the scheduled start; infinite where there is none."""
    keys: tuple[str, ...] = ()
    """Routing key of each request; empty: none has one."""

    def __post_init__(self) -> None:
        """Raise `ValueError` where columns differ in length or times descend."""
        lengths = {len(self.time_s), len(self.model), len(self.rows), len(self.deadline_s)}
        if len(lengths) != 1 or len(self.keys) not in (0, len(self.time_s)):
            raise ValueError(f"columns of a workload have lengths {sorted(lengths)}: give one entry for each request")
        if len(self.time_s) and (np.any(np.diff(self.time_s) < 0) or self.time_s[0] < 0):
            raise ValueError("time_s of a workload descends or is negative: sort the requests by time")

    def __len__(self) -> int:
        return len(self.time_s)

    def until(self, end_s: float) -> LoadWorkload:
        count = int(np.searchsorted(self.time_s, end_s))
        columns = (self.time_s[:count], self.model[:count], self.rows[:count], self.deadline_s[:count])
        return LoadWorkload(self.models, *columns, self.keys[:count])

    def then(self, other: LoadWorkload, after_s: float) -> LoadWorkload:
        """This workload, and `other` (of the same models) beginning `after_s` from this one's start.

        Raises `ValueError` where the models differ or the two overlap in time.
        """
        if self.models != other.models:
            raise ValueError(f"workloads of models {self.models} and {other.models} cannot be joined: use one mix")
        return LoadWorkload(
            self.models,
            np.concatenate((self.time_s, other.time_s + after_s)),
            np.concatenate((self.model, other.model)),
            np.concatenate((self.rows, other.rows)),
            np.concatenate((self.deadline_s, other.deadline_s)),
            self.keys + other.keys,
        )


def streams(seed: int, count: int) -> list[np.random.Generator]:
    """Independent generators for the parts of one workload (times, models, rows): equal for equal seeds."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]


def mixed(
    time_s: FloatArray,
    mix: Sequence[ModelMix],
    rows: RowSizes,
    model_generator: np.random.Generator,
    rows_generator: np.random.Generator,
) -> LoadWorkload:
    """Give each arrival a model by the weights of the mix, and rows; raises `ValueError` for an empty mix."""
    if not mix:
        raise ValueError("no model to send to: name at least one")
    weights = np.array([model.weight for model in mix])
    chosen = model_generator.choice(len(mix), size=len(time_s), p=weights / weights.sum()).astype(np.int64)
    deadline_s = np.array([model.deadline_s for model in mix])[chosen]
    names = tuple(model.name for model in mix)
    return LoadWorkload(names, time_s, chosen, rows.sample(len(time_s), rows_generator), deadline_s)


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{what} is {text!r}: give a number") from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{what} is {text}: give a number above 0")
    return value
