"""Scoreboards for a terminal, as Markdown and as CSV."""

import csv
import io
import itertools
from collections.abc import Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from simulator.compare import statistics, summary, text
from simulator.compare.compare import Board
from simulator.compare.document import ComparisonReport
from simulator.compare.metrics import RunMetrics
from simulator.compare.summary import FIGURES, NAMES, Figure

COLUMNS = ("policy", "mean ms", "p50", "p95", "p99", "p99.9", "in time", "not OK", "good/s", "Jain", "mean vs {}")
"""Of a scenario's table; the last names the baseline."""
OF_STREAMS = ("first ms", "first p99")
"""Further ones where requests are streams: to the first response."""
OF_PROMPTS = ("cached",)
"""Further ones where requests have prompts: the share of their tokens that the worker had."""


def scenario_table(board: Board, baseline: str) -> Table:
    """The policies of one scenario, the lowest mean first, and below them the references."""
    where = f"{text.share(board.load)} of capacity" if np.isfinite(board.load) else "closed loop"
    title = f"[bold]{escape(board.scenario.name)}[/bold], {where}: {escape(board.scenario.summary)}"
    seeds = len(board.seeds)
    method = statistics.METHOD if seeds > 1 else "one seed: no intervals"
    caption = f"{seeds} seed{'s' * (seeds > 1)} of {board.requests:,} requests; {method}"
    lines = [cells(board, each, baseline) for each in summary.ranked(board)]
    table = _table(title, caption, headings(baseline, board), lines)
    for name, (mean_s, p99_s) in reference_lines(board).items():
        table.add_row(name, mean_s, "", "", p99_s, style="dim italic")
    return table


def headings(baseline: str, board: Board) -> list[str]:
    """`COLUMNS` with the baseline in them, and `OF_STREAMS` and `OF_PROMPTS` where there are any."""
    of_streams, of_prompts = OF_STREAMS if _has_streams(board) else (), OF_PROMPTS if _has_prompts(board) else ()
    return [*(column.format(baseline) for column in COLUMNS), *of_streams, *of_prompts]


def _has_streams(board: Board) -> bool:
    return any(np.isfinite(metrics.first_mean_s).any() for metrics in board.policies.values())


def _has_prompts(board: Board) -> bool:
    return any(np.isfinite(metrics.prompts.cached).any() for metrics in board.policies.values())


def cells(board: Board, policy: str, baseline: str) -> list[str]:
    metrics = board.policies[policy]
    latency = metrics.latency
    times_s = (latency.mean_s, latency.p50_s, latency.p95_s, latency.p99_s, latency.p999_s)
    first_s = metrics.first_mean_s, metrics.first_p99_s
    against = statistics.ratio(latency.mean_s, board.policies[baseline].latency.mean_s)
    return [
        policy,
        *(text.milliseconds(float(np.mean(each))) for each in times_s),
        text.share(float(np.mean(latency.within_deadline))),
        text.share(1 - float(np.mean(metrics.shares["ok"]))),
        f"{np.mean(metrics.goodput_per_s):,.0f}",
        f"{np.mean(metrics.fairness):.2f}",
        "1" if policy == baseline else text.interval(against),
        *(text.milliseconds(float(np.mean(each))) for each in first_s if _has_streams(board)),
        *([text.share(float(np.mean(metrics.prompts.cached)))] if _has_prompts(board) else []),
    ]


def reference_lines(board: Board) -> dict[str, tuple[str, str]]:
    """By reference, mean and p99 as text: what regret counts from; empty without the ladder."""
    if board.bound is None:
        return {}
    found = {"pooled bound": (board.bound.mean_s, board.bound.p99_s)}
    found |= {name: (each.latency.mean_s, each.latency.p99_s) for name, each in board.references.items()}
    return {
        name: (text.milliseconds(float(np.mean(mean_s))), text.milliseconds(float(np.mean(p99_s))))
        for name, (mean_s, p99_s) in found.items()
    }


def regret_table(board: Board, figure: Figure) -> Table:
    return _table(f"Regret in {NAMES[figure]}, ms above", "", *regret_lines(board, figure))


def regret_lines(board: Board, figure: Figure) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: milliseconds above each reference, of a board that has them."""
    policies = summary.ranked(board, figure)
    head = ["policy", *summary.references(board, policies[0], figure)]
    return head, [
        [policy, *(text.interval(each, "ms") for each in summary.regrets(board, policy, figure).values())]
        for policy in policies
    ]


def aggregate_table(report: ComparisonReport) -> Table:
    return _table("Over all scenarios", aggregate_caption(report), *aggregate_lines(report))


def aggregate_caption(report: ComparisonReport) -> str:
    reference = "the clairvoyant's" if summary.have_references(report.boards) else "the best policy's"
    return (
        f"Ratios: latency over {reference} on equal arrivals, interquartile mean of {len(report.boards)} scenarios and "
        f"{len(report.boards[0].seeds)} seeds. Better: probability that a run has a lower ratio than one of "
        f"{report.baseline}. {statistics.METHOD}."
    )


def aggregate_lines(report: ComparisonReport) -> tuple[list[str], list[list[str]]]:
    head = ["policy", "mean ratio", "p99 ratio", "better in mean", "better in p99"]
    found = summary.aggregate(report.boards, report.baseline)
    order = sorted(found, key=lambda policy: found[policy].interquartile_mean["mean_s"].value)
    return head, [
        [
            policy,
            *(text.interval(found[policy].interquartile_mean[f]) for f in FIGURES),
            *(
                text.NONE if policy == report.baseline else text.share(found[policy].improvement[f].value)
                for f in FIGURES
            ),
        ]
        for policy in order
    ]


def markdown(report: ComparisonReport) -> str:
    """The aggregate; what each scenario gave is in the CSV beside it."""
    parts = [
        "<!-- Written by balancer scoreboard -->",
        "# Scoreboard",
        text.markdown(*aggregate_lines(report)),
        aggregate_caption(report),
        "[scoreboard.csv](scoreboard.csv) has mean and p99 of every policy in every scenario, as multiples of the best "
        "policy's there: `tied` where the interval leaves room for being as good, `answers_less` where it answered "
        "fewer of the requests, which flatters it; and of the references, which know more than a policy can.",
        f"`{report.command}` makes it again, with a page of plots beside it, `index.html`.",
    ]
    return "\n\n".join(parts) + "\n"


def as_csv(report: ComparisonReport) -> str:
    """A line for each policy, and each reference, in each scenario: its latencies over the best policy's."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(["scenario", "policy", *(f"{NAMES[f]}_{of}" for f in FIGURES for of in ("ratio", *_FLAGS))])
    for board in report.boards:
        for policy in report.policies:
            found = [summary.cell(board, policy, figure) for figure in FIGURES]
            cells = [[_number(each.ratio.value), int(each.tied), int(each.answers_less)] for each in found]
            writer.writerow([board.scenario.name, policy, *itertools.chain(*cells)])
        for name, metrics in board.references.items():
            cells = [[_number(_over_best(board, metrics, figure)), "", ""] for figure in FIGURES]
            writer.writerow([board.scenario.name, name, *itertools.chain(*cells)])
    return made.getvalue()


_FLAGS = ("tied", "answers_less")


def _over_best(board: Board, metrics: RunMetrics, figure: Figure) -> float:
    best = summary.by_seed(board.policies[summary.ranked(board, figure)[0]], figure)
    return statistics.ratio(summary.by_seed(metrics, figure), best).value


def _number(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else ""


def _table(title: str, caption: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = text.table(title, head, caption, no_wrap=True, padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row(*map(escape, line))
    return table
