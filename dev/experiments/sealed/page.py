"""What an opening writes: the page, nothing in which is written by hand; JSON with every seed; CSV with means over
seeds; and the distribution that is drawn from, as CSV."""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dev.experiments.sealed.opening import BARE, REFERENCES, SUBJECT, Found, Opening, unanswered
from policies.base import FloatArray, IntArray
from simulator.compare import statistics, text
from simulator.compare.compare import SOCIAL
from simulator.compare.metrics import WARM_UP_SHARE, RunMetrics
from simulator.compare.statistics import CONFIDENCE, RESAMPLES, Estimate
from simulator.compare.summary import FIGURES, NAMES, Figure, by_seed
from simulator.train.distribution import (
    BALANCERS,
    DISTRIBUTION,
    FAULTS,
    NETWORK,
    PLACES,
    PLAIN,
    DrawnRanges,
    kinds,
)

AIMS: dict[Figure, float] = {"mean_s": 0.85, "p99_s": 0.90}
MORE_FAILURES = 0.001
"""Share of the requests by which the subject may fail more than the rival, in the mean over scenarios."""


@dataclass(frozen=True)
class Line:
    criterion: str
    found: str
    met: bool


def together(logs: FloatArray) -> Estimate:
    """The median over scenarios of geometric means over request seeds, with a percentile interval; of logarithms of
    ratios, `(scenarios, seeds)`."""
    some, runs = _drawn(statistics.RESAMPLES, *logs.shape)
    low, high = np.quantile(_median(logs[some, runs]), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(_median(logs)), float(low), float(high))


@functools.lru_cache(maxsize=8)
def _drawn(resamples: int, scenarios: int, seeds: int) -> tuple[IntArray, IntArray]:
    """Of each resample, scenarios and each one's own seeds: `(resamples, scenarios, 1)` and `(.., seeds)`."""
    dice, some, runs = np.random.default_rng(0), [], []
    for _ in range(resamples):
        some.append(dice.integers(scenarios, size=(scenarios, 1)))
        runs.append(dice.integers(seeds, size=(scenarios, seeds)))
    return np.array(some), np.array(runs)


def _median(logs: FloatArray) -> FloatArray:
    found: FloatArray = np.exp(np.median(logs.mean(axis=-1), axis=-1))
    return found


def median_ratio(found: Sequence[Found], against: str, figure: Figure) -> Estimate:
    return together(np.stack([each.logs(against, figure) for each in found]))


def verdict(opening: Opening, found: Sequence[Found]) -> list[Line]:
    """What is asked of the subject, line by line; it is met where all of them are."""
    lines = []
    for figure, aim in AIMS.items():
        estimate = median_ratio(found, opening.best, figure)
        lines.append(
            Line(
                f"{NAMES[figure]}: median ratio at most {aim:.2f}, its interval below 1",
                f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})",
                estimate.value <= aim and estimate.high < 1,
            )
        )
    more = float(
        np.mean([unanswered(each.metrics[SUBJECT]) - unanswered(each.metrics[opening.best]) for each in found])
    )
    criterion = (
        f"requests without an answer: at most {MORE_FAILURES:.1%} more than the rival, in the mean over scenarios"
    )
    lines.append(Line(criterion, f"{more:+.2%}", more <= MORE_FAILURES))
    return lines


def best_in_hindsight(opening: Opening, found: Found, figure: Figure) -> str:
    """The rival of the lowest latency in that scenario, chosen on the runs that it is judged by."""
    means = {name: float(np.mean(by_seed(found.metrics[name], figure))) for name in opening.rivals}
    return min(means, key=lambda name: np.nan_to_num(means[name], nan=np.inf))


def hindsight(opening: Opening, found: Sequence[Found], figure: Figure) -> Estimate:
    """The median ratio to each scenario's own best rival, which flatters the rivals."""
    logs = np.stack([each.logs(best_in_hindsight(opening, each, figure), figure) for each in found])
    return together(logs)


