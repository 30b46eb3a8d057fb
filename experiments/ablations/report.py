"""The page: what each variant makes of equal episodes, and how well each estimate of the gradient does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.ablations.variants import EXPECTED, FULL, VARIANTS, WLPR
from experiments.by_hand import marked
from policies.base import FloatArray
from simulator.scoreboard.statistics import METHOD, Estimate, mean
from simulator.training.validation import RANDOM, Case

Outcome = Mapping[str, Any]
"""As `runs.run_variant` writes it."""

_INTRODUCTION = """\
# Ablations

What each part of the [learned policy](../../simulator/training/README.md) is worth. Every variant was trained from the
same seed by pgpe for as many simulated decisions, by one process each, and then judged on episodes that none was
trained on; all on equal arrivals and seeds. Ratios are geometric means, below 1 is better, with 95% intervals. Made by
`{command}`; all numbers are in [ablations.json](ablations.json).
"""

_NOTES = """\
- *without the heuristic prior*: the score is the learned term alone, without the expected completion.
- *without dead reckoning*: network and prior see others' requests as last reported; nothing is worked off between two
  events, and nothing is assumed of what others send.
- *without knowing what executes*: all own rows are taken for waiting, so that a batch under way may still be joined;
  what the estimate was at first.
- *without common random numbers*: the two policies of a pair play different episodes.
- *fixed-size network*: a plain network over the inputs of 16 workers in their order, as many hidden units, in place of
  one that is shared by all workers.
- *best tuned fixed weights*: only beta and the constant coefficients of the cost terms are trained, by the same pgpe,
  all else being zero: a fairly tuned heuristic.
- *the regret term* charges again what is worse than `expected_latency`.

Other algorithms are compared [by themselves](optimizers.md).
"""

_GRADIENTS = """\
## Estimates of the gradient

Measured for the policy that training starts from, on the six coefficients of the cost terms. Signal to noise is for one
second of one core, so 1 means that after a second the mean is as long as its error. The cosine is that of the mean with
the mean of PGPE, which has no discount. Horizon and GAE are in mean latencies of `expected_latency`.

| estimate | signal / noise of a second | cosine | samples a second |
|---|---|---|---|
"""


def page(
    outcomes: Mapping[str, Outcome],
    sets: Mapping[str, Sequence[Case]],
    gradients: Outcome,
    command: str,
    words: str = "",
) -> str:
    """Markdown, with a person's `words`; `sets`: by title, cases in the order in which outcomes have them under it."""
    parts = [_INTRODUCTION.format(command=command), marked(words) + "\n", _NOTES]
    for title, cases in sets.items():
        parts.append(f"## {title}\n\n{_table(outcomes, title, cases)}\n{METHOD}.\n")
    if gradients:
        parts.append(_GRADIENTS + "\n".join(_gradient_line(row) for row in gradients["rows"]) + "\n")
    return "\n".join(parts)


def ratios(outcomes: Mapping[str, Outcome], title: str, cases: Sequence[Case]) -> dict[str, dict[str, Estimate]]:
    """By variant and by what it is compared to: `mean/expected_latency` and so on."""
    found: dict[str, dict[str, Estimate]] = {}
    for name, outcome in outcomes.items():
        if title not in outcome["judged"]:
            continue
        found[name] = {}
        for measure, other in (("mean", EXPECTED), ("p99", EXPECTED), ("mean", WLPR), ("p99", WLPR), ("mean", FULL)):
            if other in outcomes and title in outcomes[other]["judged"]:
                own, theirs = (np.array(one["judged"][title][measure + "_s"]) for one in (outcome, outcomes[other]))
                found[name][f"{measure}/{other}"] = ratio_over(np.log(own / theirs), cases)
    return found


def ratio_over(logarithms: FloatArray, cases: Sequence[Case]) -> Estimate:
    """Over seeds, each with all its scenarios, which count alike; over all where each is a scenario of its own."""
    groups = [case.group for case in cases]
    names = list(dict.fromkeys(groups))
    if names != [RANDOM]:
        by_scenario = [logarithms[[group == name for group in groups]] for name in names]
        logarithms = np.mean(by_scenario, axis=0)
    found = mean(logarithms)
    return Estimate(*(float(np.exp(end)) for end in (found.value, found.low, found.high)))


def _table(outcomes: Mapping[str, Outcome], title: str, cases: Sequence[Case]) -> str:
    compared = {
        f"mean/{EXPECTED}": "mean / expected_latency",
        f"p99/{EXPECTED}": "p99 / expected_latency",
        f"mean/{WLPR}": "mean / wlpr",
        f"p99/{WLPR}": "p99 / wlpr",
        f"mean/{FULL}": "mean / as shipped",
    }
    lines = [f"| variant | {' | '.join(compared.values())} | M decisions | CPU minutes |", "|---|" + "---|" * 7]
    for name, each in ratios(outcomes, title, cases).items():
        cells = [_cell(each.get(key)) for key in compared]
        spent = outcomes[name]
        cells += [f"{spent['decisions'] / 1e6:.1f}", f"{spent['seconds'] / 60:.1f}"]
        lines.append(f"| {VARIANTS[name].title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    interval = f" ({estimate.low:.3f}..{estimate.high:.3f})" if estimate.low < estimate.high else ""
    return f"{estimate.value:.3f}{interval}"


def _gradient_line(row: Mapping[str, Any]) -> str:
    ends = f"{row['ratio']:.2f} ({row['low']:.2f}..{row['high']:.2f})"
    return f"| {row['title']} | {ends} | {row['cosine']:.2f} | {row['samples_per_s']:.0f} |"
