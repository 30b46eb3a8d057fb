"""The picture: live against simulated, each policy's tail, and every figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from experiments.live_fidelity.compare import LEVELS, Comparison
from tools.load.arrivals import FloatArray

# Okabe and Ito's colours, told apart with any colour vision.
_LIVE, _SIMULATED = "#000000", "#D55E00"
_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "D")
_LOWEST_SHARE = 2e-3


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write it as PNG: a panel for each policy, and one with all figures."""
    columns = 3
    lines = -(-(len(comparisons) + 1) // columns)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Canvas(figsize=(12, 3.6 * lines), layout="constrained", dpi=130)
        panels = canvas.subplots(lines, columns, squeeze=False).ravel()
        for panel, one in zip(panels, comparisons, strict=False):
            _tail(panel, one, max(each.figures["p99"].high_s for each in comparisons))
        _scatter(panels[len(comparisons)], comparisons)
        for panel in panels[len(comparisons) + 1 :]:
            panel.remove()
        canvas.savefig(path)


def _tail(panel: Axes, one: Comparison, high_s: float) -> None:
    for name, latency_s, colour, style in (
        ("live", one.live_s, _LIVE, "solid"),
        ("simulated", one.simulated_s, _SIMULATED, "dashed"),
    ):
        latency_ms, slower = _survival(latency_s)
        panel.step(latency_ms, slower, where="post", color=colour, linestyle=style, linewidth=1.8, label=name)
    for name, level in LEVELS.items():
        figure = one.figures[name]
        panel.plot([figure.low_s * 1e3, figure.high_s * 1e3], [1 - level] * 2, color=_LIVE, linewidth=6, alpha=0.25)
    panel.set(xscale="log", yscale="log", xlim=(4, 3e3 * high_s), ylim=(_LOWEST_SHARE, 1))
    panel.set_title(one.policy, loc="left", fontweight="bold")
    panel.set_xlabel("latency x (ms)")
    panel.set_ylabel("share slower than x")
    _plain_ticks(panel)
    panel.legend(loc="lower left", frameon=False)


def _survival(latency_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    latency_ms: FloatArray = np.sort(latency_s) * 1e3
    return latency_ms, 1 - np.arange(len(latency_ms)) / len(latency_ms)


def _scatter(panel: Axes, comparisons: Sequence[Comparison]) -> None:
    ends_ms = np.array([5.0, 3e3 * max(one.figures["p99"].high_s for one in comparisons)])
    panel.fill_between(ends_ms, 0.8 * ends_ms, 1.2 * ends_ms, color="0.92", linewidth=0, label="within 20%")
    panel.fill_between(ends_ms, 0.9 * ends_ms, 1.1 * ends_ms, color="0.82", linewidth=0, label="within 10%")
    for one, colour in zip(comparisons, _COLOURS, strict=False):
        for (name, figure), marker in zip(one.figures.items(), _MARKERS, strict=True):
            live_ms, simulated_ms = figure.live_s * 1e3, figure.simulated_s * 1e3
            panel.plot([figure.low_s * 1e3, figure.high_s * 1e3], [simulated_ms] * 2, color=colour, linewidth=1)
            label = one.policy if name == "p50" else None
            panel.plot(live_ms, simulated_ms, marker, color=colour, markeredgecolor="white", markersize=8, label=label)
    panel.set(xscale="log", yscale="log", xlim=ends_ms, ylim=ends_ms, xlabel="live (ms)", ylabel="simulated (ms)")
    panel.set_title("circle p50, square p95, diamond p99", loc="left")
    _plain_ticks(panel)
    panel.yaxis.set_major_formatter(panel.xaxis.get_major_formatter())
    panel.legend(loc="upper left", frameon=False, fontsize=8)


def _plain_ticks(panel: Axes) -> None:
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(visible=True, which="major", alpha=0.3)
