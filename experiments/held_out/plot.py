"""The pictures: each scenario's ratios beside the bar, and ratios by size of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from experiments.held_out import findings
from experiments.held_out.kinds import counts
from experiments.held_out.plan import BASELINE, CLAIRVOYANT, LOADS, WEIGHTED, Judged, bare
from experiments.held_out.report import Report
from simulator.scoreboard.summary import FIGURES, NAMES, Figure, by_seed

# Okabe and Ito's colours, told apart with any colour vision.
_SERVED, _BARE, _OTHERS, _KNOWING, _LIMIT = "#0072B2", "#E69F00", "0.6", "#009E73", "#D55E00"
_LIMITS: dict[Figure, tuple[float, float]] = {"mean_s": (0.9, 1.03), "p99_s": (1.0, 1.05)}
"""Of the median and of the worst scenario."""
_FARTHEST = 4.0
_BY_LOAD = ("#56B4E9", "#0072B2", "#CC79A7")


def draw(report: Report, path: Path) -> None:
    """All scenarios, as PNG: the subject, every heuristic and the clairvoyant over the baseline."""
    judged = report.scenarios
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Canvas(figsize=(13, 1.9 + 0.42 * len(judged)), layout="constrained", dpi=130)
        panels: Sequence[Axes] = canvas.subplots(1, 2, sharey=True)
        for panel, figure in zip(panels, FIGURES, strict=True):
            for y, each in enumerate(judged):
                _row(panel, y, each, figure, report)
            median, worst = _LIMITS[figure]
            panel.axvline(1, color="0.4", linewidth=0.8)
            panel.axvline(median, color=_LIMIT, linewidth=0.8, linestyle="dashed", label="asked of the median")
            panel.axvline(worst, color=_LIMIT, linewidth=0.8, linestyle="dotted", label="asked of the worst")
            panel.set(
                xscale="log",
                xlim=(None, _FARTHEST),
                xlabel=f"{NAMES[figure]} over {BASELINE}'s; beyond {_FARTHEST:g} not shown",
            )
            _plain_log(panel)
            panel.set_title(f"{NAMES[figure]}: left of 1 is better", loc="left")
        names = [each.board.scenario.name if counts(each.board.scenario) else f"({each.board.scenario.name})"
                 for each in judged]  # fmt: skip
        panels[0].set_yticks(range(len(judged)), names)
        panels[0].set_ylim(len(judged) - 0.4, -0.6)
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
        canvas.savefig(path)


def _row(panel: Axes, y: int, judged: Judged, figure: Figure, report: Report) -> None:
    first = y == 0
    board = judged.board
    baseline = by_seed(board.policies[BASELINE], figure)
    others = [np.exp(np.mean(np.log(by_seed(board.policies[name], figure) / baseline))) for name in report.heuristics]
    shown = [value for value in others if value <= _FARTHEST]
    panel.plot(shown, [y] * len(shown), "o", color=_OTHERS, markersize=4, label="heuristics" if first else "")
    knowing = np.exp(np.mean(np.log(by_seed(board.references[CLAIRVOYANT], figure) / baseline)))
    panel.plot(knowing, y, "d", color=_KNOWING, markersize=6, label="clairvoyant, greedy" if first else "")
    for name, colour, label, apart in (
        (bare(report.subject), _BARE, bare(report.subject), 0.14),
        (report.subject, _SERVED, f"{report.subject}, guard on, with 95% interval", -0.14),
    ):
        found = findings.ratio(judged, name, BASELINE, figure)
        panel.plot([found.low, found.high], [y + apart] * 2, color=colour, linewidth=2.2)
        panel.plot(found.value, y + apart, "o", color=colour, markersize=6, label=label if first else "")


def draw_fleets(report: Report, path: Path) -> None:
    """Ratios of the subject by size of the fleet, as PNG; filled with the guard, hollow without."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Canvas(figsize=(11, 7), layout="constrained", dpi=130)
        panels: Sequence[Sequence[Axes]] = canvas.subplots(2, 2, sharex=True)
        sizes = sorted({len(each.board.scenario.fleet.workers) for each in report.fleets})
        for row, against in zip(panels, (BASELINE, WEIGHTED), strict=True):
            for panel, figure in zip(row, FIGURES, strict=True):
                for each in report.fleets:
                    _fleet(panel, each, sizes, report.subject, against, figure)
                panel.axhline(1, color="0.4", linewidth=0.8)
                panel.set_xticks(range(len(sizes)), [f"{size} workers" for size in sizes])
                panel.set_title(f"{NAMES[figure]} / {against}: below 1 is better", loc="left")
                panel.grid(visible=True, axis="y", alpha=0.3)
        for load, colour in zip(LOADS, _BY_LOAD, strict=True):
            panels[0][0].plot([], [], "o", color=colour, label=f"{load:.0%} of capacity, guard on")
        panels[0][0].plot([], [], "o", color="0.4", fillstyle="none", label="the same without guard")
        canvas.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        canvas.savefig(path)


def _fleet(panel: Axes, judged: Judged, sizes: Sequence[int], subject: str, against: str, figure: Figure) -> None:
    load = min(range(len(LOADS)), key=lambda i: abs(LOADS[i] - judged.board.load))
    x = sizes.index(len(judged.board.scenario.fleet.workers)) + (load - 1) * 0.2
    x += 0.05 if "gpus" in judged.board.scenario.name else -0.05
    for name, filled in ((bare(subject), False), (subject, True)):
        found = findings.ratio(judged, name, against, figure)
        colour = _BY_LOAD[load]
        panel.plot(x, found.value, "o", color=colour, fillstyle="full" if filled else "none", markersize=6)
        if filled:
            panel.plot([x, x], [found.low, found.high], color=colour, linewidth=1.6)


def _plain_log(panel: Axes) -> None:
    ticks = [tick for tick in (0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4) if tick >= panel.get_xlim()[0]]
    panel.set_xticks(ticks)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(visible=True, axis="x", alpha=0.3)
