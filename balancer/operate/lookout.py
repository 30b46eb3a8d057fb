"""Looks once a second for what nobody announces: workers that fall silent, and requests that are refused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from balancer.core.router import Router
from balancer.operate.journal import Journal, some
from balancer.operate.metrics import Metrics

_EVERY_S = 1.0


class Lookout:
    """Writes into the journal what has changed since its last look."""

    def __init__(self, router: Router, metrics: Metrics, journal: Journal) -> None:
        self._router, self._metrics, self._journal = router, metrics, journal
        self._looked_s = 0.0
        self._silent: set[str] = set()
        self._refused: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def tick(self, now_s: float) -> None:
        """Look, if it is time."""
        if now_s - self._looked_s < _EVERY_S:
            return
        self._looked_s = now_s
        self._workers(now_s)
        refused = {reason: count for reason, count in refusals(self._metrics).items() if count}
        for reason, count in _more(self._refused, refused).items():
            self._journal.add("refused", "warning", f"requests refused: {reason}", int(count))
        self._refused = refused
        failures = dict(self._router.failures)
        for policy, count in _more(self._failures, failures).items():
            words = f"{policy} gave no valid answer, another stood in: {self._router.last_failure}"
            self._journal.add("policy", "error", words, int(count))
        self._failures = failures

    def _workers(self, now_s: float) -> None:
        silent = set(silent_workers(self._router, now_s))
        if found := silent - self._silent:
            limit_s = self._router.settings.stale_after_s
            words = f"no report for more than {limit_s:g} s: {some(found)}"
            self._journal.add("worker", "warning", words)
        if heard := {name for name in self._silent - silent if name in self._router.fleet.index}:
            self._journal.add("worker", "info", f"reports again: {some(heard)}")
        self._silent = silent


def silent_workers(router: Router, now_s: float) -> list[str]:
    """Workers that have reported, and whose last report is too old, or whose stream broke."""
    fleet = router.fleet
    stale = now_s - fleet.reported_s > router.settings.stale_after_s
    return [fleet.names[row] for row in np.flatnonzero(stale) if fleet.workers[row].number >= 0]


def refusals(metrics: Metrics) -> dict[str, float]:
    """Requests answered without a worker so far, by reason."""
    samples = (sample for family in metrics.refusals.collect() for sample in family.samples)
    return {sample.labels["reason"]: sample.value for sample in samples if sample.name.endswith("_total")}


def _more(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """By how much each has grown, of those that have."""
    grown = {name: value - before.get(name, 0) for name, value in now.items()}
    return {name: more for name, more in grown.items() if more > 0}
