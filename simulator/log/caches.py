"""What the workers' caches save of a request whose key they have seen lately, by the answers of a decision log."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from policies.base import FloatArray, IntArray
from simulator.spec import CacheSpec, FleetSpec

_ENTRIES = tuple(np.unique(np.geomspace(4, 65536, 57).round().astype(int)).tolist())
_LEAST_REQUESTS = 200
_LEAST_SAVING = 0.05
_MOST_SAVING = 0.95
_CERTAIN = 12.5
"""By how much a cache makes the logarithm of the likelihood greater, at least: 5 standard errors, as the number of
entries was chosen as well."""
_DOUBT = 0.02
"""The least probability of a hit, and of a miss: real caches are not quite as this model has them."""
_STEPS, _FIRST_FACTOR = 20, -0.5
_LEAST_SPREAD, _TINY = 0.02, 1e-12
_ALIKE = 2.0
"""Numbers of keys that differ by no greater factor are as good as each other."""


class Came(NamedTuple):
    """A request, as it came to a worker."""

    worker: str
    key: int
    """0: none."""


class Ran(NamedTuple):
    """An execution, beside others of its size on its worker."""

    places: Sequence[int]
    """Positions of its requests in the list of all that came."""
    size: int
    """Number of these others."""
    seconds: float


class CacheFit(NamedTuple):
    cache: CacheSpec
    hits: FloatArray
    """The probability of one, by execution."""


def settings_for(fleet: FleetSpec) -> str:
    """What a config would say of caches as the fleet's, in words; empty: what it says."""
    if not fleet.cache.entries:
        return ""
    found = f"workers remember about {fleet.cache.entries:,} keys, which save {fleet.cache.saving:.0%} of a request"
    # Of which each balancer sends its share.
    best, now = fleet.cache.entries / fleet.balancers, fleet.settings.estimators.key_memory
    if fleet.settings.sticky_keys:
        return (
            f"{found}: requests.sticky_keys: false lets the policy weigh that, with estimators.key_memory: {best:.0f}"
        )
    if 1 / _ALIKE <= best / now <= _ALIKE:
        return ""
    return f"{found}: set estimators.key_memory: {best:.0f}, it was {now:g}"


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


def fit(came: Sequence[Came], ran: Sequence[Ran]) -> CacheFit | None:
    """The cache that tells most of what executions of one request took; None where none certainly saves anything.

    Each was a hit or not, which what came before makes more or less probable; the two differ by a factor, and by size
    what they take is lognormal: a mixture, whose likelihood is made greatest by expectation maximisation.

    Args:
        came: All requests, to each worker in the order in which it began them.
        ran: The executions.
    """
    alone = [one for one in ran if len(one.places) == 1]
    if len(alone) < _LEAST_REQUESTS or not any(key for _, key in came):
        return None
    _, size = np.unique([one.size for one in alone], return_inverse=True)
    y = np.log([one.seconds for one in alone])
    place, best = np.array([one.places[0] for one in alone]), None
    count = np.bincount(size)
    found = _mixture(np.zeros(len(y)), size, y, _Sizes(np.bincount(size, y) / count, np.ones(len(count)), 0.0))
    least, sizes = found.log_likelihood + _CERTAIN, found.sizes._replace(factor=_FIRST_FACTOR)
    for entries in _ENTRIES:
        known = hits_of(came, entries)
        found = _mixture(known[place], size, y, sizes)
        sizes = found.sizes  # near those of the next number
        if found.log_likelihood > least and found.saving >= _LEAST_SAVING:
            least = found.log_likelihood
            hits = np.array([known[list(one.places)].mean() for one in ran])
            hits[[len(one.places) == 1 for one in ran]] = found.hits
            best = CacheFit(CacheSpec(entries, min(found.saving, _MOST_SAVING)), hits)
    return best


class _Sizes(NamedTuple):
    cold: FloatArray
    """Mean logarithm of what executions take that do not hit, by size."""
    spread: FloatArray
    factor: float
    """What those that hit add to the logarithm."""


class _Mixture(NamedTuple):
    log_likelihood: float
    saving: float
    hits: FloatArray
    sizes: _Sizes


def _mixture(known: FloatArray, size: IntArray, y: FloatArray, sizes: _Sizes) -> _Mixture:
    """Fit the mixture; `y`: logarithms of seconds, `known`: the probability of a hit before these are seen, `(k,)`."""
    count, p = np.bincount(size), np.clip(known, _DOUBT, 1 - _DOUBT) * (known > 0)
    cold, spread, factor = sizes
    hits, likely = p, -np.inf
    for _ in range(_STEPS):
        off = y - cold[size]
        if_hit = p * np.exp(-0.5 * ((off - factor) / spread[size]) ** 2) + _TINY * (p > 0)
        if_not = (1 - p) * np.exp(-0.5 * (off / spread[size]) ** 2) + _TINY
        hits, likely = if_hit / (if_hit + if_not), float(np.sum(np.log((if_hit + if_not) / spread[size])))
        weight = hits / spread[size] ** 2
        factor = min(float(weight @ off) / max(float(weight.sum()), _TINY), 0.0)
        cold = np.bincount(size, y - hits * factor) / count
        off = y - cold[size]
        squares = np.bincount(size, hits * (off - factor) ** 2 + (1 - hits) * off**2)
        spread = np.maximum(np.sqrt(squares / count), _LEAST_SPREAD)
    return _Mixture(likely, 1 - float(np.exp(factor)), hits, _Sizes(cold, spread, factor))
