"""The page of an opening, as Markdown: nothing in it is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.held_out.tables import markdown
from experiments.sealed import findings
from experiments.sealed.opening import CLAIRVOYANT, SUBJECT, Found, Opening, unanswered
from policies.base import Policy
from simulator.scoreboard import text
from simulator.scoreboard.compare import SOCIAL
from simulator.scoreboard.metrics import WARM_UP_SHARE, Metrics
from simulator.scoreboard.statistics import CONFIDENCE, RESAMPLES, Estimate
from simulator.scoreboard.summary import FIGURES, NAMES
from simulator.training.written import BALANCERS, FAULTS, PLACES, PLAIN, kinds


@dataclass(frozen=True)
class Told:
    """What a reader needs to know of how it came about."""

    command: str
    origin: str
    """Where the seed is from."""


def page(opening: Opening, found: Sequence[Found], told: Told) -> str:
    """The page."""
    best = opening.best
    lines = findings.verdict(opening, found)
    met = all(line.met for line in lines)
    parts = [
        "<!-- Written by python -m experiments.sealed -->",
        "# Sealed scenarios",
        f"`{SUBJECT}`, as it is served, with its guard, against `{best}`, the best of all rivals where they "
        "were tuned, in scenarios that nobody had looked at: "
        f"{len(found)} of [a written distribution](sealed_distribution.md), drawn by {told.origin}. Ratios are of "
        "latencies on equal arrivals; below 1 is better.",
        f"**{'Met' if met else 'Not met'}.**",
        markdown(
            ["what is asked", "found", ""],
            [[line.asked, line.found, "met" if line.met else "**not met**"] for line in lines],
            words=1,
        ),
        f"In brackets {CONFIDENCE:.0%} intervals: bootstrap over scenarios, weights and request seeds together, "
        f"{RESAMPLES:,} resamples. {_weights(opening)}",
        "## Against each rival",
        _rivals(opening, found),
        "Hindsight: in each scenario the rival that was best there, which flatters the rivals. Without an answer: "
        "share of the requests, mean over scenarios. Over the social reference: median over scenarios of the latency "
        "over that of [the reference that minds others](../../simulator/scoreboard/README.md#regret), which knows all "
        "queues and times and charges a request for the delay it causes; it is no bound.",
        "## What it adds, and to what",
        _places(opening, found),
        _said(opening, found),
        "## Every scenario",
        _scenarios(opening, found),
        f"Ratios: {SUBJECT} over `{best}`. Hindsight: the rival of the lowest mean there, and the ratio to it. †: "
        f"answered at least {findings.MORE_FAILURES:.1%} of the requests less than that rival, which flatters it.",
        "## Failures and deadlines",
        _answers(opening, found),
        "## What the guard did",
        _guard(found),
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
        return "There is one set of weights, so intervals hold for these weights and say nothing of another training."
    return f"There are {count} sets of weights, of training seeds of their own."


def _rivals(opening: Opening, found: Sequence[Found]) -> str:
    lines = []
    for name in opening.rivals:
        cells = [_exact(each) for each in findings.pairs(found, name)]
        missing = text.share(_mean_unanswered([each.metrics[name] for each in found]))
        behind = [text.ratio(findings.median_to_social(found, name, figure)) for figure in FIGURES]
        lines.append([f"**{name}**" if name == opening.best else name, *cells, missing, *behind])
    hindsight = [_exact(findings.hindsight(opening, found, figure)) for figure in FIGURES]
    lines.append(["the best in hindsight", *hindsight, text.NONE, text.NONE, text.NONE])
    for name in (CLAIRVOYANT, SOCIAL):
        cells = [_exact(each) for each in findings.pairs(found, name)]
        missing = text.share(_mean_unanswered([each.metrics[name] for each in found]))
        behind = [text.ratio(findings.median_to_social(found, name, figure)) for figure in FIGURES]
        lines.append([f"*{name}*", *cells, missing, *behind])
    missing = text.share(float(np.mean([each.failed for each in found])))
    behind = [text.ratio(findings.subject_to_social(found, figure)) for figure in FIGURES]
    lines.append([f"*{SUBJECT} itself*", "1", "1", missing, *behind])
    over = [f"{NAMES[figure]} over the social reference's" for figure in FIGURES]
    head = ["", *(f"{NAMES[figure]}: {SUBJECT} over it" for figure in FIGURES), "without an answer", *over]
    return markdown(head, lines)


def _by_place(found: Sequence[Found]) -> dict[str, list[Found]]:
    wanted = (*PLACES, PLAIN, BALANCERS, FAULTS)
    every = {place: [each for each in found if place in kinds(each.scenario)] for place in wanted}
    return {place: chosen for place, chosen in every.items() if chosen}


def _places(opening: Opening, found: Sequence[Found]) -> str:
    lines = []
    for place, chosen in _by_place(found).items():
        ratios = [_exact(each) for each in findings.pairs(chosen, opening.best)]
        ours, theirs = (_in_time(chosen, name) for name in (None, opening.best))
        rival = text.ratio(findings.median_to_social(chosen, opening.best, "mean_s"))
        own = text.ratio(findings.subject_to_social(chosen, "mean_s"))
        lines.append([place, str(len(chosen)), *ratios, text.share(ours), text.share(theirs), rival, own])
    head = [
        "scenarios with", "how many", "mean", "p99", f"in time: {SUBJECT}", f"in time: {opening.best}",
        f"mean over the social reference's: {opening.best}", SUBJECT,
    ]  # fmt: skip
    return markdown(head, lines)


def _said(opening: Opening, found: Sequence[Found]) -> str:
    """Of each of the places where there is more to win, whether the subject adds to it."""
    lines = []
    for place, chosen in _by_place(found).items():
        if place not in PLACES:
            continue
        mean, tail = findings.pairs(chosen, opening.best)
        lines.append(f"- {place[0].upper()}{place[1:]}: mean {_adds(mean)}; p99 {_adds(tail)}.")
    return "\n".join(lines)


def _adds(estimate: Estimate) -> str:
    change = f"{abs(1 - estimate.value):.0%}"
    if estimate.high < 1:
        return f"**{change} lower**"
    if estimate.low > 1:
        return f"**{change} higher**"
    return "nothing that can be told from noise"


def _in_time(found: Sequence[Found], name: str | None) -> float:
    """Mean over the scenarios with deadlines; None: of the subject."""
    shares = [
        float(np.mean([m.latency.within_deadline for m in (each.subjects if name is None else (each.metrics[name],))]))
        for each in found
    ]
    known = [share for share in shares if np.isfinite(share)]
    return float(np.mean(known)) if known else float("nan")


def _scenarios(opening: Opening, found: Sequence[Found]) -> str:
    lines = []
    for each in found:
        scenario, rival = each.scenario, each.metrics[opening.best]
        less = each.failed - unanswered(rival) > findings.MORE_FAILURES
        hindsight = findings.best_in_hindsight(opening, each, "mean_s")
        fleet = scenario.fleet
        lines.append(
            [
                scenario.name,
                ", ".join(kinds(scenario)),
                f"{len(fleet.workers)} / {len(fleet.models)} / {fleet.balancers}",
                text.share(scenario.workload.rate_per_s / scenario.capacity_per_s),
                *(_own_ms(each.subjects, figure) for figure in FIGURES),
                *(_own_ms((rival,), figure) for figure in FIGURES),
                *(text.ratio(findings.ratio(each, opening.best, figure)) + "†" * less for figure in FIGURES),
                f"{hindsight} {text.ratio(findings.ratio(each, hindsight, 'mean_s'))}",
                *(_own_ms((each.metrics[name],), "mean_s") for name in (CLAIRVOYANT, SOCIAL)),
            ]
        )
    head = [
        "", "with", "workers / models / balancers", "load", f"{SUBJECT}: mean ms", "p99 ms",
        f"{opening.best}: mean ms", "p99 ms", "mean, ratio", "p99, ratio", "hindsight", "clairvoyant: mean ms",
        "social: mean ms",
    ]  # fmt: skip
    return markdown(head, lines, words=3)


def _answers(opening: Opening, found: Sequence[Found]) -> str:
    lines = []
    for each in found:
        rival = each.metrics[opening.best]
        ours, theirs = _in_time([each], None), _in_time([each], opening.best)
        cells = [each.failed, unanswered(rival), ours, theirs]
        lines.append([each.scenario.name, *map(text.share, cells)])
    of = [SUBJECT, opening.best]
    head = ["", *(f"without an answer: {each}" for each in of), *(f"in time: {each}" for each in of)]
    return markdown(head, lines)


def _guard(found: Sequence[Found]) -> str:
    lines = []
    for each in found:
        falls = sum(int(watch.falls.sum()) for watch in each.watches)
        reasons = sum((watch.reasons for watch in each.watches), start=type(each.watches[0].reasons)())
        decided = float(np.mean([watch.by_baseline.mean() for watch in each.watches]))
        ratios = []
        for figure in FIGURES:
            pairs = zip(each.subjects, each.bare, strict=True)
            logs = [np.log(getattr(a.latency, figure) / getattr(b.latency, figure)) for a, b in pairs]
            ratios.append(text.ratio(float(np.exp(np.mean(logs)))))
        why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or text.NONE
        lines.append([each.scenario.name, str(falls), why, text.share(decided), *ratios])
    head = ["", "falls", "why", "decided by the baseline", "mean / unguarded", "p99 / unguarded"]
    return markdown(head, lines)


def _method(opening: Opening, told: Told) -> str:
    requests = opening.requests or opening.scenarios[0].requests
    settings = "\n".join(
        f"- {name}: {_settings(rival.policy)}{', weights are capacities' if rival.told else ''}"
        for name, rival in opening.rivals.items()
    )
    return (
        f"`{told.command}`: {len(opening.scenarios)} scenarios of seed {opening.seed}, {told.origin}; "
        f"{len(opening.request_seeds)} request seeds of {requests:,} requests, of which the first {WARM_UP_SHARE:.0%} "
        "are not counted. Rivals were tuned by `python -m experiments.sealed tune` on the train scenarios and on some "
        "of the distribution with other numbers: all combinations of a small grid (`experiments/sealed/rivals.py`), by "
        "the mean over scenarios of log(mean) + half of log(p99), failures counted as at least a second; the one of "
        "the lowest is who the verdict is against. "
        "Latencies are of the requests that were answered.\n\n" + settings
    )


def _settings(policy: Policy) -> str:
    return ", ".join(f"{option} {value}" for option, value in policy.options().items()) or "no options"


def _own_ms(metrics: Sequence[Metrics], figure: str) -> str:
    return text.milliseconds(float(np.mean([getattr(each.latency, figure) for each in metrics])))


def _mean_unanswered(metrics: Sequence[Metrics]) -> float:
    return float(np.mean([unanswered(each) for each in metrics]))


def _exact(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
