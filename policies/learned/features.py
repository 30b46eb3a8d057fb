"""What the learned policy sees of each worker: ratios of the view's columns, so that no unit and no fleet is special.

A feature is `log1p(min(ratio, most))` of a ratio of at least 0; a cost term is `min(ratio, most)` itself. Ratios to the
best worker, and means over the eligible ones, make the same network fit fleets of any size and speed.

A ratio is declared once, as data: `ratio_of` takes it of arrays, `loops.py` of numbers.
"""

import hashlib
import json
from typing import Any, NamedTuple

import numpy as np

from policies.base import WORST, FleetView, FloatArray, Request, count_of
from policies.costs import Elements
from policies.expected_latency import ExpectedLatency, expected_s, generated_s, saved_s

# Arrays of no axis: NumPy takes twice as long to combine a column with a float of Python's.
_TINY_S, _ZERO, _ONE = np.array(1e-6), np.array(0.0), np.array(1.0)
_WORST, _INF = np.array(WORST), np.array(np.inf)


class Numbers(NamedTuple):
    """Options of `expected_latency`, as the cost takes them; the network's `beta` stands for its `temperature`."""

    error_penalty_s: float
    delayed_share: float
    delayed_share_other_models: float
    work_behind_share: float
    saving_factor: float
    ttft_weight: float


DEFAULT_NUMBERS = np.array([getattr(ExpectedLatency(), name) for name in Numbers._fields])
NO_TOLLS = np.array([(2.0, 0.0)])
"""The last line of all tolls, which nobody is: identities are below 1."""


class FeatureInputs(NamedTuple):
    """What ratios are made of: arrays that broadcast against `(..., n)`, or the numbers of one worker."""

    marginal_s: Elements
    """completion_s - backlog_s."""
    backlog_s: Elements
    pending: Elements
    in_flight: Elements
    reported_pending: Elements
    service_s: Elements
    latency_s: Elements
    error_rate: Elements
    report_age_s: Elements
    pending_other_models: Elements
    cached: Elements
    saved_s: Elements
    cost_s: Elements
    best_s: Elements
    """The least cost of the eligible workers, not quite 0; the same for all, as are those that follow."""
    least_service_s: Elements
    mean_pending: Elements
    workers: Elements
    """How many are eligible."""
    rows: Elements
    deadline_s: Elements
    one: Elements = _ONE
    zero: Elements = _ZERO


# Functions of elements: arrays or numbers.
def cost_of(
    completion_s: Elements,
    backlog_s: Elements,
    pending: Elements,
    pending_other_models: Elements,
    work_behind_s: Elements,
    error_rate: Elements,
    toll_s: Elements,
    numbers: Elements,
) -> Elements:
    """What a pick costs by `expected_latency`, but for caches; infinite and unknown (NaN) ones are `WORST`."""
    seconds = expected_s(
        *(completion_s, backlog_s, pending, pending_other_models, work_behind_s, error_rate),
        *(numbers[0], numbers[1], numbers[2], numbers[3]),
    )
    return np.fmin(seconds + toll_s, WORST)


def saving_of(cached: Elements, saving_s: Elements, numbers: Elements) -> Elements:
    return saved_s(cached, saving_s, numbers[4])


def tolls_of(tolls: FloatArray, identity: FloatArray, kind_identity: FloatArray) -> FloatArray:
    """The toll of each worker, `(..., n)`: its own, else that of its device kind, else 0."""
    found = np.zeros(identity.shape)
    for identities in (kind_identity, identity):
        place = np.searchsorted(tolls[:, 0], identities)
        np.copyto(found, tolls[place, 1], where=tolls[place, 0] == identities)
    return found


def at_least_tiny(duration_s: Elements) -> Elements:
    """Seconds to divide by."""
    return np.maximum(duration_s, _TINY_S)


def relative_cost(cost_s: Elements, saving_s: Elements, best_s: Elements) -> Elements:
    """What the score is based on: `expected_latency`'s cost, relative to the best without caches."""
    return (cost_s - saving_s) / best_s - _ONE


class Ratio(NamedTuple):
    """`of * times / by - less`, of fields of `FeatureInputs`: data, so that NumPy and compiled loops take the same."""

    of: str
    times: str = "one"
    by: str = "one"
    less: str = "zero"

    def described(self) -> str:
        found = _CALLED.get(self.of, self.of)
        for sign, name, nothing in (("*", self.times, "one"), ("/", self.by, "one"), ("-", self.less, "zero")):
            if name != nothing:
                found += f" {sign} {_CALLED.get(name, name)}"
        return found


