"""Which keys each worker has warm, as own picks tell; and what a hit saves, learned by model.

A cache of prefixes or embeddings makes a request cheaper where one with the same key was not long ago. Nobody reports
what is in it. So a table of fixed size notes where each key went, and how many new keys that worker has got since: of
a cache that holds `key_memory` keys, each new one drives out another, so that a key is left with probability
exp(-new / key_memory). A request that was not served takes the note back.

What a hit saves is told by the batches that executed: those of which more rows were expected to hit took less of the
time that was expected of them. Compared are a worker's reports with its own shortly before, as what changes slowly (a
fit that settles, a worker that slows down) has other causes. A saving that may be chance is taken for none.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.kernel.estimators.columns import At, along, per_model, per_worker
from balancer.kernel.estimators.service import Service
from policies.base import FloatArray, UintArray

PLACES, WAYS = 4096, 4
"""Of the table: keys are hashed to places, a power of two; each has room for so many pairs of key and worker."""
SETTLED = 20.0
"""Executions by which a service time must be known, so that more or less than expected means something."""
_SURE = 2.0
"""Standard errors from none at which a saving begins to be believed."""
_LEAST_REPORTS = 20.0
"""From which on a saving is told."""
_LATELY = 0.05
"""Weight of a report in the means that the next is compared with."""
_MOST = 2.0
"""How many times as long as expected a report's executions count at most, so that one stall is no evidence."""
_KEPT = 0.1
"""Of the share by which service times fade, how much the evidence on savings does: they are the model's, and last."""
_LEAST_S, _LEAST_SPREAD = 1e-9, 1e-9


@dataclass
class Caches:
    """The table of keys, and the evidence on savings, which is of reports that told of own requests with keys."""

    key: UintArray = along("f places ways", np.uint64)
    """Hash of key and model; 0: nothing is there."""
    holder: UintArray = along("f places ways", np.uint64)
    """Name hash of the worker that it went to."""
    age: FloatArray = along("f places ways")
    """The worker's `new_keys` then."""
    at_s: FloatArray = along("f places ways")
    """When that was: the oldest makes room."""
    hit: FloatArray = along("f places ways")
    """The probability, then, that the worker had it."""
    new_keys: FloatArray = per_worker()
    """Expected number of own keys sent to the worker that it did not have. A start counts as many: it loses all."""
    ended_rows: FloatArray = per_model()
    """Own rows with keys that were served since the last report that told of executions."""
    ended_hits: FloatArray = per_model()
    """Of them, those that were expected to hit."""
    reports: FloatArray = per_model()
    """How many, fading."""
    mean_hits: FloatArray = per_model()
    """Expected share of hits, of the last reports."""
    mean_took: FloatArray = per_model()
    """Time over what was expected, of the last reports."""
    hits_squared: FloatArray = per_model()
    """Sum, by rows, of squared distances of hits from their mean."""
    took_squared: FloatArray = per_model()
    hits_took: FloatArray = per_model()
    saved: FloatArray = per_model()
    """The share of the mean service time that a hit saves, 0 to 1; the same for all workers."""
    part: FloatArray = per_model()
    """The worker's part of the fleet's speed with the model; 0: it has executed nothing."""


def way_of(c: Caches, f: int, place: int, key: Any, holder: Any) -> int:
    """Where in its place the key with that worker is; -1: nowhere."""
    found = -1
    for i in range(c.key.shape[2]):
        if c.key[f, place, i] == key and c.holder[f, place, i] == holder:
            found = i
    return found


def place_of(c: Caches, key: Any) -> int:
    """Where the key may be."""
    return int(key & np.uint64(c.key.shape[1] - 1))


def warm(c: Caches, f: int, key: Any, holder: Any, r: int, memory: float) -> float:
    """The probability that the worker in row `r`, whose name's hash is `holder`, has the key from own picks."""
    place = place_of(c, key)
    i = way_of(c, f, place, key, holder)
    if i < 0:
        return 0.0
    since = c.new_keys[r] - c.age[f, place, i]
    # Less than none: the worker left, and another of its name has come.
    return math.exp(-since / memory) if since >= 0 else 0.0


def note(c: Caches, f: int, key: Any, holder: Any, r: int, memory: float, now_s: float) -> None:
    """An own request with the key goes to the worker in row `r`."""
    place = place_of(c, key)
    i = way_of(c, f, place, key, holder)
    hit = warm(c, f, key, holder, r, memory)
    c.new_keys[r] += 1 - hit
    if i < 0:
        i = 0
        for j in range(c.key.shape[2]):
            if c.at_s[f, place, j] < c.at_s[f, place, i]:
                i = j
    c.key[f, place, i], c.holder[f, place, i] = key, holder
    c.age[f, place, i], c.at_s[f, place, i], c.hit[f, place, i] = c.new_keys[r], now_s, hit


