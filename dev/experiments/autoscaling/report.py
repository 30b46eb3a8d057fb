"""How well the replicas followed the load: figures, the page's table and CSV, and the picture."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dev.experiments.autoscaling.closed_loop import Run
from policies.base import FloatArray
from simulator.compare.text import put_between_marks
from simulator.result import Status

FULL = 0.9
"""Of what the ready workers can serve: above it there are too few."""
_WINDOW_S = 60.0


class Figures(NamedTuple):
    too_few: float
    """Share of the time in which the offered load was above `FULL` of what the ready workers can serve."""
    too_many: float
    """Share of the time in which two replicas fewer would have sufficed, with more than the least there."""
    mean_replicas: float
    mean_needed: float
    """The fewest that would have sufficed."""
    largest: int
    changes: int
    p99_s: float
    late: float
    """Share of the requests that missed their deadlines, or failed."""


def offered_per_s(run: Run) -> FloatArray:
    """Requests a second at each look, over the minute around it."""
    arrival_s = run.result.arrival_s[0]
    ends = [np.searchsorted(arrival_s, run.look_s + side * _WINDOW_S / 2) for side in (-1, 1)]
    counted_s = np.minimum(run.look_s + _WINDOW_S / 2, arrival_s[-1]) - np.maximum(run.look_s - _WINDOW_S / 2, 0)
    offered: FloatArray = (ends[1] - ends[0]) / counted_s
    return offered


def needed(run: Run, one_per_s: float, least: int) -> FloatArray:
    fewest: FloatArray = np.maximum(np.ceil(offered_per_s(run) / (FULL * one_per_s)), least)
    return fewest


def figures(run: Run, one_per_s: float, least: int) -> Figures:
    """Of a run whose workers can serve so much each, of which there are so many at least."""
    fewest, result = needed(run, one_per_s, least), run.result
    latency_s, ok = result.latency_s[0], result.status[0] == Status.OK
    return Figures(
        too_few=float((run.ready < fewest).mean()),
        too_many=float((run.replicas >= fewest + 2).mean()),
        mean_replicas=float(run.replicas.mean()),
        mean_needed=float(fewest.mean()),
        largest=int(run.replicas.max()),
        changes=int((np.diff(run.replicas) != 0).sum()),
        p99_s=float(np.quantile(latency_s[ok], 0.99)),
        late=float((~ok | (latency_s > result.deadline_s[0])).mean()),
    )


_HEAD = "| load | target of the wait | too few | workers, mean (enough) | p99 | late |\n|---|---|---:|---:|---:|---:|\n"


def table(found: Mapping[tuple[str, str], Figures], shown: tuple[str, ...]) -> str:
    return _HEAD + "".join(_line(*key, each) for key, each in found.items() if key[1] in shown)


def _line(load: str, variant: str, of: Figures) -> str:
    p99 = f"{of.p99_s:.2f} s" if of.p99_s < 10 else f"{of.p99_s:.0f} s"
    mean = f"{of.mean_replicas:.1f} ({of.mean_needed:.1f})"
    return f"| {load} | {variant} | {of.too_few:.1%} | {mean} | {p99} | {of.late:.1%} |\n"


def as_csv(found: Mapping[tuple[str, str], Figures]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["load", "variant", *Figures._fields])
    writer.writerows([*key, *(f"{value:.4g}" for value in each)] for key, each in found.items())
    return text.getvalue()


def renew(page: Path, found: Mapping[tuple[str, str], Figures], shown: tuple[str, ...]) -> None:
    """Put the table between the page's marks, and the CSV beside it; OperatorError where there are none."""
    # A blank line on either side, as Markdown wants around a table.
    put_between_marks(f"\n{table(found, shown)}", page, "results")
    page.with_suffix(".csv").write_text(as_csv(found), encoding="utf-8")


_OFFERED, _WANTED, _READY, _METRIC, _NEEDED = "#56B4E9", "#D55E00", "#0072B2", "#009E73", "#000000"


def draw(runs: Mapping[tuple[str, str], Run], one_per_s: float, least: int, path: Path) -> None:
    """Write it as PNG; `runs` by load and variant: a column for each load, and for each variant two rows."""
    loads, variants = list(dict.fromkeys(key[0] for key in runs)), list(dict.fromkeys(key[1] for key in runs))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Figure(figsize=(4.6 * len(loads), 4.4 * len(variants)), layout="constrained", dpi=110)
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