def to_social(found: Sequence[Found], name: str, figure: Figure) -> float:
    """A policy's latency over the social reference's: geometric mean over seeds, median over scenarios."""

    def of(each: Found) -> float:
        ours, best = (by_seed(each.metrics[label], figure) for label in (name, SOCIAL))
        return float(np.exp(np.mean(np.log(ours) - np.log(best))))

    return float(np.median(list(map(of, found))))


def pairs(found: Sequence[Found], against: str) -> list[Estimate]:
    """Median ratios of mean and p99."""
    return [median_ratio(found, against, figure) for figure in FIGURES]


_DIGITS = 5


@dataclass(frozen=True)
class Provenance:
    command: str
    origin: str


def page(opening: Opening, found: Sequence[Found], provenance: Provenance) -> str:
    best = opening.best
    mean, p99 = pairs(found, best)
    own, theirs = (to_social(found, name, "mean_s") for name in (SUBJECT, best))
    parts = [
        "<!-- Written by python -m dev.experiments.sealed -->",
        "# Sealed scenarios",
        f"In {len(found)} scenarios that nobody had looked at, `{SUBJECT}`, served with its guard, has {_exact(mean)} "
        f"times the mean and {_exact(p99)} times the p99 of `{best}`, the best of all rivals where they were tuned "
        "(median ratios of latencies on equal arrivals; below 1 is better). Its mean is "
        f"{text.ratio(own)} times that of [a reference that minds others](../../simulator/compare/README.md), which "
        f"knows all queues and times; the rival's is {text.ratio(theirs)} times. In brackets {CONFIDENCE:.0%} "
        f"intervals: bootstrap over scenarios and request seeds, {RESAMPLES:,} resamples. There is one set of weights, "
        "so they say nothing of another training.",
        _rivals(opening, found),
        "Hindsight: in each scenario the rival that was best there, which flatters the rivals. Without an answer: "
        "share of the requests, mean over scenarios.",
        "## What it adds, and to what",
        _places(opening, found),
        "## How it was done",
        _method(opening, provenance),
    ]
    return "\n\n".join(parts) + "\n"


def summary(opening: Opening, found: Sequence[Found]) -> str:
    return "\n".join(
        f"{'met' if line.met else 'NOT met'}: {line.criterion}: {line.found}" for line in verdict(opening, found)
    )


def _rivals(opening: Opening, found: Sequence[Found]) -> str:
    lines = []
    for name in (*opening.rivals, *REFERENCES):
        cells = [_exact(each) for each in pairs(found, name)]
        missing = text.share(float(np.mean([unanswered(each.metrics[name]) for each in found])))
        lines.append([f"**{name}**" if name == opening.best else name, *cells, missing])
    best = [_exact(hindsight(opening, found, figure)) for figure in FIGURES]
    lines.append(["the best in hindsight", *best, text.NONE])
    lines.append([SUBJECT, "1", "1", text.share(float(np.mean([unanswered(each.metrics[SUBJECT]) for each in found])))])
    head = ["", *(f"{NAMES[figure]}: {SUBJECT} over it" for figure in FIGURES), "without an answer"]
    return text.markdown(head, lines)


def _places(opening: Opening, found: Sequence[Found]) -> str:
    """By what a scenario has: places where there is more to win, and others."""
    lines = []
    for place in (*PLACES, PLAIN, BALANCERS, FAULTS):
        chosen = [each for each in found if place in kinds(each.scenario)]
        if chosen:
            ratios = [_exact(each) for each in pairs(chosen, opening.best)]
            in_time = [text.share(_in_time(chosen, name)) for name in (SUBJECT, opening.best)]
            lines.append([place, str(len(chosen)), *ratios, *in_time])
    head = ["scenarios with", "how many", "mean", "p99", f"in time: {SUBJECT}", opening.best]
    return text.markdown(head, lines)


def _in_time(found: Sequence[Found], name: str) -> float:
    shares = [float(np.mean(each.metrics[name].latency.within_deadline)) for each in found]
    known = [share for share in shares if np.isfinite(share)]
    return float(np.mean(known)) if known else float("nan")


