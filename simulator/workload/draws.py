"""What requests are like: distributions of rows, hidden work and keys, each read from uniform numbers.

Every distribution is its inverse distribution function. So a request's draw depends on its own uniform number alone:
a longer run begins as a shorter one, and changing one part of a workload changes no other.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass

from balancer.files.schema import CHECKED, NotNegative, Positive
from balancer.load.arrivals import FloatArray
from policies.base import UintArray
from policies.hashing import mix_array

_MIDPOINTS = (np.arange(1 << 16) + 0.5) / (1 << 16)
KeyCount = Annotated[int, Field(ge=1, le=10_000_000)]


class Distribution(Protocol):
    """Positive numbers."""

    @property
    def mean(self) -> float: ...

    def quantile(self, u: FloatArray) -> FloatArray:
        """Draws for uniform numbers in [0, 1); same shape."""


@dataclass(config=CHECKED, frozen=True, slots=True)
class UniformInt:
    """Whole numbers, each equally often."""

    low: int = 1
    """The least."""
    high: int = 8
    """The largest."""

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"low is {self.low} and high {self.high}: give 1 <= low <= high")

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def quantile(self, u: FloatArray) -> FloatArray:
        return self.low + np.floor(u * (self.high - self.low + 1))


@dataclass(config=CHECKED, frozen=True, slots=True)
class Shares:
    """Some numbers, each with its share."""

    weights: Mapping[int, NotNegative] | Mapping[float, NotNegative]
    """By number: its share is its weight over the sum of weights."""

    def __post_init__(self) -> None:
        if not sum(self.weights.values()) > 0:
            raise ValueError(f"shares are {dict(self.weights)}: give weights of at least 0, one of them above")

    @property
    def mean(self) -> float:
        return sum(number * weight for number, weight in self.weights.items()) / sum(self.weights.values())

    def quantile(self, u: FloatArray) -> FloatArray:
        cumulated = np.cumsum(list(self.weights.values()))
        numbers = np.array(list(self.weights), dtype=np.float64)
        drawn: FloatArray = numbers[np.searchsorted(cumulated[:-1], u * cumulated[-1], side="right")]
        return drawn


ONE = Shares({1: 1.0})


@dataclass(config=CHECKED, frozen=True, slots=True)
class Pareto:
    """Heavy tail up to a bound: P(X > x) falls as x^-shape between low and high (bounded Pareto).

    Source: Crovella, Harchol-Balter, Murta, "Task assignment in a distributed system", SIGMETRICS 1998.
    """

    shape: Positive = 1.2
    """The tail's exponent; not 1. Smaller is heavier."""
    high: Positive = 64.0
    """The largest."""
    low: Positive = 1.0
    """The least."""

    def __post_init__(self) -> None:
        if not self.high > self.low:
            raise ValueError(f"high is {self.high}: give a number above {self.low:g}, which is low")
        if self.shape == 1:
            raise ValueError("shape is 1: give 0.999 or 1.001, say; the mean's formula divides by shape - 1")

    @property
    def mean(self) -> float:
        a, ratio = self.shape, self.low / self.high
        return float(self.low * a / (a - 1) * (1 - ratio ** (a - 1)) / (1 - ratio**a))

    def quantile(self, u: FloatArray) -> FloatArray:
        kept = 1 - (self.low / self.high) ** self.shape
        drawn: FloatArray = self.low * (1 - u * kept) ** (-1 / self.shape)
        return drawn


@dataclass(config=CHECKED, frozen=True, slots=True)
class Lognormal:
    """Exponential of a normal."""

    cv: Positive = 1.0
    """Coefficient of variation."""
    mean: Positive = 1.0
    """Mean."""

    def quantile(self, u: FloatArray) -> FloatArray:
        from scipy.special import ndtri  # noqa: PLC0415 - importing it takes longer than all else here

        variance = math.log1p(self.cv**2)
        # Away from 0, whose quantile is 0: a request without any work.
        drawn: FloatArray = self.mean * np.exp(math.sqrt(variance) * ndtri(np.maximum(u, 2.0**-53)) - variance / 2)
        return drawn


@dataclass(config=CHECKED, frozen=True, slots=True)
class Exponential:
    """Exponential of mean 1."""

    @property
    def mean(self) -> float:
        return 1.0

    def quantile(self, u: FloatArray) -> FloatArray:
        return -np.log1p(-np.maximum(u, 2.0**-53))


def whole_rows(drawn: FloatArray, max_rows: int) -> npt.NDArray[np.int32]:
    """Drawn sizes as rows: rounded up, at least 1, at most what the model takes; same shape."""
    return np.clip(np.ceil(drawn), 1, max_rows).astype(np.int32)


def mean_rows(sizes: Distribution, max_rows: int) -> float:
    """Mean of `whole_rows` over the distribution: of 65,536 equally likely draws."""
    return float(whole_rows(sizes.quantile(_MIDPOINTS), max_rows).mean())


@dataclass(config=CHECKED, frozen=True, slots=True)
class UniformKeys:
    """Each request has one of so many keys, all equally often."""

    count: KeyCount
    """Number of keys."""

    def draw(self, count: int, generator: np.random.Generator) -> UintArray:
        """Key hashes, never 0; shape `(count,)`."""
        return _hashes(np.floor(generator.random(count) * self.count))


@dataclass(config=CHECKED, frozen=True, slots=True)
class ZipfKeys:
    """The key of rank r comes as often as r^-exponent says: a few keys are most of the requests."""

    count: KeyCount
    """Number of keys."""
    exponent: NotNegative = 1.0
    """0: all equally often."""

    def draw(self, count: int, generator: np.random.Generator) -> UintArray:
        """Key hashes, never 0; shape `(count,)`."""
        cumulated = np.cumsum(np.arange(1, self.count + 1, dtype=np.float64) ** -self.exponent)
        return _hashes(np.searchsorted(cumulated[:-1], generator.random(count) * cumulated[-1], side="right"))


@dataclass(config=CHECKED, frozen=True, slots=True)
class Sessions:
    """Conversations: a key comes several times, while it lasts, and then never again."""

    active: KeyCount
    """Sessions at any moment; a request belongs to each equally often."""
    mean_requests: Annotated[float, Field(ge=1)] = 8.0
    """Mean length of a session (geometric)."""

    def draw(self, count: int, generator: np.random.Generator) -> UintArray:
        """Key hashes, never 0; shape `(count,)`."""
        u = generator.random((count, 2))
        place = np.floor(u[:, 0] * self.active).astype(np.int64)
        ends = u[:, 1] < 1 / self.mean_requests
        return _hashes(ends_before(place, ends) * self.active + place)


def ends_before(place: npt.NDArray[np.int64], ends: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How many in a request's place have ended before it: counted place by place, in order of time."""
    order = np.argsort(place, kind="stable")
    before = np.concatenate(([0], np.cumsum(ends[order])))
    first = np.searchsorted(place[order], place[order], side="left")
    ended = np.empty(len(place), dtype=np.int64)
    ended[order] = before[:-1] - before[first]
    return ended


Keys = UniformKeys | ZipfKeys | Sessions


def _hashes(number: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> UintArray:
    # From 1 on: the finaliser maps no number below 2^63 to 0, which would mean "no key".
    hashes: UintArray = mix_array(number.astype(np.uint64) + np.uint64(1))
    return hashes
