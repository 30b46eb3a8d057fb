"""The page, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.by_hand import marked
from experiments.held_out.tables import markdown
from experiments.optimizers.algorithms import AGAINST, ALGORITHMS
from experiments.optimizers.beside import DEFAULTS, SHIPPED, TUNED, beside
from experiments.optimizers.findings import BOTH, MEAN, P99, Found, ratios
from experiments.optimizers.options import SCALES
from experiments.optimizers.runs import Outcome
from policies import BUILTIN
from policies.base import Policy
from policies.expected_latency import ExpectedLatency
from simulator.scoreboard.metrics import WARM_UP_SHARE
from simulator.scoreboard.statistics import CONFIDENCE, RESAMPLES, Estimate

_COLUMNS = {
    f"{MEAN}/{DEFAULTS}": "mean / defaults",
    f"{P99}/{DEFAULTS}": "p99 / defaults",
    f"{MEAN}/{TUNED}": "mean / tuned",
    f"{P99}/{TUNED}": "p99 / tuned",
    f"{BOTH}/{AGAINST}": "both / what ships",
}


@dataclass(frozen=True)
class Report:
    """All that is on the page."""

    decisions: Found
    """Everybody trained on as many decisions."""
    time: Found
    """Everybody trained for about the same time."""
    training_seeds: int
    request_seeds: int
    requests: int
    command: str

    @property
    def budgets(self) -> dict[str, Found]:
        """By title."""
        return {"Equal decisions": self.decisions, "About equal time": self.time}


def page(report: Report, words: str) -> str:
    """Markdown, with a person's `words`."""
    parts = [
        "<!-- Written by python -m experiments.optimizers -->",
        "# Which algorithm trains best",
        "Every algorithm starts from the same: `expected_latency` with its defaults, and a network that adds nothing "
        f"yet. Each was trained from {report.training_seeds} seeds and judged on equal episodes that none was trained "
        "on. Ratios are of latencies, geometric means; below 1 is better.",
        marked(words),
        f"In brackets {CONFIDENCE:.0%} intervals: bootstrap over scenarios, training seeds and request seeds together, "
        f"{RESAMPLES:,} resamples. *defaults*: `expected_latency`. *tuned*: the same with "
        f"{_changed(beside()[TUNED])}, as [sealed scenarios](sealed.md) have it. *both*: mean times the root of p99, "
        "which validation minimises. *Of its seeds*: the same over *tuned*, of the best and of the worst training. "
        "Failed requests count as at least a second, those never answered as 20 s.",
    ]
    for budget, found in report.budgets.items():
        parts += [f"## {budget}", _spent(found)]
        for title in found.sets:
            parts += [f"### {title}", _table(found, title)]
    parts += ["## What CMA-ES found", _found_options(report.budgets), "## How it was done", _method(report)]
    return "\n\n".join(parts) + "\n"


def _trained(found: Found) -> list[str]:
    return [name for name in ALGORITHMS if name in found.outcomes]


def _table(found: Found, title: str) -> str:
    best = found.best(title, _trained(found))
    lines = []
    for name in (*_trained(found), SHIPPED, DEFAULTS, TUNED):
        known = ratios(found, name, title)
        cells = [text(estimate) for estimate in (known[key] for key in _COLUMNS)]
        each = found.by_training(name, TUNED, title, BOTH)
        ends = f"{each.min():.3f} to {each.max():.3f}" if len(each) > 1 else ""
        lines.append([_named(name, best), *cells, ends])
    return markdown(["", *_COLUMNS.values(), "of its seeds"], lines)


def _named(name: str, best: str) -> str:
    if name not in ALGORITHMS:
        return f"*{name}*"
    title = ALGORITHMS[name].title
    return f"**{title}**" if name == best else title


def text(estimate: Estimate) -> str:
    """With its interval, where there is one."""
    if estimate.low == estimate.high:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _spent(found: Found) -> str:
    lines = []
    for name in _trained(found):
        of = found.outcomes[name]
        seconds = [one["cpu_s"] for one in of]
        lines.append(
            [
                ALGORITHMS[name].title,
                f"{np.mean([one['decisions'] for one in of]) / 1e6:.2f}",
                f"{np.mean([one['iterations'] for one in of]):.0f}",
                f"{np.median(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f})",
                f"{1e6 * np.median([one['cpu_s_of_a_decision'] for one in of]):.2f}",
            ]
        )
    return markdown(["of one training", "M decisions", "iterations", "CPU s", "CPU µs a decision"], lines)


def _found_options(budgets: Mapping[str, Found]) -> str:
    """Of each option what trainings ended with."""
    columns: dict[str, list[Mapping[str, Any]]] = {
        title: [one["options"] for of in found.outcomes.values() for one in of if "options" in one]
        for title, found in budgets.items()
    }
    defaults = ExpectedLatency()
    lines = []
    for name, scale in SCALES.items():
        cells = [f"{getattr(defaults, name):g}", f"{scale.least if not scale.log else 0:g} to {scale.most:g}"]
        for each in columns.values():
            values = [float(options[name]) for options in each]
            cells.append(f"{np.median(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else "")
        lines.append([f"`{name}`", *cells])
    return markdown(["", "default", "searched", *(f"{title}: median (all)" for title in columns)], lines)


def _changed(policy: Policy) -> str:
    """The options that are not the defaults'."""
    usual = BUILTIN[policy.name]().options()
    return ", ".join(f"`{name}` {value:g}" for name, value in policy.options().items() if value != usual[name])


def _method(report: Report) -> str:
    sets = "; ".join(
        f"{title.lower()}: {len(dict.fromkeys(case.group for case in cases))}"
        for title, cases in report.decisions.sets.items()
    )
    return (
        f"`{report.command}`. Judged on {report.request_seeds} request seeds of {report.requests:,} requests each, of "
        f"which the first {WARM_UP_SHARE:.0%} are not counted, in so many scenarios: {sets}. All train on what "
        "`balancer train` draws from by default, and none is chosen by validation: what an algorithm ends with counts. "
        "PGPE and CMA-ES minimise the same cost, with the regret term; PPO and REINFORCE have none, since it is no sum "
        "over decisions, and charge tail and deadline at the requests that end late. Where the budget is small, an "
        "iteration has fewer episodes than usual, so that there are 16 at least. CMA-ES searches "
        "six options of `expected_latency` on scales with bounds, all but `behind_share` logarithmic and 0 at their "
        "least, and ends with the middle of its candidates. Time is CPU time of the process that trains. At about "
        "equal time each has that of what ships: the first two are the same trainings as above, the others were "
        "trained again, for as many decisions as they get through in it, by the medians of their CPU time above. All "
        "estimates are in the JSON beside this page."
    )


def as_json(report: Report) -> dict[str, Any]:
    """Estimates, what was spent, and options that were found."""
    return {
        "command": report.command,
        "budgets": {
            budget: {
                "spent": {name: [_without_runs(one) for one in found.outcomes[name]] for name in _trained(found)},
                "ratios": {title: _estimates(found, title) for title in found.sets},
            }
            for budget, found in report.budgets.items()
        },
    }


def _estimates(found: Found, title: str) -> dict[str, Any]:
    return {
        name: {key: [each.value, each.low, each.high] for key, each in ratios(found, name, title).items()}
        for name in (*_trained(found), SHIPPED, DEFAULTS, TUNED)
    }


def _without_runs(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in outcome.items() if name != "judged"}