_CALLED = {
    **{"marginal_s": "(completion_s - backlog_s)", "cost_s": "cost", "best_s": "best", "saved_s": "saved", "one": "1"},
    **{"least_service_s": "least service_s", "mean_pending": "mean pending", "workers": "eligible workers"},
}


class Feature(NamedTuple):
    name: str
    ratio: Ratio
    unit: str
    most: float
    """Where the ratio is cut off."""

    def described(self) -> dict[str, Any]:
        """JSON-like; for people, and for the schema."""
        return {"name": self.name, "of": self.ratio.described(), "unit": self.unit, "most": self.most}


OF_WORKER = (
    Feature("excess", Ratio("cost_s", by="best_s", less="one"), "1", 100.0),
    Feature("backlog", Ratio("backlog_s", by="service_s"), "services", 1000.0),
    Feature("slowness", Ratio("service_s", by="least_service_s", less="one"), "1", 100.0),
    Feature("marginal", Ratio("marginal_s", by="service_s"), "services", 100.0),
    Feature("externality", Ratio("marginal_s", "pending", "best_s"), "requests", 1000.0),
    Feature("externality_other_models", Ratio("marginal_s", "pending_other_models", "best_s"), "requests", 1000.0),
    Feature("saving", Ratio("saved_s", by="best_s"), "1", 1000.0),
    Feature("cached", Ratio("cached"), "share", 1.0),
    Feature("pending", Ratio("pending"), "requests", 1000.0),
    Feature("pending_of_peers", Ratio("pending", less="in_flight"), "requests", 1000.0),
    Feature("reported_pending", Ratio("reported_pending"), "requests", 1000.0),
    Feature("staleness", Ratio("report_age_s", by="best_s"), "1", 100.0),
    Feature("error_rate", Ratio("error_rate"), "share", 1.0),
    Feature("latency", Ratio("latency_s", by="cost_s"), "1", 100.0),
    Feature("urgency", Ratio("cost_s", by="deadline_s"), "1", 10.0),
)
OF_FLEET = (
    Feature("rows", Ratio("rows"), "rows", 1000.0),
    Feature("workers", Ratio("workers"), "workers", 16.0),
    Feature("load", Ratio("best_s", by="least_service_s"), "services", 1000.0),
    Feature("mean_pending", Ratio("mean_pending"), "requests", 1000.0),
)
"""The same for every worker."""
FEATURES = OF_WORKER + OF_FLEET
"""The network's inputs, in their order. In the ratios, cost is that of `expected_latency` plus the toll, without what a
warm cache saves, which is `saved`; best is the least cost; least and mean are over the eligible workers."""

TERMS = (
    Feature("backlog", Ratio("backlog_s", by="best_s"), "1", 1000.0),
    Feature("marginal", Ratio("marginal_s", by="best_s"), "1", 1000.0),
    Feature("externality", Ratio("marginal_s", "pending", "best_s"), "requests", 1000.0),
    Feature("externality_other_models", Ratio("marginal_s", "pending_other_models", "best_s"), "requests", 1000.0),
    Feature("saving", Ratio("saved_s", by="best_s"), "1", 1000.0),
    Feature("service", Ratio("service_s", by="best_s"), "1", 1000.0),
    Feature("latency", Ratio("latency_s", by="best_s"), "1", 1000.0),
    Feature("staleness", Ratio("report_age_s", by="best_s"), "1", 1000.0),
)
"""Costs relative to the best, that the network weighs and adds."""

_COLUMNS = 4
"""Counts up when a column of the view, or the cost, comes to mean something else: 4, since models take turns."""
SCHEMA = hashlib.sha256(
    json.dumps([_COLUMNS, *([[*one.described().values()] for one in ones] for ones in (FEATURES, TERMS))]).encode()
).hexdigest()[:16]
"""Travels with the weights: a network fits exactly the inputs that it was trained on."""

_LINES = TERMS + OF_WORKER + OF_FLEET
_RATIOS = tuple(dict.fromkeys(one.ratio for one in _LINES))
"""Each once, though it may be an input twice."""
_PLACES = [_RATIOS.index(one.ratio) for one in _LINES]
_MOST = np.array([one.most for one in _LINES])[:, None]


class Inputs(NamedTuple):
    features: FloatArray
    """`(..., n, f)`."""
    terms: FloatArray
    """`(..., n, t)`: on their own scale, not logarithms."""
    relative_cost: FloatArray
    """(cost - saved) / best - 1, not cut off; `(..., n)`; infinite where not eligible."""
    best_s: FloatArray
    """The least cost; `(..., 1)`."""
    toll_s: FloatArray
    """What of the cost is toll, `(..., n)`."""


