"""What an opening writes: the page, all of it made from results, and CSV with every policy in every scenario."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from dev.experiments.language.distribution import RANGES
from dev.experiments.language.rivals import FIELD, FIGURES, GOALS, OURS, figures
from dev.experiments.sealed.page import Provenance, together
from policies.base import FloatArray
from simulator.compare import text
from simulator.compare.metrics import WARM_UP_SHARE, RunMetrics
from simulator.compare.statistics import CONFIDENCE, RESAMPLES, Estimate
from simulator.scenario import Scenario

AIMS = (0.85, 0.90, 0.85, 0.90)
"""Of the median ratios of `FIGURES`; each interval is to be below 1."""
_FIRST, _WHOLE = 0, 2
ENDS = {f"{OURS}, ttft_weight 1": _FIRST, f"{OURS}, ttft_weight 0": _WHOLE}
"""Which figure each end of `ttft_weight` is for."""


@dataclass(frozen=True)
class Opened:
    scenarios: tuple[Scenario, ...]
    metrics: Mapping[str, Sequence[RunMetrics]]
    """By policy, as the page calls it: of each scenario."""
    provenance: Provenance

    def logs(self, name: str) -> FloatArray:
        """`(scenarios, 4, seeds)`, see `figures`."""
        return np.stack([figures(each) for each in self.metrics[name]])

    def ratios(self, ours: str, theirs: str, chosen: Sequence[int] | None = None) -> list[Estimate]:
        """Of each figure, the median over the chosen scenarios."""
        logs = self.logs(ours) - self.logs(theirs)
        some = logs if chosen is None else logs[list(chosen)]
        return [together(some[:, figure]) for figure in range(len(FIGURES))]

    def rivals(self) -> list[str]:
        return [name for name in self.metrics if name.startswith(FIELD)]


def page(opened: Opened) -> str:
    parts = [
        "<!-- Written by python -m dev.experiments.language -->",
        "# Language models: fleets that nobody had looked at",
        f"{_verdict(opened)} In brackets {CONFIDENCE:.0%} intervals: bootstrap over scenarios and request seeds, "
        f"{RESAMPLES:,} resamples. Ratios are medians over {len(opened.scenarios)} scenarios, on equal arrivals; below "
        f"1 `{OURS}` is better. Nothing true is shown to any policy: lengths are estimated, times learned, caches "
        "guessed from picks.",
        "## Against the field's rules",
        _table(opened, OURS, opened.rivals()),
        f"Tuned are options, on other fleets of the same distribution, for {_goals()}. `{OURS}` has its "
        f"defaults, `ttft_weight` 0.5. Bold: the aim of {AIMS[0]:g} in means and {AIMS[1]:g} in p99 is met.",
        "## At the ends of `ttft_weight`",
        _ends(opened),
        "## Where it wins and loses",
        _places(opened),
        "## What was cached",
        _cached(opened),
        "Shares of the tokens of prompts, mean over scenarios: found cached by the worker; cached there, and not known "
        "to the balancer; taken to be cached, and not there. Failed: requests without an answer.",
        "## How it was done",
        _method(opened),
    ]
    return "\n\n".join(parts) + "\n"


def _goals() -> str:
    return f"{', '.join([*GOALS][:-1])} or {[*GOALS][-1]}: what is best for all three is tuned"


def _verdict(opened: Opened) -> str:
    lost = [
        f"{list(FIGURES.values())[figure]} against `{name}`"
        for name in opened.rivals()
        for figure, each in enumerate(opened.ratios(OURS, name))
        if each.value > 1
    ]
    met = sum(
        all(_met(each, figure) for figure, each in enumerate(opened.ratios(OURS, name))) for name in opened.rivals()
    )
    says = f"`{OURS}` meets the aim against {met} of {len(opened.rivals())} rivals."
    return f"{says} It loses in the median: {'; '.join(lost)}." if lost else f"{says} It loses to none in the median."


def _met(estimate: Estimate, figure: int) -> bool:
    return estimate.value <= AIMS[figure] and estimate.high < 1


def _table(opened: Opened, ours: str, names: Sequence[str]) -> str:
    lines = []
    for name in names:
        ratios = opened.ratios(ours, name)
        shown = [f"**{_exact(e)}**" if _met(e, figure) else _exact(e) for figure, e in enumerate(ratios)]
        lines.append([name, *shown])
    return text.markdown([f"{ours} over", *FIGURES.values()], lines)


def _ends(opened: Opened) -> str:
    lines = []
    for ours, figure in ENDS.items():
        for name in opened.rivals():
            ratio = opened.ratios(ours, name)[figure]
            lines.append([ours, name, list(FIGURES.values())[figure], _exact(ratio)])
    return text.markdown(["", "over", "figure", "ratio"], lines)


def _places(opened: Opened) -> str:
    """Against the rival that is best in the median, by what scenarios have."""
    best = min(opened.rivals(), key=lambda name: -opened.ratios(OURS, name)[_FIRST].value)
    groups: dict[str, list[int]] = {}
    for place, given in enumerate(opened.scenarios):
        for kind in kinds(given):
            groups.setdefault(kind, []).append(place)
    lines = [
        [kind, str(len(chosen)), *(_exact(each) for each in opened.ratios(OURS, best, chosen))]
        for kind, chosen in sorted(groups.items())
    ]
    return f"Over `{best}`, the best of them in {FIGURES['first']}:\n\n" + text.markdown(
        ["scenarios with", "how many", *FIGURES.values()], lines
    )


def kinds(given: Scenario) -> tuple[str, ...]:
    fleet, what = given.fleet, given.summary.partition(",")[0]
    mixed = len({worker.device for worker in fleet.workers}) > 1
    return (
        what,
        "mixed devices" if mixed else "equal devices",
        f"{fleet.balancers} balancers" if fleet.balancers > 1 else "one balancer",
        f"reports every {fleet.reports.period_s:g} s",
        *(f"a {fault.kind}" for fault in fleet.faults),
    )


def _cached(opened: Opened) -> str:
    lines = []
    for name, runs in opened.metrics.items():
        shares = [[each.prompts.cached, each.prompts.missed, each.prompts.false] for each in runs]
        failed = float(np.mean([1 - each.shares["ok"] for each in runs]))
        lines.append([name, *(text.share(float(each)) for each in np.mean(shares, axis=(0, 2))), text.share(failed)])
    return text.markdown(["", "cached", "missed", "false", "failed"], lines)


def _method(opened: Opened) -> str:
    drawn = [[field.metadata["what"], field.metadata["how"], f"{field.default}"] for field in fields(RANGES)]
    seeds = len(next(iter(opened.metrics.values()))[0].first_mean_s)
    return (
        f"`{opened.provenance.command}`: scenarios of {opened.provenance.origin}, {seeds} request seeds each, of which "
        f"the first {WARM_UP_SHARE:.0%} of the requests are not counted. All combinations of small grids were tried "
        f"for {', '.join(GOALS)} (`dev/experiments/language/rivals.py`), for `{OURS}` as well. [The CSV]"
        "(language_models.csv) has every policy in every scenario. What is drawn, each independent of the others:\n\n"
        + text.markdown(["what", "how", "from"], drawn)
    )


def _exact(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def as_csv(opened: Opened) -> str:
    """A line for each policy in each scenario; latencies in seconds."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(["scenario", "what", "policy", *FIGURES, "cached", "missed", "false", "failed"])
    for name, runs in opened.metrics.items():
        for given, each in zip(opened.scenarios, runs, strict=True):
            seconds = np.exp(figures(each).mean(axis=1))
            prompts = [float(np.mean(of)) for of in (each.prompts.cached, each.prompts.missed, each.prompts.false)]
            numbers = [*seconds, *prompts, 1 - float(np.mean(each.shares["ok"]))]
            writer.writerow([given.name, given.summary, name, *(f"{number:.4g}" for number in numbers)])
    return made.getvalue()
