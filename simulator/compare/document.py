"""A scoreboard as JSON, whose schema changes its name when a reader would have to change.

Seconds unless a name says otherwise; null for what is not a number. ESTIMATE is `value`, `low`, `high`. SEEDS is an
ESTIMATE of the mean over seeds, and `by_seed`. METRICS is SEEDS of each figure of a policy (`metrics.RunMetrics`).

- `scenarios[]`: `scenario`, `summary`, `split`, `load` (share of capacity, null in a closed loop), `requests` (a seed),
  `workers`, `models`, `balancers`, and by policy under `policies` METRICS with:
  - `exact_queues`: METRICS of the same policy where every queue is known; null with `--no-ladder`
  - `against_baseline`, by `mean_s` and `p99_s`: `ratio`, `difference_s`, ESTIMATE each; below 1 and below 0 is better
  - `regret`, by `mean_s` and `p99_s`, then by reference: ESTIMATE
  - `sweep[]`: `load`, `mean_s`, `p99_s`; only where a page was asked for
- `scenarios[].references`: `pooled` (`mean_s`, `p99_s`), `social`, `clairvoyant`, `exact_queues` (METRICS)
- `aggregate`, by policy: `interquartile_mean_ratio`, `probability_of_improvement` (ESTIMATE), `performance_profile`
  (`ratios`, `shares`), each by `mean_s` and `p99_s`
"""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from policies.base import FloatArray
from simulator.compare import statistics, summary, text
from simulator.compare.compare import Board
from simulator.compare.metrics import WARM_UP_SHARE, LatencyMetric, PromptMetric, RunMetrics
from simulator.compare.summary import FIGURES

SCHEMA = "balancer-scoreboard/1"
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    boards: Sequence[Board]
    baseline: str
    command: str

    @property
    def policies(self) -> list[str]:
        return list(self.boards[0].policies)


def as_json(report: ComparisonReport) -> dict[str, Any]:
    """What the file holds; null for what is not a number."""
    aggregates = summary.aggregate(report.boards, report.baseline)
    content = {
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
                "interquartile_mean_ratio": each.interquartile_mean,
                "probability_of_improvement": each.improvement,
                "performance_profile": {f: {"ratios": summary.LEVELS, "shares": each.profile[f][0]} for f in FIGURES},
            }
            for policy, each in aggregates.items()
        },
    }
    made: dict[str, Any] = text.plain(content, _DIGITS)
    return made


def _scenario(board: Board, baseline: str) -> dict[str, Any]:
    scenario = board.scenario
    return {
        "scenario": scenario.name,
        "summary": scenario.summary,
        "split": scenario.split,
        "load": board.load,
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
                "ratio": statistics.ratio(summary.by_seed(metrics, figure), summary.by_seed(other, figure)),
                "difference_s": statistics.difference(summary.by_seed(metrics, figure), summary.by_seed(other, figure)),
            }
            for figure in FIGURES
        },
        "regret": {
            figure: {
                name.replace(", ", "_").replace(" ", "_"): value
                for name, value in summary.regrets(board, policy, figure).items()
            }
            for figure in FIGURES
        },
        "sweep": [
            {"load": load, **{f: _by_seed(summary.by_seed(found, f)) for f in FIGURES}}
            for load, found in board.sweep.get(policy, {}).items()
        ],
    }


def _metrics(metrics: RunMetrics) -> dict[str, Any]:
    return {
        **_each(metrics.latency),
        **({"first_response": _first(metrics)} if np.isfinite(metrics.first_mean_s).any() else {}),
        **({"prompts": _each(metrics.prompts)} if np.isfinite(metrics.prompts.cached).any() else {}),
        "models": {name: _each(each) for name, each in metrics.models.items()},
        "shares": {name: _by_seed(share) for name, share in metrics.shares.items()},
        "goodput_per_s": _by_seed(metrics.goodput_per_s),
        "throughput_per_s": _by_seed(metrics.throughput_per_s),
        "fairness": _by_seed(metrics.fairness),
        "busy_share": metrics.busy_share.mean(axis=0),
        "worker_requests": metrics.worker_requests.mean(axis=0),
    }


def _first(metrics: RunMetrics) -> dict[str, Any]:
    return {"mean_s": _by_seed(metrics.first_mean_s), "p99_s": _by_seed(metrics.first_p99_s)}


def _each(metric: LatencyMetric | PromptMetric) -> dict[str, Any]:
    return {field.name: _by_seed(getattr(metric, field.name)) for field in fields(metric)}


def _by_seed(values: FloatArray) -> dict[str, Any]:
    return {**asdict(statistics.mean(values)), "by_seed": values}
