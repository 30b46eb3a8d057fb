"""What the agent sees: the columns of the production `FleetView`, and what routing may know of the request.

README.md has the table with units, ranges and meanings.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from balancer.kernel import worker_columns
from balancer.kernel.state import RequestFeatures
from policies.base import BoolArray, FloatArray, IntArray
from policies.choices import LEAST
from policies.columns import DECLARED, QUANTITIES, Unit
from policies.consistent_hash import ConsistentHash
from simulator.batch import Batch
from simulator.engine.coming import request_of
from simulator.engine.compiled import compiled, from_source, inlined
from simulator.engine.knowledge import row
from simulator.engine.layout import DECIDING, E_BALANCERS, IN_SYSTEM, NOW, Sim

Float32Array = npt.NDArray[np.float32]
Observation = dict[str, Float32Array]
"""`request` of shape `(..., g)` and `workers` of shape `(..., n, f)`."""

LONGEST_S = 60.0
"""Seconds at which a time is clipped; so long is a report missing that never came, and a deadline that there is not."""
MOST = 10_000.0
"""Where counts and weights are clipped."""
MOST_TOKENS = 1_000_000.0
"""Where tokens are."""

_MOST_BY_UNIT: dict[Unit, float] = {"requests": MOST, "tokens": MOST_TOKENS, "1": MOST, "share": 1.0, "s": LONGEST_S}
WORKER_COLUMNS: dict[str, float] = {
    "eligible": 1.0,
    **{name: _MOST_BY_UNIT[DECLARED[name].unit] for name in QUANTITIES},
    "home": 1.0,
}
"""Columns of `workers` and the largest value of each; the least is 0. All but `home` are those of `FleetView`."""
REQUEST_COLUMNS: dict[str, float] = {
    **{"rows": MOST, "deadline_s": LONGEST_S, "priority": MOST, "balancers": MOST},
    "prompt_tokens": MOST_TOKENS,
}
"""Columns of `request`, likewise; the model's one-hot follows."""

_WORKERS_HIGH = np.array(list(WORKER_COLUMNS.values()))
_REQUEST_HIGH = np.array(list(REQUEST_COLUMNS.values()))


class Shown(NamedTuple):
    request: Float32Array
    """`(e, g)`."""
    workers: Float32Array
    """`(e, n, f)`."""
    mask: npt.NDArray[np.int8]
    """1: may be picked, `(e, n)`; all 1 where no request waits, since nothing is decided."""
    in_system: IntArray
    """Requests that have arrived and not been answered, the one that waits among them; `(e,)`."""
    now_s: FloatArray
    """`(e,)`."""

    @property
    def observation(self) -> Observation:
        return {"request": self.request, "workers": self.workers}


class Window:
    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._last = np.zeros(len(batch.waiting), np.int64)
        sizes = batch.sim.sizes
        self._request = len(batch.waiting), len(REQUEST_COLUMNS) + sizes.models
        self._workers = len(batch.waiting), sizes.workers, len(WORKER_COLUMNS)

    def look(self) -> Shown:
        """What is there now, in new arrays.

        Rows of workers that the balancers were not told of are 0. Where no request waits, `request` and `eligible` are
        0, and the other columns are of the last moment at which one did.
        """
        shown = Shown(
            np.empty(self._request, np.float32),
            np.empty(self._workers, np.float32),
            np.empty(self._workers[:2], np.int8),
            np.empty(self._workers[0], np.int64),
            np.empty(self._workers[0]),
        )
        _look(self._batch.native, self._batch.waiting, self._last, _REQUEST_HIGH, _WORKERS_HIGH, *shown)
        return shown


def observation_space(workers: int, models: int) -> spaces.Dict:
    """The space of one environment's observations; all bounds are finite."""
    workers_high = np.tile(_WORKERS_HIGH, (workers, 1)).astype(np.float32)
    request_high = np.concatenate([_REQUEST_HIGH, np.ones(models)]).astype(np.float32)
    return spaces.Dict(
        {
            "request": spaces.Box(np.zeros_like(request_high), request_high, dtype=np.float32),
            "workers": spaces.Box(np.zeros_like(workers_high), workers_high, dtype=np.float32),
        }
    )


