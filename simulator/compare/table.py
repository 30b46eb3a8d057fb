"""Scoreboards for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from simulator.scoreboard import statistics, summary, text
from simulator.scoreboard.compare import Board
from simulator.scoreboard.document import Report
from simulator.scoreboard.summary import FIGURES, NAMES, Figure

COLUMNS = ("policy", "mean ms", "p50", "p95", "p99", "p99.9", "in time", "not OK", "good/s", "Jain", "mean vs {}")
"""Of a scenario's table; the last names the baseline."""
OF_STREAMS = ("first ms", "first p99")
"""Further ones where requests are streams: to the first response."""


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
    """`COLUMNS` with the baseline in them, and `OF_STREAMS` where there are any."""
    return [column.format(baseline) for column in COLUMNS] + list(OF_STREAMS if _has_streams(board) else ())


def _has_streams(board: Board) -> bool:
    return any(np.isfinite(metrics.first_mean_s).any() for metrics in board.policies.values())


def cells(board: Board, policy: str, baseline: str) -> list[str]:
    """One policy as text, by `COLUMNS`: means over seeds."""
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
    """`regret_lines` for a terminal."""
    return _table(f"Regret in {NAMES[figure]}, ms above", "", *regret_lines(board, figure))


def regret_lines(board: Board, figure: Figure) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: milliseconds above each reference, of a board that has them."""
    policies = summary.ranked(board, figure)
    head = ["policy", *summary.references(board, policies[0], figure)]
    return head, [
        [policy, *(text.interval(each, "ms") for each in summary.regrets(board, policy, figure).values())]
        for policy in policies
    ]


def aggregate_table(report: Report) -> Table:
    """Policies over all scenarios, the lowest mean first."""
    return _table("Over all scenarios", aggregate_caption(report), *aggregate_lines(report))


def aggregate_caption(report: Report) -> str:
    """What the columns of the aggregate mean."""
    reference = "the clairvoyant's" if report.boards[0].references else "the best policy's"
    return (
        f"Ratios: latency over {reference} on equal arrivals, interquartile mean of {len(report.boards)} scenarios and "
        f"{len(report.boards[0].seeds)} seeds. Better: probability that a run has a lower ratio than one of "
        f"{report.baseline}. {statistics.METHOD}."
    )


def aggregate_lines(report: Report) -> tuple[list[str], list[list[str]]]:
    """Headings and cells."""
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


def markdown(report: Report) -> str:
    """Aggregate, and mean and p99 by policy and scenario, beside the best."""
    parts = [
        "# Scoreboard",
        "## Over all scenarios",
        _markdown(*aggregate_lines(report)),
        aggregate_caption(report),
    ]
    for figure in FIGURES:
        lines = [[board.scenario.name, *_ratios(board, report.policies, figure)] for board in report.boards]
        parts += [
            f"## {NAMES[figure]}, as a multiple of the best policy's",
            _markdown(["scenario", *report.policies], lines),
        ]
    if report.boards[0].references:
        parts += ["## The references, as a multiple of the best policy's", _markdown(*_reference_ratios(report))]
    parts.append(
        "Bold: not told apart from the best. †: answered fewer of the requests. "
        f"{len(report.boards[0].seeds)} seeds; made by `{report.command}`."
    )
    return "\n\n".join(parts) + "\n"


def _reference_ratios(report: Report) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: of each scenario the references over the policy of the lowest mean, or p99."""
    names = list(report.boards[0].references)
    head = ["scenario", *(f"{NAMES[figure]}: {name}" for figure in FIGURES for name in names)]
    lines = []
    for board in report.boards:
        cells = [board.scenario.name]
        for figure in FIGURES:
            best = summary.by_seed(board.policies[summary.ranked(board, figure)[0]], figure)
            found = [statistics.ratio(summary.by_seed(board.references[name], figure), best) for name in names]
            cells += [text.ratio(each.value) for each in found]
        lines.append(cells)
    return head, lines


def _table(title: str, caption: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = text.table(title, head, caption, no_wrap=True, padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row(*map(escape, line))
    return table


def _ratios(board: Board, policies: Sequence[str], figure: Figure) -> list[str]:
    found = [summary.cell(board, policy, figure) for policy in policies]
    marked = [text.ratio(each.ratio.value) + "†" * each.answers_less for each in found]
    return [f"**{mark}**" if each.tied else mark for mark, each in zip(marked, found, strict=True)]


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
