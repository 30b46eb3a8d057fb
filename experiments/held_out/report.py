"""A report: what was judged, and the same as JSON."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.held_out import findings
from experiments.held_out.kinds import counts, kinds
from experiments.held_out.plan import BASELINE, CLAIRVOYANT, WEIGHTED, Judged, bare
from policies.base import Policy
from simulator.scoreboard import statistics
from simulator.scoreboard.metrics import WARM_UP_SHARE, Metrics
from simulator.scoreboard.statistics import Estimate
from simulator.scoreboard.summary import FIGURES, by_seed

SCHEMA = "balancer-held-out/1"


@dataclass(frozen=True, slots=True)
class Report:
    """All that the page, the plots and the JSON are made of."""

    scenarios: Sequence[Judged]
    fleets: Sequence[Judged]
    heuristics: Sequence[str]
    trained: Mapping[str, Policy]
    """By the name shown; the first is the subject."""
    missing: Sequence[str]
    """Scenarios and fleets that were not finished."""
    command: str
    """As typed."""

    @property
    def subject(self) -> str:
        """The policy that the tables are about."""
        return next(iter(self.trained))

    @property
    def counted(self) -> list[Judged]:
        """The scenarios that the bar's medians are over."""
        return [each for each in self.scenarios if counts(each.board.scenario)]


def as_json(report: Report) -> dict[str, Any]:
    """Seconds unless a name says otherwise; null for what is not a number."""
    return {
        "schema": SCHEMA,
        "version": importlib.metadata.version("balancer"),
        "command": report.command,
        "warm_up_share": WARM_UP_SHARE,
        "intervals": statistics.METHOD,
        "missing": list(report.missing),
        "files": {name: policy.digest for name, policy in report.trained.items()},
        "bar": {name: _bar(report, name) for name in report.trained} if report.scenarios else {},
        "gap_closed_median": {
            name: {f: _estimate(findings.median_gap_closed(report.scenarios, name, f)) for f in FIGURES}
            for name in report.trained
        },
        "scenarios": [_judged(each, report) for each in report.scenarios],
        "fleets": [_judged(each, report) for each in report.fleets],
    }


def _bar(report: Report, policy: str) -> list[dict[str, Any]]:
    return [
        {
            "what": line.what,
            "figure": line.figure,
            "against": line.against,
            "limit": line.limit,
            "found": _estimate(line.found),
            "where": line.where,
            "with_all": _estimate(line.with_all),
            "met": line.met,
        }
        for line in findings.bar(report.scenarios, policy)
    ]


def _judged(judged: Judged, report: Report) -> dict[str, Any]:
    board = judged.board
    found = {
        "scenario": board.scenario.name,
        "summary": board.scenario.summary,
        "kinds": list(kinds(board.scenario)),
        "counts": counts(board.scenario),
        "workers": len(board.scenario.fleet.workers),
        "load": _number(board.load),
        "seeds": list(board.seeds),
        "requests": board.requests,
        "run_s": _number(judged.end_s),
        "policies": {name: _metrics(metrics) for name, metrics in (board.policies | board.references).items()},
        "ratios": {
            name: {against: _ratios(judged, name, against) for against in (BASELINE, WEIGHTED)}
            for name in board.policies
        },
        "guard": {name: _guard(judged, name) for name in judged.watches},
    }
    if CLAIRVOYANT in board.references:
        found["gap_closed"] = {
            name: {f: _estimate(findings.gap_closed(judged, name, f)) for f in FIGURES}
            for trained in report.trained
            for name in (trained, bare(trained))
        }
    return found


def _metrics(metrics: Metrics) -> dict[str, Any]:
    latency = metrics.latency
    return {
        **{f: [_number(each) for each in by_seed(metrics, f)] for f in FIGURES},
        "within_deadline": _number(float(np.mean(latency.within_deadline))),
        "shares": {name: _number(float(np.mean(share))) for name, share in metrics.shares.items()},
        "p99_s_by_model": {name: _number(float(np.mean(each.p99_s))) for name, each in metrics.models.items()},
    }


def _ratios(judged: Judged, policy: str, against: str) -> dict[str, Any]:
    return {
        **{f: _estimate(findings.ratio(judged, policy, against, f)) for f in FIGURES},
        "p99_s_by_model": {
            model: _estimate(each) for model, each in findings.model_ratios(judged, policy, against).items()
        },
        "answers_less": findings.answers_less(judged, policy, against),
    }


def _guard(judged: Judged, policy: str) -> dict[str, Any]:
    cost = findings.guard_cost(judged, policy)
    return {
        "falls": cost.falls,
        "seeds_with_falls": cost.seeds_with_falls,
        "reasons": cost.reasons,
        "time_fallen": _number(cost.fallen),
        "decided_by_baseline": _number(cost.by_baseline),
        "mean_to_unguarded": _estimate(cost.mean),
        "p99_to_unguarded": _estimate(cost.p99),
    }


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    if estimate is None:
        return None
    return {"value": _number(estimate.value), "low": _number(estimate.low), "high": _number(estimate.high)}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
