"""The demo's picture: tails of latency, quantiles with their uncertainty, and who served."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from balancer.load.result import milliseconds
from dev.demo.report import Report, Row
from dev.demo.steps import PolicyOutcome

# Tol's muted scheme, told apart with any colour vision, with black and grey added. Markers and dashes tell policies
# apart where colours do not: in print, and where a policy of somebody's own is the twelfth.
COLOURS = (
    *("#CC6677", "#332288", "#117733", "#88CCEE", "#882255", "#DDCC77"),
    *("#44AA99", "#000000", "#AA4499", "#999933", "#8C8C8C"),
)
_DASHES = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_SYMBOLS = ("o", "s", "^", "v", "D", "P", "X")
# Field, name, marker, and where its number goes (points): p95 below the line, or p99 would cover it.
_MARKERS = (("p50_s", "p50", "o", 6), ("p95_s", "p95", "s", -13), ("p99_s", "p99", "D", 6))
_LOWEST_SHARE = 1e-3
_DPI = 150


class Style(NamedTuple):
    colour: str
    dashes: Any
    symbol: str


def styles_of(policies: Sequence[str]) -> dict[str, Style]:
    """A style for each, by name and not by rank, so that a policy looks alike in every run of the same policies."""
    return {
        policy: Style(COLOURS[i % len(COLOURS)], _DASHES[i % len(_DASHES)], _SYMBOLS[i % len(_SYMBOLS)])
        for i, policy in enumerate(sorted(policies))
    }


def draw(report: Report, outcomes: Sequence[PolicyOutcome], path: pathlib.Path) -> None:
    styles = styles_of([row.policy for row in report.rows])
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 5.1 + 0.46 * len(report.rows)), layout="constrained", dpi=_DPI)
        parts = figure.subplot_mosaic(
            [["tails", "tails"], ["quantiles", "workers"]],
            height_ratios=[4.2, 0.6 + 0.46 * len(report.rows)],
            width_ratios=[1.15, 1],
        )
        figure.suptitle(
            f"Routing policies under the same bursts: {report.plan.rate_per_s:.0f} requests/s on average, "
            f"{len(report.workers)} workers with emulated GPUs",
            fontsize=13,
            fontweight="bold",
        )
        _tails(parts["tails"], report, outcomes, styles)
        _quantiles(parts["quantiles"], report.rows, styles)
        _workers(parts["workers"], report)
        figure.savefig(path)


def _tails(axes: Axes, report: Report, outcomes: Sequence[PolicyOutcome], styles: Mapping[str, Style]) -> None:
    by_policy = {outcome.policy: outcome.result for outcome in outcomes}
    for place, row in enumerate(report.rows):
        result = by_policy[row.policy]
        latency_ms = np.sort(result.latency_s[result.ok]) * 1e3
        slower = 1 - np.arange(len(latency_ms)) / max(len(latency_ms), 1)
        style = styles[row.policy]
        axes.step(
            *(latency_ms, slower),
            where="post",
            color=style.colour,
            linestyle=style.dashes,
            linewidth=1.8,
            marker=style.symbol,
            markersize=6,
            markeredgecolor="white",
            markevery=_marked(len(latency_ms), place / len(report.rows)),
            label=_ranked(row),
        )
    axes.set(xscale="log", yscale="log", ylim=(_LOWEST_SHARE, 1), xlabel="latency x (ms, logarithmic)")
    axes.set_ylabel("share of requests slower than x")
    axes.set_title("Tail of latency: lower and further left is better", loc="left")
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g}%"))
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.axhline(0.01, color="0.5", linewidth=0.8)
    axes.annotate("1%: p99", (1, 0.01), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="0.35")
    legend = axes.legend(
        loc="lower left", title="rank of p99, and policy; of one rank, by name", alignment="left", framealpha=1
    )
    legend.get_frame().set_linewidth(0)


def _quantiles(axes: Axes, rows: Sequence[Row], styles: Mapping[str, Style]) -> None:
    for y, row in enumerate(rows):
        colour = styles[row.policy].colour
        low_s, high_s = row.p99_interval_s
        axes.plot([row.summary.p50_s * 1e3, row.summary.p99_s * 1e3], [y, y], color=colour, linewidth=1.5, zorder=1)
        axes.plot([low_s * 1e3, high_s * 1e3], [y, y], color=colour, linewidth=7, alpha=0.3, zorder=0)
        for field, _, marker, offset in _MARKERS:
            value_ms = getattr(row.summary, field) * 1e3
            axes.plot(value_ms, y, marker, color=colour, markersize=7, markeredgecolor="white", zorder=2)
            axes.annotate(
                milliseconds(value_ms / 1e3),
                (value_ms, y),
                (0, offset),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    for _, name, marker, _ in _MARKERS:
        axes.plot([], [], marker, color="0.3", label=name)
    axes.plot([], [], color="0.3", linewidth=7, alpha=0.3, label="95% interval of p99")
    axes.set_yticks(range(len(rows)), [_ranked(row) for row in rows])
    axes.set(xscale="log", xlabel="latency (ms, logarithmic)", ylim=(len(rows) - 0.4, -0.7))
    axes.margins(x=0.08)
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, axis="x", which="major", alpha=0.3)
    axes.set_title("Quantiles of latency, by rank of p99", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.19), ncols=2, frameon=False)


def _workers(axes: Axes, report: Report) -> None:
    names = report.workers
    colours = mpl.colormaps["cividis"](np.linspace(0.08, 0.95, max(len(names), 2)))
    for y, row in enumerate(report.rows):
        total = max(sum(row.summary.by_worker.values()), 1)
        left = 0.0
        for i, name in enumerate(names):
            count = row.summary.by_worker.get(name, 0)
            part = count / total
            axes.barh(y, part, left=left, height=0.72, color=colours[i], edgecolor="white")
            if part > 0.06:
                ink = "white" if colours[i][:3] @ (0.3, 0.6, 0.1) < 0.5 else "black"
                axes.annotate(f"{count:,}", (left + part / 2, y), ha="center", va="center", color=ink, fontsize=8)
            left += part
    for i, name in enumerate(names):
        axes.barh(0, 0, color=colours[i], label=f"{name} {report.devices.get(name, '')}".strip())
    axes.set_yticks(range(len(report.rows)), [_ranked(row) for row in report.rows])
    axes.set(xlim=(0, 1), ylim=(len(report.rows) - 0.4, -0.7), xlabel="share of requests; numbers are requests")
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_title("Which worker served", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.19), ncols=2, frameon=False)


def _ranked(row: Row) -> str:
    return f"{'-' if row.rank is None else row.rank}  {row.policy}"


def _marked(count: int, shift: float) -> list[int]:
    """Places of a curve's markers: a few a decade of its share, `shift` (0 to 1) further for each curve."""
    shares = 10.0 ** -np.arange(0.1 + shift / 2, -np.log10(_LOWEST_SHARE), 0.5)
    return [int(place) for place in np.unique(((1 - shares) * (count - 1)).astype(int))] if count else []


def _plain(value: float, _: object) -> str:
    return f"{value:g}"
