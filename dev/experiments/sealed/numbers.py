"""The numbers of an opening: JSON with every seed, CSV with means over seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dev.experiments.sealed import findings
from dev.experiments.sealed.opening import Found, Opening, bare, unanswered
from dev.experiments.sealed.page import Told
from policies.base import FloatArray
from simulator.compare.metrics import RunMetrics
from simulator.compare.summary import FIGURES
from simulator.train.written import kinds

_DIGITS = 5


def as_json(opening: Opening, found: Sequence[Found], told: Told) -> dict[str, Any]:
    """All of it; null for what is not a number."""
    return {
        "command": told.command,
        "origin": told.origin,
        "seed": opening.seed,
        "request_seeds": list(opening.request_seeds),
        "weights": {name: policy.digest for name, policy in opening.weights.items()},
        "against": opening.best,
        "rivals": {
            name: {"options": rival.policy.options(), "weights_are_capacities": rival.told}
            for name, rival in opening.rivals.items()
        },
        "verdict": [
            {"asked": line.asked, "found": line.found, "met": line.met} for line in findings.verdict(opening, found)
        ],
        "scenarios": [
            {
                "scenario": each.scenario.name,
                "kinds": list(kinds(each.scenario)),
                "load": _number(each.scenario.workload.rate_per_s / each.scenario.capacity_per_s),
                "workers": len(each.scenario.fleet.workers),
                "models": len(each.scenario.fleet.models),
                "balancers": each.scenario.fleet.balancers,
                "guard": _guard(each),
                "policies": {name: _metrics(metrics) for name, metrics in _named(opening, each)},
            }
            for each in found
        ],
    }


def as_csv(opening: Opening, found: Sequence[Found]) -> str:
    """A line for each policy in each scenario; latencies in seconds."""
    rows = [
        {
            "scenario": each.scenario.name,
            "policy": name,
            **{figure: _cell(float(np.mean(getattr(metrics.latency, figure)))) for figure in FIGURES},
            "unanswered": _cell(unanswered(metrics)),
            "in_time": _cell(float(np.mean(metrics.latency.within_deadline))),
        }
        for each in found
        for name, metrics in _named(opening, each)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _named(opening: Opening, found: Found) -> Iterator[tuple[str, RunMetrics]]:
    for name, guarded, alone in zip(opening.weights, found.subjects, found.bare, strict=True):
        yield name, guarded
        yield bare(name), alone
    yield from found.metrics.items()


def _guard(found: Found) -> dict[str, Any]:
    """Over all runs: how often it took the policy out of service, why, and what share the baseline decided."""
    reasons = sum((watch.reasons for watch in found.watches), start=type(found.watches[0].reasons)())
    return {
        "falls": sum(int(watch.falls.sum()) for watch in found.watches),
        "reasons": dict(reasons.most_common()),
        "by_baseline": _number(float(np.mean([watch.by_baseline.mean() for watch in found.watches]))),
    }


def _metrics(metrics: RunMetrics) -> dict[str, Any]:
    return {
        **{figure: _numbers(getattr(metrics.latency, figure)) for figure in FIGURES},
        "in_time": _numbers(metrics.latency.within_deadline),
        "shares": {name: _number(float(np.mean(share))) for name, share in metrics.shares.items()},
    }


def _numbers(values: FloatArray) -> list[float | None]:
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _cell(value: float) -> str:
    return f"{value:.{_DIGITS}g}" if math.isfinite(value) else ""
