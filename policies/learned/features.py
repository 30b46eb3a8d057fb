"""What the learned policy sees of each worker: ratios of the view's columns, so that no unit and no fleet is special.

A feature is `log1p(min(ratio, most))` of a ratio of at least 0; a cost term is `min(ratio, most)` itself. Ratios to the
best worker, and means over the eligible ones, make the same network fit fleets of any size and speed.

A ratio is declared once, as a function of elements: here it is given arrays, in `loops.py` numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from policies.base import WORST, FleetView, FloatArray, Request, count_of
from policies.expected_latency import Elements, ExpectedLatency, expected_s, saved_s

_HEURISTIC = ExpectedLatency()
"""With its defaults: what the network corrects."""
# Arrays of no axis: NumPy takes twice as long to combine a column with a float of Python's.
_TINY_S, _ZERO, _ONE = np.array(1e-6), np.array(0.0), np.array(1.0)
_ERROR_S, _SAVING = np.array(_HEURISTIC.error_penalty_s), np.array(_HEURISTIC.saving_factor)
_SHARE, _SHARE_OTHER = np.array(_HEURISTIC.delayed_share), np.array(_HEURISTIC.delayed_share_other_models)
_SHARE_BEHIND = np.array(_HEURISTIC.behind_share)
_WORST, _INF = np.array(WORST), np.array(np.inf)


class FeatureInputs(NamedTuple):
    """What ratios are made of: arrays that broadcast against `(..., n)`, or the numbers of one worker."""

    marginal_s: Elements
    """completion_s - backlog_s."""
    backlog_s: Elements
    pending: Elements
    in_flight: Elements
    reported_pending: Elements
    service_s: Elements
    """See `at_least_tiny`."""
    latency_s: Elements
    error_rate: Elements
    report_age_s: Elements
    pending_other_models: Elements
    cached: Elements
    saved_s: Elements
    """See `saving_of`."""
    cost_s: Elements
    """See `cost_of`."""
    best_s: Elements
    """The least cost of the eligible workers, not quite 0; the same for all, as are those that follow."""
    least_service_s: Elements
    mean_pending: Elements
    workers: Elements
    """How many are eligible."""
    rows: Elements
    deadline_s: Elements
    """See `at_least_tiny`."""


# Functions of elements: arrays or numbers.
def cost_of(
    completion_s: Elements,
    backlog_s: Elements,
    pending: Elements,
    pending_other_models: Elements,
    behind_s: Elements,
    error_rate: Elements,
) -> Elements:
    """What a pick costs by `expected_latency`, but for caches; infinite and unknown (NaN) ones are `WORST`."""
    seconds = expected_s(
        *(completion_s, backlog_s, pending, pending_other_models, behind_s, error_rate),
        *(_ERROR_S, _SHARE, _SHARE_OTHER, _SHARE_BEHIND),
    )
    return np.fmin(seconds, _WORST)


def saving_of(cached: Elements, saving_s: Elements) -> Elements:
    """What a warm cache saves by `expected_latency`."""
    return saved_s(cached, saving_s, _SAVING)


def at_least_tiny(duration_s: Elements) -> Elements:
    """Seconds to divide by."""
    return np.maximum(duration_s, _TINY_S)


def _excess(s: FeatureInputs) -> Elements:
    """How much worse than the best, what a warm cache saves left out; a feature."""
    return s.cost_s / s.best_s - _ONE


def relative_cost(s: FeatureInputs) -> Elements:
    """What the score is based on: `expected_latency`'s cost, relative to the best without caches."""
    return (s.cost_s - s.saved_s) / s.best_s - _ONE


def _externality(s: FeatureInputs) -> Elements:
    return s.marginal_s * s.pending / s.best_s


def _crossing(s: FeatureInputs) -> Elements:
    return s.marginal_s * s.pending_other_models / s.best_s


def _saving(s: FeatureInputs) -> Elements:
    return s.saved_s / s.best_s