def inputs(
    request: Request, fleet: FleetView, numbers: FloatArray = DEFAULT_NUMBERS, tolls: FloatArray = NO_TOLLS
) -> Inputs:
    """The network's inputs; defined, and finite, whatever the columns hold. `numbers`, `tolls`: see `Network`."""
    with np.errstate(all="ignore"):
        return _inputs(request, fleet, numbers, tolls)


def _inputs(request: Request, fleet: FleetView, numbers: FloatArray, tolls: FloatArray) -> Inputs:
    toll_s = tolls_of(tolls, fleet.identity, fleet.kind_identity) * np.fmin(fleet.service_s, _WORST)
    seen, shape = _see(request, fleet, numbers, toll_s), fleet.eligible.shape
    ratios = [ratio_of(seen, ratio) for ratio in _RATIOS]
    # An input a line, so that each is written in one piece; the network wants a worker a line.
    lines = np.empty((len(_LINES), *shape))
    differ = len(TERMS) + len(OF_WORKER)
    written = lines.reshape(len(lines) * shape[0], *shape[1:])[: differ * shape[0]]
    np.concatenate([ratios[place] for place in _PLACES[:differ]], out=written)
    for line, place in zip(lines[differ:], _PLACES[differ:], strict=True):
        line[...] = ratios[place]
    flat = lines.reshape(len(lines), -1)
    np.fmin(flat, _MOST, out=flat)
    np.fmax(flat, _ZERO, out=flat)
    x = flat[len(TERMS) :]
    np.log1p(x, out=x)
    by_worker = np.ascontiguousarray(flat.T).reshape(*shape, len(lines))
    return Inputs(
        by_worker[..., len(TERMS) :],
        by_worker[..., : len(TERMS)],
        relative_cost(seen.cost_s, seen.saved_s, seen.best_s),
        seen.best_s,
        toll_s,
    )


def ratio_of(seen: FeatureInputs, ratio: Ratio) -> Any:
    """The ratio, not cut off."""
    of, times, by, less = ratio
    found = getattr(seen, of)
    if times != "one":
        found = found * getattr(seen, times)
    if by != "one":
        found = found / getattr(seen, by)
    return found if less == "zero" else found - getattr(seen, less)


def _see(request: Request, fleet: FleetView, numbers: FloatArray, toll_s: FloatArray) -> FeatureInputs:
    eligible, completion_s, backlog_s, pending = fleet.eligible, fleet.completion_s, fleet.backlog_s, fleet.pending
    error_rate, service_s, count = fleet.error_rate, at_least_tiny(fleet.service_s), count_of(eligible)
    count = max(count, 1) if isinstance(count, int) else np.maximum(count, 1)
    other_models = fleet.pending_other_models
    cost_s = cost_of(
        *(completion_s, backlog_s, pending, other_models, fleet.work_behind_s, error_rate), toll_s, numbers
    )
    saved = saving_of(fleet.cached, fleet.saving_s, numbers)
    if np.any(request.prompt_tokens):
        matched, prompt_tokens = fleet.matched_tokens, np.asarray(request.prompt_tokens, np.float64)
        bounded = np.fmin(np.fmax(matched, _ZERO), _WORST)
        mean_matched = np.add.reduce(bounded, axis=-1, keepdims=True, where=eligible) / count
        of_prompt = (
            *(completion_s, fleet.first_token_s, fleet.prompt_s, fleet.slowdown_s, pending, fleet.reported_pending),
            *(matched, prompt_tokens, mean_matched),
        )
        whole_s, cached_s = (generated_s(*of_prompt, factor, numbers[5]) for factor in (_ZERO, numbers[4]))
        saved = np.where(prompt_tokens > 0, whole_s - cached_s, saved)
        generated = np.fmin(whole_s + numbers[0] * error_rate + toll_s, _WORST)
        cost_s = np.where(prompt_tokens > 0, generated, cost_s)
    cost_s = np.where(eligible, cost_s, _INF)
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
        saved_s=saved,
        cost_s=cost_s,
        best_s=at_least_tiny(np.minimum.reduce(cost_s, axis=-1, keepdims=True, initial=WORST)),
        least_service_s=np.minimum.reduce(service_s, axis=-1, keepdims=True, initial=WORST, where=eligible),
        mean_pending=np.add.reduce(pending, axis=-1, keepdims=True, where=eligible) / count,
        workers=count,
        rows=request.rows,
        deadline_s=at_least_tiny(request.deadline_s),
    )
