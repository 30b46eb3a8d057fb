"""Workers that fail at a model while others do not: left out for a while, whatever the policy.

An error such as INTERNAL may be the worker's fault or the request's. One bad input says nothing, and a client that
sends many fails wherever they go. So a worker is left out only after errors in a row, while others answered as many
requests to the same model and had few such errors. A policy that sees only requests in flight would take it for the
fastest.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

_ENOUGH = 5
"""Errors in a row, and answers of others meanwhile."""
_PEERS_FAIL = 0.2
"""Share of errors at others up to which it is not the requests' doing."""
_FIRST_S, _MOST_S = 5.0, 60.0
"""For how long a worker is left out: the first time, doubled each time that it then fails again, and at most."""
_MOST_MODELS = 1024
_MOST_COUNTED = 10_000
"""Models and workers between two ticks."""


@dataclass(slots=True)
class _Row:
    """Errors of one worker at one model, with no answer in between."""

    good_before: int
    """Of the model's counts, what there was when it began."""
    errors_before: int
    errors: int = 0
    times: int = 0
    until_s: float = 0.0


@dataclass(slots=True)
class _Model:
    """Kept while one of its workers has a row; counted over all workers since then."""

    good: int = 0
    errors: int = 0
    rows: dict[str, _Row] = field(default_factory=dict)


class Outliers:
    """Counts between ticks, since outcomes come in batches that do not tell their order."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._counted: dict[tuple[str, str], list[int]] = {}

    def count(self, model: str, worker: str, good: bool, requests: int = 1) -> None:
        """Requests were answered, or failed by what may be the worker's fault and no client aimed at it."""
        key = model, worker
        if key in self._counted or len(self._counted) < _MOST_COUNTED:
            self._counted.setdefault(key, [0, 0])[0 if good else 1] += requests

    def tick(self, workers: Collection[str], now_s: float) -> frozenset[tuple[str, str]]:
        """Who is to be left out now: model and worker, of these workers."""
        counted, self._counted = self._counted, {}
        for (model, worker), (good, errors) in counted.items():
            if errors and not good and (model in self._models or len(self._models) < _MOST_MODELS):
                there = self._models.setdefault(model, _Model())
                there.rows.setdefault(worker, _Row(there.good, there.errors)).errors += errors
        for (model, worker), (good, errors) in counted.items():
            if (found := self._models.get(model)) is not None:
                found.good += good
                found.errors += errors
                if good:
                    found.rows.pop(worker, None)
        for (model, worker), (_, errors) in counted.items():
            found = self._models.get(model)
            row = None if found is None else found.rows.get(worker)
            if found is not None and row is not None and errors and row.until_s <= now_s and _is_its_own(found, row):
                row.until_s = now_s + min(_FIRST_S * 2.0**row.times, _MOST_S)
                row.times = min(row.times + 1, 30)
        for model, there in list(self._models.items()):
            there.rows = {worker: row for worker, row in there.rows.items() if worker in workers}
            if not there.rows:
                del self._models[model]
        return frozenset(
            (model, worker)
            for model, there in self._models.items()
            for worker, row in there.rows.items()
            if row.until_s > now_s
        )


def _is_its_own(there: _Model, row: _Row) -> bool:
    """Whether the errors are the worker's: it answered nothing since the row began, so all answers are others'."""
    good = there.good - row.good_before
    # Others that answer nothing either say nothing of the requests.
    fail_too = sum(other.errors for other in there.rows.values() if other.errors >= _ENOUGH)
    errors = there.errors - row.errors_before - fail_too
    return row.errors >= _ENOUGH and good >= _ENOUGH and errors <= _PEERS_FAIL * (good + errors)