def served(c: Caches, f: int, key: Any, holder: Any, r: int, m: int, rows: float) -> None:
    """An own request with the key was served by the worker in row `r`."""
    place = place_of(c, key)
    i = way_of(c, f, place, key, holder)
    if i >= 0:
        c.ended_rows[r, m] += rows
        c.ended_hits[r, m] += rows * c.hit[f, place, i]


def take_back(c: Caches, f: int, key: Any, holder: Any) -> None:
    """An own request with the key was not served by that worker."""
    place = place_of(c, key)
    i = way_of(c, f, place, key, holder)
    if i >= 0:
        c.key[f, place, i] = np.uint64(0)
        c.at_s[f, place, i] = 0.0


def lose_all(c: Caches, r: int, memory: float) -> None:
    """The worker in row `r` has started anew."""
    c.new_keys[r] += 1e3 * memory


def observe(c: Caches, r: int, m: int, rows: float, took: float) -> None:
    """A report's executions, of `rows` rows, took so many times as long as expected."""
    ended_rows = c.ended_rows[r, m]
    if ended_rows > 0:
        hits, took = c.ended_hits[r, m] / ended_rows, min(took, _MOST)
        if c.reports[r, m] > 0:
            # Others' rows among them hit as often as ever.
            dh = min(ended_rows / max(rows, 1.0), 1.0) * (hits - c.mean_hits[r, m])
            dt = took - c.mean_took[r, m]
            c.hits_squared[r, m] += ended_rows * dh * dh
            c.took_squared[r, m] += ended_rows * dt * dt
            c.hits_took[r, m] += ended_rows * dh * dt
        weight = max(_LATELY, 1 / (1 + c.reports[r, m]))
        c.mean_hits[r, m] += weight * (hits - c.mean_hits[r, m])
        c.mean_took[r, m] += weight * (took - c.mean_took[r, m])
        c.reports[r, m] += 1
    c.ended_rows[r, m] = c.ended_hits[r, m] = 0.0


def row_s(s: Service, at: At) -> FloatArray:
    """Device seconds that a row takes in a full batch; `at`: worker and model."""
    taken_s: FloatArray = np.maximum(
        (s.fixed_s[at] / s.max_batch_rows[at] + s.per_row_s[at]) / s.parallel[at], _LEAST_S
    )
    return taken_s


def saving_now_s(c: Caches, s: Service, at: At, rows: float | FloatArray, balancers: float | FloatArray) -> FloatArray:
    """Device seconds that hits save there, of a request of `rows` rows and the others' like it."""
    saved_s: FloatArray = c.saved[at] * row_s(s, at) * rows * balancers
    return saved_s


def learn(c: Caches, s: Service, first: int, workers: int, share: float) -> None:
    """Forget some of the evidence, and fit to the rest what a hit saves; and renew the parts of the speed. For rows of
    one fleet."""
    keep = 1 - share * _KEPT
    for m in range(c.reports.shape[1]):
        reports, hits_squared, took_squared, hits_took, speed = 0.0, 0.0, 0.0, 0.0, 0.0
        for r in range(first, first + workers):
            c.reports[r, m] *= keep
            c.hits_squared[r, m] *= keep
            c.took_squared[r, m] *= keep
            c.hits_took[r, m] *= keep
            reports += c.reports[r, m]
            hits_squared += c.hits_squared[r, m]
            took_squared += c.took_squared[r, m]
            hits_took += c.hits_took[r, m]
            speed += 1 / float(row_s(s, (r, m))) if s.weight[r, m] > 0 else 0.0
        saved = saving(reports, hits_squared, took_squared, hits_took)
        for r in range(first, first + workers):
            c.saved[r, m] = saved
            c.part[r, m] = 1 / float(row_s(s, (r, m))) / speed if s.weight[r, m] > 0 else 0.0


def saving(reports: float, hits_squared: float, took_squared: float, hits_took: float) -> float:
    """The slope of a least-squares line, with the sign turned, shrunk towards none by its standard error; 0 to 1."""
    if reports < _LEAST_REPORTS or hits_squared < _LEAST_SPREAD or hits_took >= 0:
        return 0.0
    slope = -hits_took / hits_squared
    doubt = _SURE * _SURE * max(took_squared / hits_squared - slope * slope, 0.0) / reports
    return min(slope - doubt / slope, 1.0) if slope * slope > doubt else 0.0
