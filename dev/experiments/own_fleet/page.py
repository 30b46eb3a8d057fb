"""What came out, as a page and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dev.experiments.own_fleet.fleet import (
    BARE,
    DEFAULTS,
    KNOWN,
    LABELS,
    LOGGED_REQUESTS,
    NUMBERS,
    TRAINED,
    TRAINING,
    TUNED,
)
from policies.base import FloatArray

Result = Mapping[str, Any]
_AIMS = {"mean": 0.85, "p99": 0.95, "mean over tuned once": 0.90}
_WORST = 1.02
_RESAMPLES = 4000
_BETTER = 0.98
"""Of a mean that is lower by more than chance."""
_FAILS_MORE = 0.001
"""Share of the requests by which a policy may leave more unanswered than the defaults."""
_OF_SEVERAL: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "keys decide what is cached": lambda fleet: fleet["keys"],
    "no such keys": lambda fleet: not fleet["keys"],
    "requests differ in hidden work": lambda fleet: fleet["hidden_work"],
    "they do not": lambda fleet: not fleet["hidden_work"],
    "several balancers": lambda fleet: fleet["balancers"] > 1,
    "workers that crash, stall or slow down": lambda fleet: bool(fleet["faults"]),
}
"""Kinds of fleets of several models."""


def fleets_csv(results: Sequence[Result]) -> str:
    """Fleet by fleet: what each is, its ratios, and how it went."""
    told = ("name", "models", "workers", "balancers", "keys")
    ratios_of = [f"{label} {figure}" for label in LABELS[1:] for figure in ("mean", "p99")]
    went = ["in the twin", "by the guard's baseline", "guard saw", "unanswered", "unanswered by defaults", "train_s"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["fleet", *told[1:], "faults", "twin", *ratios_of, *went])
    for one in results:
        fleet, unanswered = one["fleet"], one["unanswered"]
        writer.writerow(
            [
                *(fleet[name] for name in told),
                " ".join(sorted(set(fleet["faults"]))),
                "no" if one["differs"] else "yes",
                *(f"{ratio:.4f}" for label in LABELS[1:] for ratio in one["ratios"][label]),
                f"{one['gain_in_twin'][0]:.2f}",
                f"{one['by_baseline']:.2f}",
                " ".join(one["guard_saw"]),
                *(f"{unanswered[label]:.4f}" for label in (TRAINED, DEFAULTS)),
                one["train_s"],
            ]
        )
    return text.getvalue()


def misses(result: Result) -> bool:
    """Whether a fleet of several models is short of the aim."""
    return bool(result["fleet"]["models"] > 1 and result["ratios"][TRAINED][0] > _AIMS["mean"])


def median(values: FloatArray) -> str:
    """With the interval of a bootstrap over fleets."""
    if not len(values):
        return "no fleet"
    dice = np.random.default_rng(0)
    drawn = np.median(dice.choice(values, (_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{np.median(values):.3f} ({low:.3f} to {high:.3f})"


def ratios(results: Sequence[Result], label: str, over: str = DEFAULTS, figure: int = 0) -> FloatArray:
    """Of mean (0) or p99 (1), by fleet."""
    return np.array([one["ratios"][label][figure] / one["ratios"][over][figure] for one in results])


def page(results: Sequence[Result], command: str, seed: str) -> str:
    several = [one for one in results if one["fleet"]["models"] > 1]
    generating = [one for one in results if one["fleet"]["generates"]]
    twins = [one for one in results if not one["differs"]]
    parts = [
        "# Trained on one's own log",
        f"Made by `{command}`; the seed is {seed}. {len(results)} fleets of the [written distribution]"
        "(sealed_distribution.csv), each fourth one of language models ([theirs](language_models.md)). Of each, a log "
        f"under `expected_latency`, of {LOGGED_REQUESTS:,} requests, of language models of some four minutes; "
        f"`balancer train --from-log {' '.join(TRAINING)}` on it, as a user would, one core; judged on fresh requests "
        "of the true fleet, with the guard. Numbers are ratios to the defaults of `expected_latency`: below 1 is "
        "better. Medians are over fleets, with 95% intervals of a bootstrap over them.",
        "## What to expect",
        "By the kind of fleet, of the policy that `balancer train --from-log` made, with the guard; where it said "
        "*Nothing to gain here*, or refused, the fleet kept the defaults, so 1.",
        _kinds(results),
        "## Summary",
        _summary({"all": results, "two models or more": several, "language models": generating, "twins": twins}),
        _aims(several, results),
        *_known([one for one in results if KNOWN in one["ratios"]]),
        *_language_models(generating),
        "## What the twins lacked",
        f"{len(twins)} of {len(results)} fleets made of their logs are twins: each model's p50 within 5%, its p99 "
        "within 10%, or as near as their own runs are to each other. "
        "`balancer train` refuses the others; here it ran with `--unchecked`, on all. Of "
        f"{sum(one['refused'] is not None for one in results)} logs it made nothing even so, and of "
        f"{sum(one['nothing_to_gain'] for one in results)} it said *Nothing to gain here*; their fleets keep "
        f"the defaults, but in the column *{BARE}*.",
        _lacked(results),
        "[Fleet by fleet](own_fleet.csv).",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(groups: Mapping[str, Sequence[Result]]) -> str:
    lines = ["| fleets | policy | mean | p99 | worst mean |", "|---|---|---|---|---|"]
    for group, results in groups.items():
        for label in LABELS[1:] if results else ():
            means, p99s = ratios(results, label), ratios(results, label, figure=1)
            lines.append(
                f"| {group} ({len(results)}) | {label} | {median(means)} | {median(p99s)} | {means.max():.3f} |"
            )
    return "\n".join(lines)


def _kinds(results: Sequence[Result]) -> str:
    several = [one for one in results if one["fleet"]["models"] > 1]
    of_one = [one for one in results if one["fleet"]["models"] == 1]
    kinds = {
        "one model": [one for one in of_one if not one["fleet"]["generates"]],
        "one language model": [one for one in of_one if one["fleet"]["generates"]],
        "several models": several,
    }
    kinds |= {f"of these: {name}": [one for one in several if has(one["fleet"])] for name, has in _OF_SEVERAL.items()}
    lines = ["| fleets | how many | mean | p99 | lower by more than 2% | worst mean |", "|---|---|---|---|---|---|"]
    for name, own in kinds.items():
        if own:
            means, p99s = ratios(own, TRAINED), ratios(own, TRAINED, figure=1)
            gain = f"{int((means < _BETTER).sum())} of {len(own)}"
            lines.append(f"| {name} | {len(own)} | {median(means)} | {median(p99s)} | {gain} | {means.max():.3f} |")
    return "\n".join(lines)


def _aims(several: Sequence[Result], results: Sequence[Result]) -> str:
    if not several:
        return ""
    reached = {
        "mean": float(np.median(ratios(several, TRAINED))),
        "p99": float(np.median(ratios(several, TRAINED, figure=1))),
        "mean over tuned once": float(np.median(ratios(several, TRAINED, over=TUNED))),
    }
    lines = [
        f"- {name} at most {aim:g}: {reached[name]:.3f}, {_met(reached[name] <= aim)}" for name, aim in _AIMS.items()
    ]
    worst = float(ratios(results, TRAINED).max())
    lines.append(f"- no fleet worse than {_WORST:g}: {worst:.3f}, {_met(worst <= _WORST)}")
    for one in results:
        trained, by_default = one["unanswered"][TRAINED], one["unanswered"][DEFAULTS]
        if trained > by_default + _FAILS_MORE:
            lines.append(
                f"- {one['fleet']['name']} is no gain: {trained:.2%} of its requests are not answered, for "
                f"{by_default:.2%} by the defaults"
            )
    beyond = ratios(several, TRAINED, over=NUMBERS)
    guard = ratios(results, TRAINED, over=BARE)
    return "\n".join(
        [
            "Aims, of fleets of two models or more:",
            "",
            *lines,
            "",
            f"Tolls beyond the numbers: {median(beyond)} of their mean; lower by more than 2% in "
            f"{int((beyond < _BETTER).sum())} of {len(beyond)} fleets.",
            f"The guard: {median(guard)} of the mean without it.",
        ]
    )


def _known(results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    lines = ["| fleet | by its log | true fleet known |", "|---|---|---|"]
    for one in results:
        cells = (", ".join(f"{ratio:.3f}" for ratio in one["ratios"][label]) for label in (BARE, KNOWN))
        lines.append(f"| {one['fleet']['name']} | {' | '.join(cells)} |")
    return [
        "## Where the aim is missed",
        "The same training on the true fleet and its true workload, in place of those made of the log: mean and p99 "
        f"over the defaults, without a guard. Medians of the mean: {median(ratios(results, BARE))} by the log, "
        f"{median(ratios(results, KNOWN))} by the true fleet. The difference is what the log costs; whatever else "
        "keeps a fleet from the aim is the policy's form or the search.",
        "\n".join(lines),
    ]


def _language_models(results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    heads = ("mean to first token", "p99 of it", "mean whole answer", "p99 of it")
    lines = [f"| over the defaults | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    for label in results[0]["first_tokens"]:
        if label != DEFAULTS:
            parts = [[*one["first_tokens"][label], *one["ratios"][label]] for one in results]
            lines.append(f"| {label} | {' | '.join(map(median, np.array(parts).T))} |")
    return [
        "## Language models",
        f"{len(results)} fleets. Training minds the first token and the whole answer alike. The field's rules, without "
        "a guard, have the options of a grid that were best on what training saw of the log.",
        "\n".join(lines),
    ]


def _met(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def _lacked(results: Sequence[Result]) -> str:
    lines = ["| fleet | what differs |", "|---|---|"]
    told = [[*one["differs"], *([f"refused: {one['refused']}"] if one["refused"] else [])] for one in results]
    lines += [f"| {one['fleet']['name']} | {'; '.join(why)} |" for one, why in zip(results, told, strict=True) if why]
    return "\n".join(lines) if len(lines) > 2 else "None."