# What is compiled and shared with other files would not be compiled anew when it changes: all of it stays here.
_bid, _fill_least = from_source(ConsistentHash.cost), from_source(LEAST.fill)
_draw = from_source(worker_columns.draw)


@inlined
def _find_home(sim: Sim, e: int, first: int, features: RequestFeatures, now_s: float) -> None:
    """In `decision.shares`: 1 at the worker that the request's key hashes to; 0 for all where it has none."""
    x = sim.decision
    if features.keyed == 0:
        for w in range(sim.sizes.workers):
            x.shares[e, w] = 0.0
        return
    for w in range(sim.sizes.workers):
        x.cost[e, w] = _bid(_draw(sim, e, w, first + w, features, now_s), x.weight[e, w])
    _fill_least(x.cost[e], x.mask[e], 0.0, x.scratch[e], x.shares[e])


_OF_WORKER = {
    **{name: from_source(function) for name, function in worker_columns.OF_WORKER.items()},
    "eligible": inlined(lambda sim, e, w, r, features, now_s: 1.0 if sim.decision.mask[e, w] else 0.0),
    "home": inlined(lambda sim, e, w, r, features, now_s: sim.decision.shares[e, w]),
}


def _together(columns: Sequence[Any]) -> Any:
    """All of a worker's columns as one tuple: computed before any is stored, they share what they have in common."""
    if not columns:
        return inlined(lambda sim, e, w, r, features, now_s: ())
    one, rest = columns[0], _together(columns[1:])
    return inlined(
        lambda sim, e, w, r, features, now_s: (
            one(sim, e, w, r, features, now_s),
            *rest(sim, e, w, r, features, now_s),
        )
    )


_columns = _together([_OF_WORKER[name] for name in WORKER_COLUMNS])
_COUNT = len(WORKER_COLUMNS)
_ELIGIBLE = list(WORKER_COLUMNS).index("eligible")
_OF_REQUEST = len(REQUEST_COLUMNS)


@inlined
def _clipped(value: float, high: float) -> np.float32:
    return np.float32(min(max(value, 0.0), high))


@compiled
def _look(
    sim: Sim,
    waiting: BoolArray,
    last: IntArray,
    request_high: FloatArray,
    workers_high: FloatArray,
    request: Float32Array,
    workers: Float32Array,
    mask: npt.NDArray[np.int8],
    in_system: IntArray,
    now_s: FloatArray,
) -> None:
    """Fill the fields of `Shown`; `last`: the request that each environment showed last, kept up to date, `(e,)`."""
    n, pending = sim.sizes.workers, sim.pending
    for e in range(waiting.size):
        in_system[e], now_s[e] = sim.state.counts[e, IN_SYSTEM], sim.state.clock[e, NOW]
        if waiting[e]:
            last[e] = sim.state.counts[e, DECIDING]
        then_s, first = pending.now_s[e], row(sim, e, pending.balancer[e], 0)
        features = request_of(sim, e, last[e], then_s)
        balancers, prompt_tokens = sim.plan.env[e, E_BALANCERS], pending.prompt_tokens[e]
        of_request = (pending.rows[e], pending.deadline_s[e], pending.priority[e], balancers, prompt_tokens)
        for i in range(_OF_REQUEST):
            request[e, i] = _clipped(of_request[i], request_high[i]) if waiting[e] else 0.0
        for m in range(sim.sizes.models):
            request[e, _OF_REQUEST + m] = waiting[e] and m == pending.model[e]
        _find_home(sim, e, first, features, then_s)
        for w in range(n):
            mask[e, w] = sim.decision.mask[e, w] or not waiting[e]
            out = workers[e, w]
            if sim.known.added[row(sim, e, 0, w)]:
                values = _columns(sim, e, w, first + w, features, then_s)
                for i in range(_COUNT):
                    out[i] = _clipped(values[i], workers_high[i])
                if not waiting[e]:
                    out[_ELIGIBLE] = 0.0
            else:
                out[:] = 0.0
