"""What the workers' caches save of a request whose key they have seen lately, by the answers of a decision log."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policies.base import BoolArray, FloatArray
from simulator.spec import CacheSpec

_ENTRIES = tuple(np.unique(np.geomspace(4, 65536, 57).round().astype(int)).tolist())
_LEAST_REQUESTS = 200
_LEAST_SAVING = 0.05
_MOST_SAVING = 0.95
_CERTAIN = 5.0
"""Standard errors that the saving is above 0, at least: the number of entries was chosen as well."""


class Came(NamedTuple):
    """A request, as it came to a worker."""

    worker: str
    key: int
    """0: none."""


class CacheFit(NamedTuple):
    cache: CacheSpec
    way_s: float
    """What an answer takes beyond the execution."""
    hits: FloatArray
    """The probability of one, of the answers looked at."""


def hits_of(came: Sequence[Came], entries: int) -> FloatArray:
    """The probability that each finds its key where the worker remembers so many, each in a place of its own; `(k,)`.

    A key that enters takes the place of another one in `entries`; who drives whom out is left to chance.
    """
    entered: dict[str, float] = {}
    seen: dict[tuple[str, int], float] = {}
    found = np.zeros(len(came))
    for number, (worker, key) in enumerate(came):
        if key:
            so_far = entered.get(worker, 0.0)
            last = seen.get((worker, key))
            found[number] = hit = 0.0 if last is None else math.exp((last - so_far) / entries)
            entered[worker] = seen[worker, key] = so_far + 1 - hit
    return found


class Keys:
    """Which answers met their key, by how many keys a worker remembers."""

    def __init__(self, came: Sequence[Came], looked_at: Sequence[int]) -> None:
        """`came`: all requests, in order of time; `looked_at`: places of those whose answers are looked at."""
        keyed = len(looked_at) >= _LEAST_REQUESTS and any(key for _, key in came)
        self._hits = {entries: hits_of(came, entries)[list(looked_at)] for entries in _ENTRIES} if keyed else {}

    def fit(self, latency_s: FloatArray, cold_s: FloatArray, known: BoolArray) -> CacheFit | None:
        """The cache that tells most of these latencies; None where none certainly saves anything.

        Least squares of latency - cold = way - saving * cold * hit.

        Args:
            latency_s: Of the answers that are looked at.
            cold_s: What such an execution takes without a hit.
            known: Of which that is known.
        """
        best: tuple[float, CacheFit] | None = None
        surplus_s, cold_s = (latency_s - cold_s)[known], cold_s[known]
        for entries, hits in self._hits.items():
            x = cold_s * hits[known]
            spread = float(np.square(x - x.mean()).sum())
            if spread <= 0:
                continue
            saving = -float((x - x.mean()) @ (surplus_s - surplus_s.mean())) / spread
            way_s = float(surplus_s.mean() + saving * x.mean())
            error = float(np.square(surplus_s - way_s + saving * x).sum())
            certain = saving / max(float(np.sqrt(error / len(x) / spread)), 1e-12)
            if certain >= _CERTAIN and saving >= _LEAST_SAVING and (best is None or error < best[0]):
                spec = CacheSpec(entries, min(saving, _MOST_SAVING))
                best = error, CacheFit(spec, max(way_s, 0.0), hits)
        return None if best is None else best[1]
