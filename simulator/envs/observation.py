"""What the agent sees: the columns of the production `FleetView`, and what routing may know of the request.

`simulator/envs/README.md` has the table with units and ranges.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from policies.base import BoolArray, FloatArray
from policies.consistent_hash import ConsistentHash
from simulator.batch import Batch, IntArray
from simulator.engine import layout as at
from simulator.view import BatchView

Float32Array = npt.NDArray[np.float32]
Observation = dict[str, Float32Array]
"""`workers` of shape `(..., n, f)` and `request` of shape `(..., g)`."""

LONGEST_S = 60.0
"""Seconds beyond which a time is clipped: so a report that never came, and a deadline that there is not."""
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
"""Columns of `workers` and their largest values; the least is 0. All but `home` are those of `FleetView`."""
REQUEST_COLUMNS: dict[str, float] = {"rows": MOST, "deadline_s": LONGEST_S, "priority": MOST, "balancers": MOST}
"""Columns of `request` before the model's one-hot, and their largest values."""

_WORKERS_HIGH = np.array(list(WORKER_COLUMNS.values()), np.float32)
_REQUEST_HIGH = np.array(list(REQUEST_COLUMNS.values()), np.float32)
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
    """The observations of all environments, new arrays; where nothing waits, the request and `eligible` are 0."""
    view = batch.view()
    known = _known(batch) & _servable(batch)[:, None]
    workers = np.empty((*known.shape, len(WORKER_COLUMNS)), np.float32)
    for i, name in enumerate(WORKER_COLUMNS):
        workers[..., i] = _home(batch, view) if name == "home" else getattr(view, name)
    workers.clip(0.0, _WORKERS_HIGH, out=workers)
    workers *= _known(batch)[..., None]
    workers[~batch.waiting, :, 0] = 0.0
    return {"request": _requests(batch), "workers": workers}
