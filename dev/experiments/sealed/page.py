"""The page of an opening, as Markdown: nothing in it is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dev.experiments.sealed import findings
from dev.experiments.sealed.opening import CLAIRVOYANT, SUBJECT, Found, Opening, unanswered
from simulator.compare import text
from simulator.compare.compare import SOCIAL
from simulator.compare.metrics import WARM_UP_SHARE, RunMetrics
from simulator.compare.statistics import CONFIDENCE, RESAMPLES, Estimate
from simulator.compare.summary import FIGURES, NAMES
from simulator.train.written import BALANCERS, FAULTS, PLACES, PLAIN, kinds


@dataclass(frozen=True)
class Told:
    """What a reader needs to know of how it came about."""

    command: str
    origin: str
    """Where the seed is from."""


def page(opening: Opening, found: Sequence[Found], told: Told) -> str:
    """The page."""
    best = opening.best
    mean, p99 = findings.pairs(found, best)
    own, theirs = findings.subject_to_social(found, "mean_s"), findings.median_to_social(found, best, "mean_s")
    parts = [
        "<!-- Written by python -m dev.experiments.sealed -->",
        "# Sealed scenarios",
        f"In {len(found)} scenarios that nobody had looked at, `{SUBJECT}`, served with its guard, has {_exact(mean)} "
        f"times the mean and {_exact(p99)} times the p99 of `{best}`, the best of all rivals where they were tuned "
        "(median ratios of latencies on equal arrivals; below 1 is better). Its mean is "
        f"{text.ratio(own)} times that of [a reference that minds others](../../simulator/compare/README.md), which "
        f"knows all queues and times; the rival's is {text.ratio(theirs)} times. In brackets {CONFIDENCE:.0%} "
        f"intervals: bootstrap over scenarios, weights and request seeds, {RESAMPLES:,} resamples. {_weights(opening)}",
        _rivals(opening, found),
        "Hindsight: in each scenario the rival that was best there, which flatters the rivals. Without an answer: "
        "share of the requests, mean over scenarios.",
        "## What it adds, and to what",
        _places(opening, found),
        "## How it was done",
        _method(opening, told),
    ]
    return "\n\n".join(parts) + "\n"


def summary(opening: Opening, found: Sequence[Found]) -> str:
    """The verdict, for a terminal."""
    return "\n".join(
        f"{'met' if line.met else 'NOT met'}: {line.asked}: {line.found}" for line in findings.verdict(opening, found)
    )


def _weights(opening: Opening) -> str:
    count = len(opening.weights)
    if count == 1:
        return "There is one set of weights, so they say nothing of another training."
    return f"There are {count} sets of weights, of training seeds of their own."


def _rivals(opening: Opening, found: Sequence[Found]) -> str:
    lines = []
    for name in (*opening.rivals, CLAIRVOYANT, SOCIAL):
        cells = [_exact(each) for each in findings.pairs(found, name)]
        missing = text.share(float(np.mean([unanswered(each.metrics[name]) for each in found])))
        lines.append([f"**{name}**" if name == opening.best else name, *cells, missing])
    hindsight = [_exact(findings.hindsight(opening, found, figure)) for figure in FIGURES]
    lines.append(["the best in hindsight", *hindsight, text.NONE])
    lines.append([SUBJECT, "1", "1", text.share(float(np.mean([each.failed for each in found])))])
    head = ["", *(f"{NAMES[figure]}: {SUBJECT} over it" for figure in FIGURES), "without an answer"]
    return text.markdown(head, lines)


def _places(opening: Opening, found: Sequence[Found]) -> str:
    """By what a scenario has: places where there is more to win, and others."""
    lines = []
    for place in (*PLACES, PLAIN, BALANCERS, FAULTS):
        chosen = [each for each in found if place in kinds(each.scenario)]
        if chosen:
            ratios = [_exact(each) for each in findings.pairs(chosen, opening.best)]
            in_time = [text.share(_in_time(chosen, name)) for name in (None, opening.best)]
            lines.append([place, str(len(chosen)), *ratios, *in_time])
    head = ["scenarios with", "how many", "mean", "p99", f"in time: {SUBJECT}", opening.best]
    return text.markdown(head, lines)


def _in_time(found: Sequence[Found], name: str | None) -> float:
    """Mean over the scenarios with deadlines; None: of the subject."""

    def of(each: Found) -> Sequence[RunMetrics]:
        return each.subjects if name is None else (each.metrics[name],)

    shares = [float(np.mean([metrics.latency.within_deadline for metrics in of(each)])) for each in found]
    known = [share for share in shares if np.isfinite(share)]
    return float(np.mean(known)) if known else float("nan")


def _method(opening: Opening, told: Told) -> str:
    requests = opening.requests or opening.scenarios[0].requests
    return (
        f"`{told.command}`: scenarios of seed {opening.seed}, {told.origin}, drawn from [a written "
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
