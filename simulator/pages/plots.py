"""Plots of a scoreboard as SVG for a page: text stays text, ink takes the page's colour, nothing is loaded."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from scipy.optimize import isotonic_regression

from policies.base import FloatArray
from simulator.compare import statistics, summary, text
from simulator.compare.compare import Board
from simulator.compare.metrics import TAIL_SHARES
from simulator.compare.summary import FIGURES, NAMES, Aggregate
from simulator.pages.html import LineStyles, line_styles

_INK = "#1c1f23"
"""Becomes `currentColor`, so that it is light on a dark page."""
# Okabe and Ito's colours without the yellow, which white swallows, then three of like lightness; black is the ink.
_COLOURS = (
    "#D55E00", "#0080C4", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", _INK, "#8A63D2", "#A3662C"
)  # fmt: skip
_DASHES = ("solid", (0, (5, 1.5)), (0, (5, 1.5, 1.2, 1.5)), (0, (1.2, 1.2)))
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "balancer",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}
_styled = mpl.rc_context(_SETTINGS)
_LABEL_GAP = 0.062
_FEW = 4
"""Policies up to which bands of uncertainty do not hide each other."""
_REFERENCE_MARKS = {"pooled": "1", "exact queues": "|", "clairvoyant": "d", "social": "s"}


def styles(policies: Sequence[str]) -> LineStyles:
    return line_styles(policies, _COLOURS, _DASHES)


@_styled
def tails(board: Board, style: LineStyles) -> str:
    """Latency that each share of the requests exceeds: the distribution with its tail stretched."""
    figure, axes = _figure(9.5, 4.6)
    shown = board.requests * TAIL_SHARES > 5
    ends: dict[str, float] = {}
    lines = dict(board.policies)
    if "clairvoyant" in board.references:
        lines["clairvoyant"] = board.references["clairvoyant"]
    for name, metrics in lines.items():
        colour, dashes = style.get(name, (_INK, _DASHES[3]))
        tail_ms = metrics.tail_s[:, shown] * 1e3
        width = 1.9 if name in style else 1.0
        axes.plot(TAIL_SHARES[shown], tail_ms.mean(axis=0), color=colour, linestyle=dashes, linewidth=width)
        ends[name] = float(tail_ms[:, -1].mean())
        if len(board.policies) <= _FEW and name in style:
            low, high = statistics.interval(tail_ms.T)
            axes.fill_between(TAIL_SHARES[shown], low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set(xscale="log", yscale="log", xlim=(1.0, TAIL_SHARES[shown][-1]))
    ticks = [share for share in (0.5, 0.1, 0.05, 0.01, 0.001) if share >= TAIL_SHARES[shown][-1] * 0.999]
    axes.set_xticks([1.0, *ticks], ["all", *(f"{share:.3g}%\np{100 - share:.4g}" for share in np.array(ticks) * 100)])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="share of requests that take longer (logarithmic)", ylabel="latency (ms, logarithmic)")
    _plain_log(axes.yaxis)
    _end_labels(axes, ends, style)
    return _svg(figure, f"tails-{board.scenario.name}")


@_styled
def sweep(board: Board, style: LineStyles) -> str:
    """p99 over load, with intervals."""
    figure, axes = _figure(9.5, 4.6)
    ends = {}
    for policy, found in board.sweep.items():
        colour, dashes = style[policy]
        p99s_ms = np.array([summary.by_seed(metrics, "p99_s") for metrics in found.values()]) * 1e3
        loads = list(found)
        axes.plot(loads, p99s_ms.mean(axis=1), color=colour, linestyle=dashes, linewidth=1.9)
        axes.plot(loads, p99s_ms.mean(axis=1), "o", color=colour, markersize=4, clip_on=False)
        axes.fill_between(loads, *statistics.interval(p99s_ms), color=colour, alpha=0.12, linewidth=0)
        ends[policy] = float(p99s_ms[-1].mean())
    axes.set(yscale="log", xlabel="load (share of the fleet's capacity)", ylabel="p99 of latency (ms, logarithmic)")
    axes.set_xlim(right=max(loads))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _plain_log(axes.yaxis)
    _end_labels(axes, ends, style)
    return _svg(figure, f"sweep-{board.scenario.name}")


@_styled
def ladder(board: Board, style: LineStyles) -> str:
    """Each policy beside what is possible: mean and p99."""
    policies = summary.ranked(board)
    figure = Figure(figsize=(9.5, 1.9 + 0.34 * len(policies)), layout="constrained")
    both: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(both, FIGURES, strict=True):
        for y, policy in enumerate(policies):
            _rung(axes, y, board, policy, name, style[policy][0])
        for reference, values in summary.references(board, policies[0], name).items():
            if reference in _REFERENCE_MARKS:
                _reference(axes, reference, float(np.mean(values)) * 1e3)
        axes.set(xscale="log", xlabel=f"{NAMES[name]} of latency (ms, logarithmic)", ylim=(len(policies) - 0.4, -0.6))
        _plain_log(axes.xaxis)
        axes.grid(visible=True, axis="x", alpha=0.25, color=_INK)
    both[0].set_yticks(range(len(policies)), policies)
    grey: dict[str, Any] = {"color": "0.55", "linestyle": "none"}
    both[0].plot([], [], "o", label="policy, with 95% interval", **grey)
    both[0].plot([], [], "o", fillstyle="none", label="the same, every queue known without delay", **grey)
    figure.legend(loc="outside lower center", ncols=2)
    return _svg(figure, f"ladder-{board.scenario.name}")


@_styled
def timeline(board: Board) -> str:
    """Queues of each worker through the largest burst of one seed: the best policy, one between, and the worst."""
    order = summary.ranked(board, "p99_s")
    shown = list(
        dict.fromkeys(order[i] for i in np.linspace(0, len(order) - 1, min(3, len(order))).round().astype(int))
    )
    workers = board.scenario.fleet.workers
    height = min(0.28 * len(workers), 2.2) + 0.35
    figure = Figure(figsize=(9.5, 1.6 + height * len(shown)), layout="constrained")
    parts: Sequence[Axes] = figure.subplots(len(shown) + 1, 1, sharex=True, height_ratios=[1.0, *[height] * len(shown)])
    first = board.timelines[shown[0]]
    parts[0].fill_between(first.time_s, _smooth(first.arrivals_per_s), color="#8C8C8C", alpha=0.7, linewidth=0)
    parts[0].set(ylabel="requests/s", ylim=(0, None))
    most = max(float(np.quantile(board.timelines[policy].pending, 0.995)) for policy in shown)
    image = None
    for axes, policy in zip(parts[1:], shown, strict=True):
        found = board.timelines[policy]
        image = axes.imshow(
            found.pending.T,
            aspect="auto",
            interpolation="nearest",
            extent=(found.time_s[0], found.time_s[-1], len(workers) - 0.5, -0.5),
            cmap="viridis",
            norm=PowerNorm(0.5, 0.0, max(most, 1.0)),  # a queue of few is seen beside one of hundreds
        )
        axes.set_title(policy, loc="left", fontsize=10)
        if len(workers) <= 16:
            names = [f"{w.name} {w.device if w.device != '*' else ''}".strip() for w in workers]
            axes.set_yticks(range(len(workers)), names, fontsize=8)
        else:
            axes.set_ylabel("worker")
    parts[-1].set_xlabel("time from the start of the run (s)")
    assert image is not None
    figure.colorbar(image, ax=parts[1:], label="requests at the worker", aspect=40, pad=0.01, extend="max")
    return _svg(figure, f"timeline-{board.scenario.name}")


@_styled
def profiles(aggregates: Mapping[str, Aggregate], style: LineStyles, reference: str) -> str:
    """Performance profiles: the share of runs within each multiple of the reference."""
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    both: Sequence[Axes] = figure.subplots(1, 2, sharey=True)
    order = sorted(aggregates, key=lambda policy: -float(aggregates[policy].profile["mean_s"][0].sum()))
    for axes, name in zip(both, FIGURES, strict=True):
        for policy in order:
            colour, dashes = style[policy]
            share, low, high = aggregates[policy].profile[name]
            axes.plot(summary.LEVELS, share, color=colour, linestyle=dashes, linewidth=1.9, label=policy)
            if len(order) <= _FEW:
                axes.fill_between(summary.LEVELS, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set(xscale="log", xlabel=f"{NAMES[name]} over {reference} (logarithmic)", ylim=(0, 1.02))
        axes.set_xlim(summary.LEVELS[0], summary.LEVELS[-1])
        axes.set_xticks([1, 1.5, 2, 3, 5, 10, 30], ["1", "1.5", "2", "3", "5", "10", "30"])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, alpha=0.25, color=_INK)
    both[0].set_ylabel("share of runs at or below")
    both[0].yaxis.set_major_formatter(PercentFormatter(1))
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", title="policy, best first", alignment="left")
    return _svg(figure, "profiles")


def _rung(axes: Axes, y: int, board: Board, policy: str, name: summary.Figure, colour: str) -> None:
    ours = statistics.mean(summary.by_seed(board.policies[policy], name) * 1e3)
    known_ms = float(np.mean(summary.by_seed(board.exact[policy], name))) * 1e3
    axes.plot([known_ms, ours.value], [y, y], color=colour, linewidth=1.2, alpha=0.8)
    axes.plot([ours.low, ours.high], [y, y], color=colour, linewidth=6, alpha=0.35, solid_capstyle="butt")
    axes.plot(known_ms, y, "o", color=colour, fillstyle="none", markersize=6)
    axes.plot(ours.value, y, "o", color=colour, markersize=6)


def _reference(axes: Axes, name: str, value_ms: float) -> None:
    axes.axvline(value_ms, color=_INK, linewidth=1, linestyle=_DASHES[3], alpha=0.8)
    place = {"pooled": 1.02, "social": 1.08, "clairvoyant": 1.14, "exact queues": 1.2}[name]
    axes.annotate(
        f"{name} {text.milliseconds(value_ms / 1e3)}",
        (value_ms, place),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="bottom",
        fontsize=8,
    )


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(visible=True, alpha=0.25, color=_INK)
    return figure, axes


def _end_labels(axes: Axes, ends: Mapping[str, float], style: LineStyles) -> None:
    """Name each line at its right end, names pushed apart where ends are close."""
    known = {name: value for name, value in ends.items() if np.isfinite(value)}
    places = axes.transAxes.inverted().transform(axes.transData.transform([(1.0, y) for y in known.values()]))[:, 1]
    for name, place, label in zip(known, places, spread(places, _LABEL_GAP), strict=True):
        colour = style.get(name, (_INK, ""))[0]
        axes.annotate(
            f"{name} {known[name]:,.3g}" if known[name] < 100 else f"{name} {known[name]:,.0f}",
            (1.0, place),
            (1.05, label),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 1.5,
                "shrinkA": 2,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def spread(places: FloatArray, gap: float) -> FloatArray:
    """The places, moved as little (in squares) as makes neighbours `gap` apart within 0 to 1; order is kept."""
    order = np.argsort(places, kind="stable")
    offsets = gap * np.arange(len(places))
    result = np.empty(len(places))
    free = isotonic_regression(places[order] - offsets).x
    result[order] = np.clip(free, 0.0, max(1.0 - offsets[-1], 0.0)) + offsets
    return result


def _smooth(values: FloatArray) -> FloatArray:
    return np.convolve(values, np.ones(5) / 5, mode="same")


def _plain_log(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(LogLocator(subs=(2, 5)))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _svg(figure: Figure, name: str) -> str:
    """The figure's SVG element, its identifiers made unique by `name`."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = file.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    drawn = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{re.sub(r'[^A-Za-z0-9]', '-', name)}-", drawn)
    return drawn.replace(_INK, "currentColor").replace("<svg ", '<svg role="img" ', 1)
