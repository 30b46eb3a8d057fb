"""A scoreboard as JSON: the schema is in README.md, and its name changes when a reader would have to."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.base import FloatArray
from simulator.scoreboard import statistics, summary
from simulator.scoreboard.compare import Board
from simulator.scoreboard.metrics import WARM_UP_SHARE, Latency, Metrics
from simulator.scoreboard.statistics import Estimate
from simulator.scoreboard.summary import FIGURES

SCHEMA = "balancer-scoreboard/1"


@dataclass(frozen=True, slots=True)
class Report:
    """Boards, and what a reader needs to make them again."""

    boards: Sequence[Board]
    """All with the same policies and seeds."""
    baseline: str
    """The policy that others are compared to."""
    command: str
    """As typed."""

    @property
    def policies(self) -> list[str]:
        """Shown names, in the order of the command."""
        return list(self.boards[0].policies)


def as_json(report: Report) -> dict[str, Any]:
    """What the file holds; null for what is not a number."""
    aggregates = summary.aggregate(report.boards, report.baseline)
    return {
        "schema": SCHEMA,
        "version": importlib.metadata.version("balancer"),
        "command": report.command,
        "seeds": list(report.boards[0].seeds),
        "warm_up_share": WARM_UP_SHARE,
        "confidence": statistics.CONFIDENCE,
        "intervals": statistics.METHOD,
        "baseline": report.baseline,
        "scenarios": [_scenario(board, report.baseline) for board in report.boards],
        "aggregate": {
            policy: {
                "interquartile_mean_ratio": {f: _estimate(each.interquartile_mean[f]) for f in FIGURES},
                "probability_of_improvement": {f: _estimate(each.improvement[f]) for f in FIGURES},
                "performance_profile": {
                    f: {"ratios": _numbers(summary.LEVELS), "shares": _numbers(each.profile[f][0])} for f in FIGURES
                },
            }
            for policy, each in aggregates.items()
        },
    }


def _scenario(board: Board, baseline: str) -> dict[str, Any]:
    scenario = board.scenario
    return {
        "scenario": scenario.name,
        "summary": scenario.summary,
        "split": scenario.split,
        "load": _number(board.load),
        "requests": board.requests,
        "workers": [worker.name for worker in scenario.fleet.workers],
        "models": [model.name for model in scenario.fleet.models],
        "balancers": scenario.fleet.balancers,
        "policies": {policy: _policy(board, policy, baseline) for policy in board.policies},
        "references": {
            **({"pooled": {f: _by_seed(getattr(board.bound, f)) for f in FIGURES}} if board.bound else {}),
            **{name.replace(" ", "_"): _metrics(metrics) for name, metrics in board.references.items()},
        },
    }


def _policy(board: Board, policy: str, baseline: str) -> dict[str, Any]:
    metrics, other = board.policies[policy], board.policies[baseline]
    return {
        **_metrics(metrics),
        "exact_queues": _metrics(board.exact[policy]) if policy in board.exact else None,
        "against_baseline": {
            figure: {
                "ratio": _estimate(statistics.ratio(summary.by_seed(metrics, figure), summary.by_seed(other, figure))),
                "difference_s": _estimate(
                    statistics.difference(summary.by_seed(metrics, figure), summary.by_seed(other, figure))
                ),
            }
            for figure in FIGURES
        },
        "regret": {
            figure: {
                name.replace(", ", "_").replace(" ", "_"): _estimate(value)
                for name, value in summary.regrets(board, policy, figure).items()
            }
            for figure in FIGURES
        },
        "sweep": [
            {"load": load, **{f: _by_seed(summary.by_seed(found, f)) for f in FIGURES}}
            for load, found in board.sweep.get(policy, {}).items()
        ],
    }


def _metrics(metrics: Metrics) -> dict[str, Any]:
    return {
        **_latency(metrics.latency),
        **({"first_response": _first(metrics)} if np.isfinite(metrics.first_mean_s).any() else {}),
        "models": {name: _latency(each) for name, each in metrics.models.items()},
        "shares": {name: _by_seed(share) for name, share in metrics.shares.items()},
        "goodput_per_s": _by_seed(metrics.goodput_per_s),
        "throughput_per_s": _by_seed(metrics.throughput_per_s),
        "fairness": _by_seed(metrics.fairness),
        "busy_share": _numbers(metrics.busy_share.mean(axis=0)),
        "worker_requests": _numbers(metrics.worker_requests.mean(axis=0)),
    }


def _first(metrics: Metrics) -> dict[str, Any]:
    return {"mean_s": _by_seed(metrics.first_mean_s), "p99_s": _by_seed(metrics.first_p99_s)}


def _latency(latency: Latency) -> dict[str, Any]:
    return {field.name: _by_seed(getattr(latency, field.name)) for field in fields(latency)}


def _by_seed(values: FloatArray) -> dict[str, Any]:
    return {**_estimate(statistics.mean(values)), "by_seed": _numbers(values)}


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {field.name: _number(getattr(estimate, field.name)) for field in fields(estimate)}


def _numbers(values: FloatArray | npt.NDArray[np.int64]) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