def _staleness(s: FeatureInputs) -> Elements:
    return s.report_age_s / s.best_s


class Feature(NamedTuple):
    """One input of the network."""

    name: str
    of: str
    """The ratio, in terms of the view's columns and of the request."""
    unit: str
    most: float
    """Where the ratio is cut off."""
    ratio: Callable[[FeatureInputs], Any]
    """The same as `of`, of elements."""

    def described(self) -> dict[str, Any]:
        """JSON-like; for people, and for the schema."""
        return {"name": self.name, "of": self.of, "unit": self.unit, "most": self.most}


OF_WORKER = (
    Feature("excess", "cost / best - 1", "1", 100.0, _excess),
    Feature("backlog", "backlog_s / service_s", "services", 1000.0, lambda s: s.backlog_s / s.service_s),
    Feature(
        "slowness", "service_s / least service_s - 1", "1", 100.0, lambda s: s.service_s / s.least_service_s - _ONE
    ),
    Feature(
        "marginal",
        "(completion_s - backlog_s) / service_s",
        "services",
        100.0,
        lambda s: s.marginal_s / s.service_s,
    ),
    Feature("externality", "(completion_s - backlog_s) * pending / best", "requests", 1000.0, _externality),
    Feature("crossing", "(completion_s - backlog_s) * pending_other_models / best", "requests", 1000.0, _crossing),
    Feature("saving", "saved / best", "1", 1000.0, _saving),
    Feature("cached", "cached", "share", 1.0, lambda s: s.cached),
    Feature("pending", "pending", "requests", 1000.0, lambda s: s.pending),
    Feature("others", "pending - in_flight", "requests", 1000.0, lambda s: s.pending - s.in_flight),
    Feature("reported_pending", "reported_pending", "requests", 1000.0, lambda s: s.reported_pending),
    Feature("staleness", "report_age_s / best", "1", 100.0, _staleness),
    Feature("error_rate", "error_rate", "share", 1.0, lambda s: s.error_rate),
    Feature("latency", "latency_s / cost", "1", 100.0, lambda s: s.latency_s / s.cost_s),
    Feature("urgency", "cost / deadline_s", "1", 10.0, lambda s: s.cost_s / s.deadline_s),
)
OF_FLEET = (
    Feature("rows", "rows", "rows", 1000.0, lambda s: s.rows),
    Feature("workers", "eligible workers", "workers", 16.0, lambda s: s.workers),
    Feature("load", "best / least service_s", "services", 1000.0, lambda s: s.best_s / s.least_service_s),
    Feature("mean_pending", "mean pending", "requests", 1000.0, lambda s: s.mean_pending),
)
"""The same for every worker."""
FEATURES = OF_WORKER + OF_FLEET
"""In the order of the network's inputs. cost: that of `expected_latency`, what a warm cache saves left out; saved: what
that is; best = the least cost; least and mean are over the eligible workers."""

TERMS = (
    Feature("backlog", "backlog_s / best", "1", 1000.0, lambda s: s.backlog_s / s.best_s),
    Feature("marginal", "(completion_s - backlog_s) / best", "1", 1000.0, lambda s: s.marginal_s / s.best_s),
    Feature("externality", "(completion_s - backlog_s) * pending / best", "requests", 1000.0, _externality),
    Feature("crossing", "(completion_s - backlog_s) * pending_other_models / best", "requests", 1000.0, _crossing),
    Feature("saving", "saved / best", "1", 1000.0, _saving),
    Feature("service", "service_s / best", "1", 1000.0, lambda s: s.service_s / s.best_s),
    Feature("latency", "latency_s / best", "1", 1000.0, lambda s: s.latency_s / s.best_s),
    Feature("staleness", "report_age_s / best", "1", 1000.0, _staleness),
)
"""Costs relative to the best, that the network weighs and adds."""

