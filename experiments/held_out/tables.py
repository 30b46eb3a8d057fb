"""The tables of the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.held_out import findings
from experiments.held_out.findings import Line
from experiments.held_out.kinds import counts, kinds
from experiments.held_out.plan import BASELINE, CLAIRVOYANT, WEIGHTED, Judged, bare
from experiments.held_out.report import Report
from simulator.scoreboard import text
from simulator.scoreboard.statistics import Estimate
from simulator.scoreboard.summary import FIGURES, NAMES, Figure, by_seed

PAIRS: tuple[tuple[Figure, str], ...] = tuple(
    (figure, against) for against in (BASELINE, WEIGHTED) for figure in FIGURES
)


def bar(report: Report) -> str:
    """Every line of the bar, and each file."""
    of_files = {name: findings.bar(report.scenarios, name) for name in report.trained}
    lines = []
    for i, line in enumerate(of_files[report.subject]):
        cells = [_verdict(of_files[name][i]) for name in report.trained]
        with_all = text.NONE if line.with_all is None else _exact(line.with_all)
        lines.append([f"{line.what}: {NAMES[line.figure]} / {line.against}", f"≤ {line.limit:.2f}", *cells, with_all])
    return markdown(["ratio of latencies", "aim", *report.trained, f"{report.subject}, all scenarios"], lines)


def chosen(report: Report) -> str:
    """The scenarios, what they are, and which count."""
    lines = []
    for judged in report.scenarios:
        scenario = judged.board.scenario
        lines.append(
            [
                scenario.name,
                scenario.summary,
                ", ".join(kinds(scenario)) or text.NONE,
                str(len(scenario.fleet.workers)),
                text.share(judged.board.load),
                f"{judged.end_s:.0f}",
                "yes" if counts(scenario) else "no",
            ]
        )
    return markdown(["scenario", "", "kinds", "workers", "load", "run lasts s", "in the medians"], lines, words=3)


def scenarios(report: Report) -> str:
    """Latencies, deadlines and failures of the subject as served, beside the two that the bar names."""
    lines = []
    for judged in report.scenarios:
        for name in (report.subject, BASELINE, WEIGHTED):
            metrics = judged.board.policies[name]
            lines.append(
                [
                    judged.board.scenario.name if name == report.subject else "",
                    name,
                    text.milliseconds(float(np.mean(metrics.latency.mean_s))),
                    text.milliseconds(float(np.mean(metrics.latency.p99_s))),
                    text.share(float(np.mean(metrics.latency.within_deadline))),
                    text.share(float(np.mean(metrics.shares["shed"]))),
                    text.share(max(findings.failed(metrics), 0.0)),
                ]
            )
    return markdown(["scenario", "policy", "mean ms", "p99 ms", "in time", "shed", "failed"], lines, words=2)


def ratios(of: Sequence[Judged], policy: str, first: str = "scenario") -> str:
    """The policy to the two that the bar names; p99 within the model where it compares worst, too."""
    lines = []
    for judged in of:
        cells = [_ratio(judged, policy, against, figure) for figure, against in PAIRS]
        worst = [_worst_model(judged, policy, against) for against in (BASELINE, WEIGHTED)]
        lines.append([judged.board.scenario.name, *cells, *worst])
    head = [f"{NAMES[figure]} / {against}" for figure, against in PAIRS]
    return markdown([first, *head, *(f"p99 of worst model / {each}" for each in (BASELINE, WEIGHTED))], lines)


def models(report: Report) -> str:
    """p99 within each model, where there are several; empty where no scenario has several."""
    lines = []
    for judged in [*report.scenarios, *report.fleets]:
        found = {against: findings.model_ratios(judged, report.subject, against) for against in (BASELINE, WEIGHTED)}
        for model, to_baseline in found[BASELINE].items() if len(found[BASELINE]) > 1 else ():
            latency = judged.board.policies[report.subject].models[model]
            to_weighted = found[WEIGHTED].get(model)
            lines.append(
                [
                    judged.board.scenario.name,
                    model,
                    text.milliseconds(float(np.mean(latency.p99_s))),
                    text.share(float(np.mean(latency.within_deadline))),
                    text.interval(to_baseline),
                    text.NONE if to_weighted is None else text.interval(to_weighted),
                ]
            )
    if not lines:
        return ""
    return markdown(["", "model", "p99 ms", "in time", f"p99 / {BASELINE}", f"p99 / {WEIGHTED}"], lines, words=2)


def heuristics(report: Report, figure: Figure) -> str:
    """All policies as a ratio to the baseline; bold: the lowest."""
    names = [*report.trained, *(name for name in report.heuristics if name != BASELINE), CLAIRVOYANT]
    lines = []
    for judged in report.scenarios:
        values = {name: _to_baseline(judged, name, figure) for name in names}
        able = [value for name, value in values.items() if name != CLAIRVOYANT and np.isfinite(value)]
        cells = []
        for name, value in values.items():
            less = name != CLAIRVOYANT and findings.answers_less(judged, name, BASELINE)
            cell = text.ratio(value) + "†" * less
            lowest = name != CLAIRVOYANT and able and value == min(able) and value < 1
            cells.append(f"**{cell}**" if lowest else cell)
        lines.append([judged.board.scenario.name, *cells])
    if report.counted:
        medians = [np.median([_to_baseline(each, name, figure) for each in report.counted]) for name in names]
        lines.append(["median of those that count", *(text.ratio(float(each)) for each in medians)])
    return markdown(["scenario", *names], lines)


def in_time(report: Report) -> str:
    """Share of all requests answered within their deadline, every policy."""
    names = [*report.trained, *report.heuristics]
    lines = [
        [
            judged.board.scenario.name,
            *(text.share(float(np.mean(judged.board.policies[name].latency.within_deadline))) for name in names),
        ]
        for judged in report.scenarios
    ]
    return markdown(["scenario", *names], lines)


def gap(report: Report) -> str:
    """Share of the gap to the clairvoyant that the subject closes."""
    lines = []
    for judged in report.scenarios:
        cells = [_closed(findings.gap_closed(judged, report.subject, figure)) for figure in FIGURES]
        sizes = [f"{1 - _to_baseline(judged, CLAIRVOYANT, figure):.0%}" for figure in FIGURES]
        lines.append([judged.board.scenario.name, sizes[0], cells[0], sizes[1], cells[1]])
    medians = [_closed(findings.median_gap_closed(report.scenarios, report.subject, figure)) for figure in FIGURES]
    lines.append(["median", "", medians[0], "", medians[1]])
    return markdown(["scenario", "gap in mean", "closed", "gap in p99", "closed"], lines)


def guard(of: Sequence[Judged], policy: str, first: str = "scenario") -> str:
    """What the guard did, and what it cost."""
    lines = []
    for judged in of:
        cost = findings.guard_cost(judged, policy)
        why = ", ".join(f"{reason} {count}" for reason, count in cost.reasons.items()) or text.NONE
        lines.append(
            [
                judged.board.scenario.name,
                f"{cost.falls} in {cost.seeds_with_falls} of {len(judged.board.seeds)} runs" if cost.falls else "none",
                why,
                text.share(cost.fallen),
                text.share(cost.by_baseline),
                text.interval(cost.mean),
                text.interval(cost.p99),
            ]
        )
    head = [first, "falls", "why", "time out of service", "decided by baseline", "mean / unguarded", "p99 / unguarded"]
    return markdown(head, lines, words=3)


def unguarded(of: Sequence[Judged], policy: str, first: str = "scenario") -> str:
    """Ratios of the policy where no guard is."""
    lines = [
        [judged.board.scenario.name, *(_ratio(judged, bare(policy), against, figure) for figure, against in PAIRS)]
        for judged in of
    ]
    return markdown([first, *(f"{NAMES[figure]} / {against}" for figure, against in PAIRS)], lines)


def files(report: Report) -> str:
    """Ratios of every file to the baseline, as served."""
    head = [f"{NAMES[figure]}: {name}" for figure in FIGURES for name in report.trained]
    lines = [
        [judged.board.scenario.name, *(_ratio(judged, n, BASELINE, f) for f in FIGURES for n in report.trained)]
        for judged in report.scenarios
    ]
    return markdown(["", *head], lines)


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first columns, so many, are words."""
    rows = [head, [*["---"] * words, *["---:"] * (len(head) - words)], *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _verdict(line: Line) -> str:
    where = f" in {line.where}" if line.where else ""
    return f"{'pass' if line.met else '**fail**'}: {_exact(line.found)}{where}"


def _exact(estimate: Estimate) -> str:
    """Three decimals: limits have two."""
    if not np.isfinite(estimate.value):
        return text.NONE
    if not np.isfinite(estimate.low):
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _ratio(judged: Judged, policy: str, against: str, figure: Figure) -> str:
    less = findings.answers_less(judged, policy, against)
    return text.interval(findings.ratio(judged, policy, against, figure)) + "†" * less


def _worst_model(judged: Judged, policy: str, against: str) -> str:
    found = findings.model_ratios(judged, policy, against)
    if not found:
        return text.NONE
    worst = max(found, key=lambda model: found[model].value)
    return f"{text.ratio(found[worst].value)} {worst}" if len(found) > 1 else text.ratio(found[worst].value)


def _to_baseline(judged: Judged, name: str, figure: Figure) -> float:
    """Geometric mean over seeds of the ratio."""
    board = judged.board
    ours = by_seed(board.references[name] if name == CLAIRVOYANT else board.policies[name], figure)
    return float(np.exp(np.mean(np.log(ours) - np.log(by_seed(board.policies[BASELINE], figure)))))


def _closed(estimate: Estimate | None) -> str:
    if estimate is None:
        return "too small a gap"
    if not np.isfinite(estimate.low):
        return f"{estimate.value:.0%}"
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"
