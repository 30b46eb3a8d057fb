"""The numbers of an opening: JSON with every seed, CSV with means over seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.held_out.plan import bare
from experiments.sealed import findings
from experiments.sealed.opening import Found, Opening, unanswered
from experiments.sealed.page import Told
from policies.base import FloatArray
from simulator.scoreboard.metrics import Metrics
from simulator.scoreboard.summary import FIGURES
from simulator.training.written import kinds

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


def _named(opening: Opening, found: Found) -> Iterator[tuple[str, Metrics]]:
    for name, guarded, alone in zip(opening.weights, found.subjects, found.bare, strict=True):
        yield name, guarded
        yield bare(name), alone
    yield from found.metrics.items()


def _metrics(metrics: Metrics) -> dict[str, Any]:
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
