"""What the learned policy sees of each worker: ratios of the view's columns, so that no unit and no fleet is special.

A feature is `log1p(min(ratio, most))` of a ratio of at least 0; a cost term is `min(ratio, most)` itself. Ratios to the
best worker, and means over the eligible ones, make the same network fit fleets of any size and speed.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import numpy as np

from policies.base import WORST, FleetView, FloatArray, Request, count_of, masked_cost

ERROR_PENALTY_S = 1.0
"""Seconds that a failed request counts as; as `expected_latency` has it."""


class Feature(NamedTuple):
    """One input of the network."""

    name: str
    of: str
    """The ratio, in terms of the view's columns and of the request."""
    unit: str
    most: float
    """Where the ratio is cut off."""


FEATURES = (
    Feature("excess", "cost / best - 1", "1", 100.0),
    Feature("backlog", "backlog_s / service_s", "services", 1000.0),
    Feature("slowness", "service_s / least service_s - 1", "1", 100.0),
    Feature("marginal", "(completion_s - backlog_s) / service_s", "services", 100.0),
    Feature("externality", "(completion_s - backlog_s) * pending / best", "requests", 1000.0),
    Feature("pending", "pending", "requests", 1000.0),
    Feature("others", "pending - in_flight", "requests", 1000.0),
    Feature("reported_pending", "reported_pending", "requests", 1000.0),
    Feature("staleness", "report_age_s / best", "1", 100.0),
    Feature("error_rate", "error_rate", "share", 1.0),
    Feature("latency", "latency_s / cost", "1", 100.0),
    Feature("urgency", "cost / deadline_s", "1", 10.0),
    Feature("rows", "rows", "rows", 1000.0),
    Feature("workers", "eligible workers", "workers", 16.0),
    Feature("load", "best / least service_s", "services", 1000.0),
    Feature("mean_pending", "mean pending", "requests", 1000.0),
)
"""In the order of the network's inputs. cost = completion_s + error_rate * 1 s; best = the least cost; least and mean
are over the eligible workers."""

TERMS = (
    Feature("backlog", "backlog_s / best", "1", 1000.0),
    Feature("marginal", "(completion_s - backlog_s) / best", "1", 1000.0),
    Feature("externality", "(completion_s - backlog_s) * pending / best", "requests", 1000.0),
    Feature("service", "service_s / best", "1", 1000.0),
    Feature("latency", "latency_s / best", "1", 1000.0),
    Feature("staleness", "report_age_s / best", "1", 1000.0),
)
"""Costs relative to the best, that the network weighs and adds."""

_COLUMNS = 2
"""Counts up when a column of the view comes to mean something else: 2, since `completion_s` knows what executes."""
SCHEMA = hashlib.sha256(json.dumps([_COLUMNS, FEATURES, TERMS]).encode()).hexdigest()[:16]
"""Travels with the weights: a network fits exactly the inputs that it was trained on."""

_MOST = np.array([one.most for one in (*FEATURES, *TERMS)])[:, None]
# Arrays of no axis: NumPy takes twice as long to combine a column with a float of Python's.
_TINY_S, _ERROR_S, _ZERO, _ONE = np.array(1e-6), np.array(ERROR_PENALTY_S), np.array(0.0), np.array(1.0)


class Inputs(NamedTuple):
    """Of one decision, or many."""

    features: FloatArray
    """`(..., n, f)`."""
    terms: FloatArray
    """`(..., n, t)`: on their own scale, not logarithms."""
    relative_cost: FloatArray
    """cost / best - 1, not cut off; `(..., n)`; infinite where not eligible."""
    best_s: FloatArray
    """The least cost; `(..., 1)`."""


def inputs(request: Request, fleet: FleetView) -> Inputs:
    """The network's inputs; defined, and finite, whatever the columns hold."""
    with np.errstate(all="ignore"):
        return _inputs(request, fleet)


def _inputs(request: Request, fleet: FleetView) -> Inputs:
    eligible = fleet.eligible
    completion_s, backlog_s, pending = fleet.completion_s, fleet.backlog_s, fleet.pending
    error_rate, latency_s = fleet.error_rate, fleet.latency_s
    service_s = np.maximum(fleet.service_s, _TINY_S)
    cost_s = masked_cost(completion_s + _ERROR_S * error_rate, eligible)
    best_s = np.maximum(np.minimum.reduce(cost_s, axis=-1, keepdims=True, initial=WORST), _TINY_S)
    least_service_s = np.minimum.reduce(service_s, axis=-1, keepdims=True, initial=WORST, where=eligible)
    marginal_s = completion_s - backlog_s
    count = np.maximum(count_of(eligible), 1)
    relative = cost_s / best_s - _ONE
    # An input a row, so that each is written in one piece; the network wants a worker a row.
    stacked = np.empty((len(_MOST), *eligible.shape))
    x, z = stacked[: len(FEATURES)], stacked[len(FEATURES) :]
    z[0] = backlog_s
    z[1] = marginal_s
    np.multiply(marginal_s, pending, out=z[2])
    z[3] = service_s
    z[4] = latency_s
    z[5] = fleet.report_age_s
    z /= best_s
    x[0] = relative
    np.divide(backlog_s, service_s, out=x[1])
    np.subtract(service_s / least_service_s, _ONE, out=x[2])
    np.divide(marginal_s, service_s, out=x[3])
    x[4] = z[2]
    x[5] = pending
    np.subtract(pending, fleet.in_flight, out=x[6])
    x[7] = fleet.reported_pending
    x[8] = z[5]
    x[9] = error_rate
    np.divide(latency_s, cost_s, out=x[10])
    np.divide(cost_s, np.maximum(request.deadline_s, _TINY_S), out=x[11])
    x[12] = request.rows
    x[13] = count
    x[14] = best_s / least_service_s
    x[15] = np.add.reduce(pending, axis=-1, keepdims=True, where=eligible) / count
    flat = stacked.reshape(len(stacked), -1)
    np.fmin(flat, _MOST, out=flat)
    np.fmax(flat, _ZERO, out=flat)
    np.log1p(x, out=x)
    by_worker = np.ascontiguousarray(flat.T).reshape(*eligible.shape, len(stacked))
    return Inputs(by_worker[..., : len(FEATURES)], by_worker[..., len(FEATURES) :], relative, best_s)