def _method(opening: Opening, provenance: Provenance) -> str:
    requests = opening.requests or opening.scenarios[0].requests
    return (
        f"`{provenance.command}`: scenarios of seed {opening.seed}, {provenance.origin}, drawn from [a written "
        "distribution](sealed_distribution.csv), of which nothing is chosen by what a policy makes of it; "
        f"{len(opening.request_seeds)} request seeds of {requests:,} requests, of which the first {WARM_UP_SHARE:.0%} "
        "are not counted. Rivals were tuned by `python -m dev.experiments.sealed tune` on the train scenarios and on "
        "some of the distribution with other numbers: all combinations of a small grid "
        "(`dev/experiments/sealed/rivals.py`), by the mean over scenarios of log(mean) + half of log(p99), failures "
        "counted as at least a second. "
        "Latencies are of the requests that were answered.\n\n"
        "[sealed.csv](sealed.csv) has every policy in every scenario, with the requests without an answer and in time; "
        "[sealed.json](sealed.json) every seed, the rivals' settings, and what the guard did."
    )


def _exact(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def as_json(opening: Opening, found: Sequence[Found], provenance: Provenance) -> dict[str, Any]:
    """All of it; null for what is not a number."""
    content = {
        "command": provenance.command,
        "origin": provenance.origin,
        "seed": opening.seed,
        "request_seeds": opening.request_seeds,
        "weights": {SUBJECT: opening.subject.digest},
        "against": opening.best,
        "rivals": {
            name: {"options": rival.policy.options(), "weights_are_capacities": rival.weights_are_capacities}
            for name, rival in opening.rivals.items()
        },
        "verdict": verdict(opening, found),
        "scenarios": [
            {
                "scenario": each.scenario.name,
                "kinds": kinds(each.scenario),
                "load": each.scenario.workload.rate_per_s / each.scenario.capacity_per_s,
                "workers": len(each.scenario.fleet.workers),
                "models": len(each.scenario.fleet.models),
                "balancers": each.scenario.fleet.balancers,
                # Over all runs: how often it took the policy out of service, why, and what share the baseline decided.
                "guard": {
                    "falls": each.watch.falls.sum(),
                    "reasons": dict(each.watch.reasons.most_common()),
                    "by_baseline": each.watch.by_baseline.mean(),
                },
                "policies": {name: _metrics(each.metrics[name]) for name in _labels(opening)},
            }
            for each in found
        ],
    }
    made: dict[str, Any] = text.plain(content, _DIGITS)
    return made


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
        for name, metrics in ((label, each.metrics[label]) for label in _labels(opening))
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _labels(opening: Opening) -> tuple[str, ...]:
    return (SUBJECT, BARE, *opening.rivals, *REFERENCES)


def _metrics(metrics: RunMetrics) -> dict[str, Any]:
    return {
        **{figure: getattr(metrics.latency, figure) for figure in FIGURES},
        "in_time": metrics.latency.within_deadline,
        "shares": {name: np.mean(share) for name, share in metrics.shares.items()},
    }


def _cell(value: float) -> str:
    return f"{value:.{_DIGITS}g}" if math.isfinite(value) else ""


def distribution() -> str:
    """A line for each draw, which is independent of the others unless it says otherwise."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["what", "drawn", "values"])
    for each in fields(DrawnRanges):
        if "what" in each.metadata:
            how = each.metadata["how"]
            writer.writerow([each.metadata["what"], how, _values(how, getattr(DISTRIBUTION, each.name))])
    ways_ms = ", ".join(f"{1e3 * each:g}" for each in (NETWORK.to_worker_s, NETWORK.to_client_s, NETWORK.outcome_s))
    writer.writerow(["milliseconds to the worker, back, and until an outcome is known", "always", ways_ms])
    settings = "the defaults, but for sticky_keys, off where there are sessions; nothing is held or shed"
    writer.writerow(["settings of the routers", "always", settings])
    return text.getvalue()


def _values(how: str, value: Any) -> str:
    if "uniform" in how:
        return f"{value[0]:g} to {value[1]:g}"
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return ", ".join(f"{name} {share:.0%}" for name, share in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) if isinstance(value[0], str) else ", ".join(f"{each:g}" for each in value)
    return f"{value:g}"
