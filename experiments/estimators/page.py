"""The page, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.by_hand import marked
from policies.base import FloatArray
from simulator.scenario import Scenario

Groups = dict[str, list[Scenario]]
Runs = Mapping[str, Mapping[str, Any]]
"""What was found, by scenario."""
_RESAMPLES = 2000
_CALM_LOAD = 0.8
"""Below it the median of real over expected is to be within `_CALIBRATED`."""
_CALIBRATED = (0.85, 1.15)


def page(
    before: Mapping[str, Any], after: Mapping[str, Any], beside: Sequence[Mapping[str, Any]], words: str, title: str
) -> str:
    """The page, with these words of a person in it; `beside`: what other policies do in some of the groups."""
    policy = after["policy"]
    parts = [
        "<!-- Written by python -m experiments.estimators, but for what stands between the marks -->",
        f"# {title}",
        marked(words),
        f"Latency of `{policy}` after, over that before, on equal arrivals and seeds; below 1 is "
        "better. Real over expected: median over requests of the time from the pick to the end of the execution, over "
        "`completion_s` of the worker picked; mean over seeds.",
        "## Medians over fleets",
        _medians(before["found"], after["found"]),
        f"In brackets 95% intervals: bootstrap over fleets and seeds, {_RESAMPLES:,} resamples. Worst: of one fleet.",
    ]
    for other in beside:
        parts += [
            f"## What `{other['policy']}` does there",
            "Its latency over that before, in the same runs.",
            _medians(before["found"], other["found"]),
        ]
    for group in after["found"]:
        parts += [f"## {group.capitalize()}", _scenarios(before["found"][group], after["found"][group])]
    parts += [
        f"In bold: outside {_CALIBRATED[0]:g} to {_CALIBRATED[1]:g} at a load below {_CALM_LOAD:g}.",
        "## How it was done",
        "Before, and after, and then joined:\n\n"
        + "\n".join(f"    {each['command']}" for each in (before, after, *beside)),
    ]
    return "\n\n".join(parts) + "\n"


def _medians(before: Mapping[str, Runs], after: Mapping[str, Runs]) -> str:
    lines = ["| | fleets | mean | worst mean | p99 | worst p99 |", "|---|---:|---:|---:|---:|---:|"]
    for group in after:
        cells = [group.capitalize(), str(len(after[group]))]
        for figure in ("mean_s", "p99_s"):
            ratios = _log_ratios(before[group], after[group], figure)
            low, high = _interval(ratios)
            by_fleet = np.exp(ratios.mean(axis=1))
            cells += [f"{np.median(by_fleet):.3f} ({low:.3f} to {high:.3f})", f"{by_fleet.max():.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _scenarios(before: Runs, after: Runs) -> str:
    lines = [
        "| | load | mean, ms | ratio | p99, ms | ratio | real over expected, before | after |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    means, tails = (np.exp(_log_ratios(before, after, figure).mean(axis=1)) for figure in ("mean_s", "p99_s"))
    for (name, found), mean, tail in zip(after.items(), means, tails, strict=True):
        load = f"{found['load']:.2f}" if np.isfinite(found["load"]) else "closed loop"
        mean_ms, p99_ms = (1e3 * float(np.mean(found[figure])) for figure in ("mean_s", "p99_s"))
        told = [_calibration(each[name]) for each in (before, after)]
        cells = [name, load, f"{mean_ms:.1f}", f"{mean:.3f}", f"{p99_ms:.0f}", f"{tail:.3f}", *told]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _calibration(found: Mapping[str, Any]) -> str:
    value = float(np.mean(found["real_over_expected"]))
    if np.isnan(value):
        return "-"
    calm = found["load"] < _CALM_LOAD - 1e-6
    fits = _CALIBRATED[0] <= value <= _CALIBRATED[1]
    return f"**{value:.2f}**" if calm and not fits else f"{value:.2f}"


def _log_ratios(before: Runs, after: Runs, figure: str) -> FloatArray:
    """Of after over before, `(fleets, seeds)`."""
    return np.log([np.array(found[figure]) / np.array(before[name][figure]) for name, found in after.items()])


def _interval(ratios: FloatArray) -> Sequence[float]:
    """Of the median over fleets of the geometric mean over seeds."""
    dice = np.random.default_rng(0)
    fleets, seeds = ratios.shape
    medians = []
    for _ in range(_RESAMPLES):
        some = dice.integers(fleets, size=(fleets, 1))
        runs = dice.integers(seeds, size=(fleets, seeds))
        medians.append(np.median(np.exp(ratios[some, runs].mean(axis=1))))
    return [float(np.quantile(medians, share)) for share in (0.025, 0.975)]
