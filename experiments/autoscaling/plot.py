"""The picture: offered load, the metric, and the replicas wanted and there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from experiments.autoscaling.closed_loop import Run
from experiments.autoscaling.figures import needed, offered_per_s

_OFFERED, _WANTED, _READY, _METRIC, _NEEDED = "#56B4E9", "#D55E00", "#0072B2", "#009E73", "#000000"


def draw(runs: Mapping[tuple[str, str], Run], one_per_s: float, least: int, path: Path) -> None:
    """Write it as PNG; `runs` by load and variant: a column for each load, and for each variant two rows."""
    loads, variants = list(dict.fromkeys(key[0] for key in runs)), list(dict.fromkeys(key[1] for key in runs))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Canvas(figsize=(4.6 * len(loads), 4.4 * len(variants)), layout="constrained", dpi=110)
        ratios = [2, 1] * len(variants)
        panels = canvas.subplots(2 * len(variants), len(loads), squeeze=False, height_ratios=ratios)
        for column, load in enumerate(loads):
            for place, variant in enumerate(variants):
                upper, lower = panels[2 * place, column], panels[2 * place + 1, column]
                _replicas(upper, runs[load, variant], one_per_s, least)
                upper.set_title(f"{load}: {variant}", loc="left", fontweight="bold")
                _metric(lower, runs[load, variant])
        panels[0, 0].legend(loc="upper right", frameon=False, fontsize=8)
        for panel in panels[-1]:
            panel.set_xlabel("minutes")
        canvas.savefig(path)


def _replicas(panel: Axes, run: Run, one_per_s: float, least: int) -> None:
    minutes = run.look_s / 60
    panel.fill_between(
        minutes, offered_per_s(run) / one_per_s, color=_OFFERED, alpha=0.5, label="offered, in busy workers"
    )
    panel.step(minutes, needed(run, one_per_s, least), where="post", color=_NEEDED, linewidth=0.8, label="enough")
    panel.step(minutes, run.replicas, where="post", color=_WANTED, linewidth=1.6, label="replicas wanted")
    panel.step(minutes, run.ready, where="post", color=_READY, linewidth=1.2, label="ready")
    panel.set_ylim(bottom=0)
    panel.set_ylabel("workers")


def _metric(panel: Axes, run: Run) -> None:
    panel.plot(run.look_s / 60, run.scraped.backlog_s, color=_METRIC, linewidth=1, label="wait at the mean worker")
    panel.axhline(run.targets.backlog_s, color=_NEEDED, linestyle="dotted", linewidth=1)
    panel.set(yscale="log", ylim=(0.02, 200), ylabel="wait (s)")
