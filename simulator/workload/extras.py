"""What some requests have beside rows, work and a key: a sequence, several responses, a client that gives up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from balancer.files.schema import CHECKED, Fraction, Positive
from balancer.load.arrivals import FloatArray
from policies.base import UintArray
from policies.hashing import key_of, mix_array, unit_array
from simulator.workload.draws import Distribution, KeyCount, ends_before, whole_rows

_POINTS: FloatArray = (np.arange(256) + 0.5) / 256


@pydantic_dataclass(config=CHECKED, frozen=True, slots=True)
class Sequences:
    """Some of the requests belong to stateful sequences, all of which one worker must serve."""

    active: KeyCount
    """Sequences at any moment; a member belongs to each equally often."""
    share: Annotated[Fraction, Field(gt=0)] = 1.0
    """Of the model's requests that are members."""
    mean_requests: Annotated[float, Field(ge=1)] = 8.0
    """Mean length of a sequence (geometric). Its first request carries START."""

    def draw(self, u: FloatArray) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Members, and the number of the sequence of each, for uniform numbers `(k, 3)`; shape `(k,)` each."""
        member = u[:, 0] < self.share
        place = np.where(member, np.floor(u[:, 1] * self.active), -1).astype(np.int64)
        ended = ends_before(place, member & (u[:, 2] < 1 / self.mean_requests))
        return member, ended * self.active + place


@pydantic_dataclass(config=CHECKED, frozen=True, slots=True)
class Patience:
    """How long clients wait for an answer before they give up: all as long, or exponentially."""

    mean_s: Positive
    """Mean."""
    fixed: bool = False
    """Whether all wait as long."""

    def quantile(self, u: FloatArray) -> FloatArray:
        """Seconds above 0."""
        if self.fixed:
            return np.full(u.shape, self.mean_s)
        return self.mean_s * -np.log1p(-np.maximum(u, 2.0**-53))


@dataclass(frozen=True, slots=True)
class Stream:
    """Each request is answered by several responses, over its time on the device. Their number is hidden work."""

    responses: Distribution
    """How many: rounded up, at least 1."""
    first: float = 1.0
    """What the first response takes, in later ones."""
    follows: Literal["rows", "key"] | None = None
    """What the balancer sees and the number goes with."""
    correlation: float = 0.8
    at_most: int = 4096

    def count(self, u: FloatArray, shown: FloatArray | None = None) -> npt.NDArray[np.int32]:
        """Responses for uniform numbers, and for the place of what the balancer sees among its like, 0 to 1."""
        if shown is not None:
            u = together(u, shown, self.correlation)
        return whole_rows(self.responses.quantile(u), self.at_most)

    def work(self, count: npt.NDArray[np.int32]) -> FloatArray:
        """Of streams of so many responses, in later ones."""
        return count.astype(np.float64) + (self.first - 1.0)

    @property
    def mean_work(self) -> float:
        return float(self.work(self.count((np.arange(1 << 16) + 0.5) / (1 << 16))).mean())

    def mean_row_work(self, rows: Distribution, most_rows: int) -> float:
        """Mean of rows times work over its mean, where the number of responses follows rows drawn so."""
        u_rows, u = (axis.ravel() for axis in np.meshgrid(_POINTS, _POINTS))
        work = self.work(self.count(u, u_rows if self.follows == "rows" else None))
        return float((whole_rows(rows.quantile(u_rows), most_rows) * work).mean() / work.mean())


def together(own: FloatArray, shown: FloatArray, correlation: float) -> FloatArray:
    """Uniform numbers that go with others: normal scores of that correlation (a Gaussian copula)."""
    from scipy.special import ndtr, ndtri  # noqa: PLC0415 - importing it takes longer than all else here

    scores = [ndtri(np.clip(each, 2.0**-53, 1 - 2.0**-53)) for each in (own, shown)]
    mixed: FloatArray = ndtr(math.sqrt(1 - correlation**2) * scores[0] + correlation * scores[1])
    return mixed.clip(max=1 - 2.0**-53)


def place_of_key(key: UintArray) -> FloatArray:
    """The place of a key among keys, 0 to 1: the same always."""
    found: FloatArray = unit_array(mix_array(key))
    return found


def numbered(
    members: npt.NDArray[np.bool_], model: npt.NDArray[np.int16], number: npt.NDArray[np.int64], names: Sequence[str]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], UintArray]:
    """Sequences by the order in which they start, whether each request starts one, and their keys; `(k,)` each.

    Equal numbers are one sequence within a model. Of no meaning for keys of requests that are no members.
    """
    sequence, starts = np.full(len(members), -1, np.int32), np.zeros(len(members), np.bool_)
    own = np.flatnonzero(members)
    _, first, inverse = np.unique(np.stack((model[own], number[own])), axis=1, return_index=True, return_inverse=True)
    sequence[own] = np.argsort(np.argsort(first))[inverse.ravel()]
    starts[own[first]] = True
    of_model = np.array([key_of(name) for name in names], np.uint64)[model]
    key: UintArray = mix_array(of_model ^ mix_array(number.astype(np.uint64) + np.uint64(1)))
    return sequence, starts, key