_COLUMNS = 4
"""Counts up when a column of the view, or the cost, comes to mean something else: 4, since models take turns."""
SCHEMA = hashlib.sha256(
    json.dumps([_COLUMNS, *([[*one.described().values()] for one in ones] for ones in (FEATURES, TERMS))]).encode()
).hexdigest()[:16]
"""Travels with the weights: a network fits exactly the inputs that it was trained on."""

_LINES = TERMS + OF_WORKER + OF_FLEET
_RATIOS = (*dict.fromkeys(one.ratio for one in TERMS + OF_WORKER), relative_cost)
"""Each once, though it may be an input twice; and what the score is based on."""
_MOST = np.array([one.most for one in _LINES])[:, None]


class Inputs(NamedTuple):
    """Of one decision, or many."""

    features: FloatArray
    """`(..., n, f)`."""
    terms: FloatArray
    """`(..., n, t)`: on their own scale, not logarithms."""
    relative_cost: FloatArray
    """(cost - saved) / best - 1, not cut off; `(..., n)`; infinite where not eligible."""
    best_s: FloatArray
    """The least cost; `(..., 1)`."""


def inputs(request: Request, fleet: FleetView) -> Inputs:
    """The network's inputs; defined, and finite, whatever the columns hold."""
    with np.errstate(all="ignore"):
        return _inputs(request, fleet)


def _inputs(request: Request, fleet: FleetView) -> Inputs:
    seen, shape = _see(request, fleet), fleet.eligible.shape
    ratios = {ratio: ratio(seen) for ratio in _RATIOS}
    # An input a line, so that each is written in one piece; the network wants a worker a line.
    lines = np.empty((len(_LINES), *shape))
    differ = len(TERMS) + len(OF_WORKER)
    written = lines.reshape(len(lines) * shape[0], *shape[1:])[: differ * shape[0]]
    np.concatenate([ratios[one.ratio] for one in _LINES[:differ]], out=written)
    for line, one in zip(lines[differ:], OF_FLEET, strict=True):
        line[...] = one.ratio(seen)
    flat = lines.reshape(len(lines), -1)
    np.fmin(flat, _MOST, out=flat)
    np.fmax(flat, _ZERO, out=flat)
    x = flat[len(TERMS) :]
    np.log1p(x, out=x)
    by_worker = np.ascontiguousarray(flat.T).reshape(*shape, len(lines))
    return Inputs(by_worker[..., len(TERMS) :], by_worker[..., : len(TERMS)], ratios[relative_cost], seen.best_s)


def _see(request: Request, fleet: FleetView) -> FeatureInputs:
    eligible, completion_s, backlog_s, pending = fleet.eligible, fleet.completion_s, fleet.backlog_s, fleet.pending
    error_rate, service_s, count = fleet.error_rate, at_least_tiny(fleet.service_s), count_of(eligible)
    count = max(count, 1) if isinstance(count, int) else np.maximum(count, 1)
    other_models = fleet.pending_other_models
    cost_s = np.where(
        eligible, cost_of(completion_s, backlog_s, pending, other_models, fleet.behind_s, error_rate), _INF
    )
    return FeatureInputs(
        marginal_s=completion_s - backlog_s,
        backlog_s=backlog_s,
        pending=pending,
        in_flight=fleet.in_flight,
        reported_pending=fleet.reported_pending,
        service_s=service_s,
        latency_s=fleet.latency_s,
        error_rate=error_rate,
        report_age_s=fleet.report_age_s,
        pending_other_models=other_models,
        cached=fleet.cached,
        saved_s=saving_of(fleet.cached, fleet.saving_s),
        cost_s=cost_s,
        best_s=at_least_tiny(np.minimum.reduce(cost_s, axis=-1, keepdims=True, initial=WORST)),
        least_service_s=np.minimum.reduce(service_s, axis=-1, keepdims=True, initial=WORST, where=eligible),
        mean_pending=np.add.reduce(pending, axis=-1, keepdims=True, where=eligible) / count,
        workers=count,
        rows=request.rows,
        deadline_s=at_least_tiny(request.deadline_s),
    )
