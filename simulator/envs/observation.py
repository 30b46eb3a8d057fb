"""What the agent sees: the columns of the production `FleetView`, and what routing may know of the request.

README.md has the table with units, ranges and meanings.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from policies.base import BoolArray, FloatArray, Request
from policies.consistent_hash import ConsistentHash
from simulator.batch import Batch
from simulator.engine.layout import E_BALANCERS
from simulator.view import BatchView

Float32Array = npt.NDArray[np.float32]
Observation = dict[str, Float32Array]
"""`request` of shape `(..., g)` and `workers` of shape `(..., n, f)`."""

LONGEST_S = 60.0
"""Seconds at which a time is clipped; so long is a report missing that never came, and a deadline that there is not."""
MOST = 10_000.0
"""Where counts and weights are clipped."""

WORKER_COLUMNS: dict[str, float] = {
    "eligible": 1.0,
    "weight": MOST,
    "in_flight": MOST,
    "reported_pending": MOST,
    "pending": MOST,
    "backlog_s": LONGEST_S,
    "completion_s": LONGEST_S,
    "service_s": LONGEST_S,
    "latency_s": LONGEST_S,
    "error_rate": 1.0,
    "tokens": MOST,
    "report_age_s": LONGEST_S,
    "home": 1.0,
}
"""Columns of `workers` and the largest value of each; the least is 0. All but `home` are those of `FleetView`."""
REQUEST_COLUMNS: dict[str, float] = {"rows": MOST, "deadline_s": LONGEST_S, "priority": MOST, "balancers": MOST}
"""Columns of `request`, likewise; the model's one-hot follows."""

_WORKERS_HIGH = np.array(list(WORKER_COLUMNS.values()), np.float32)
_REQUEST_HIGH = np.array(list(REQUEST_COLUMNS.values()), np.float32)
_ELIGIBLE = list(WORKER_COLUMNS).index("eligible")
_HOME = ConsistentHash(balance_factor=np.inf)


def observation_space(workers: int, models: int) -> spaces.Dict:
    """The space of one environment's observations; all bounds are finite."""
    workers_high = np.tile(_WORKERS_HIGH, (workers, 1))
    request_high = np.concatenate([_REQUEST_HIGH, np.ones(models, np.float32)])
    return spaces.Dict(
        {
            "request": spaces.Box(np.zeros_like(request_high), request_high, dtype=np.float32),
            "workers": spaces.Box(np.zeros_like(workers_high), workers_high, dtype=np.float32),
        }
    )


def observe(batch: Batch) -> Observation:
    """Observations of all environments, `(e, ...)`, in new arrays.

    Rows of workers that the balancers were not told of are 0. Where no request waits, so are `request` and `eligible`.
    """
    view, request = batch.view(), batch.request()
    workers = np.empty((*view.eligible.shape, len(WORKER_COLUMNS)), np.float32)
    for i, name in enumerate(WORKER_COLUMNS):
        workers[..., i] = _home(request, view) if name == "home" else getattr(view, name)
    workers.clip(0.0, _WORKERS_HIGH, out=workers)
    workers *= _announced(batch)[..., None]
    workers[~batch.waiting, :, _ELIGIBLE] = 0.0
    return {"request": _requests(batch, request), "workers": workers}


def _requests(batch: Batch, request: Request) -> Float32Array:
    sizes = batch.sim.sizes
    columns = np.zeros((len(batch.waiting), len(REQUEST_COLUMNS) + sizes.models), np.float32)
    columns[:, :1], columns[:, 1:2], columns[:, 2:3] = request.rows, request.deadline_s, request.priority
    columns[:, 3] = batch.sim.plan.env[:, E_BALANCERS]
    columns[:, :4].clip(0.0, _REQUEST_HIGH, out=columns[:, :4])
    columns[np.arange(len(columns)), len(REQUEST_COLUMNS) + batch.model()] = 1.0
    columns[~batch.waiting] = 0.0
    return columns


def _home(request: Request, view: BatchView) -> FloatArray | float:
    """1 at the worker that the request's key hashes to; 0 for all where it has none."""
    if request.key is None:
        return 0.0
    keyed: BoolArray = np.asarray(request.key) != 0
    home: FloatArray = _HOME.probabilities(request, view) * keyed
    return home


def _announced(batch: Batch) -> BoolArray:
    """Which workers the balancers were told of, `(e, n)`; not those that will join, nor mere padding."""
    sizes = batch.sim.sizes
    announced: BoolArray = batch.sim.known.added.reshape(-1, sizes.balancers, sizes.workers)[:, 0]
    return announced
