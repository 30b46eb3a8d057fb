"""The picture: tails of latency, and the last policy against the others; measured and predicted."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from experiments.live_switchback.figures import IN_TIME, Requests
from experiments.live_switchback.report import Report
from simulator.scoreboard.statistics import Estimate
from tools.load.arrivals import FloatArray

# Okabe and Ito's colours, told apart with any colour vision.
_COLOURS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9")
_MEASURED, _PREDICTED = "#000000", "#E69F00"
_LOWEST_SHARE = 2e-3
_APART = 0.16


def draw(report: Report, path: Path) -> None:
    """Write it as PNG."""
    references = list(report.whole.ratios)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Canvas(figsize=(13, 5.2), layout="constrained", dpi=130)
        panels = canvas.subplots(1, 1 + len(references), width_ratios=[1.6, *[1] * len(references)])
        canvas.suptitle(
            f"{report.recording.session.rounds} blocks of alternating windows on real Tritons with emulated GPUs",
            fontweight="bold",
        )
        _tails(panels[0], report)
        for panel, reference in zip(panels[1:], references, strict=True):
            _ratios(panel, report, reference)
        canvas.savefig(path)


def _tails(panel: Axes, report: Report) -> None:
    for i, policy in enumerate(report.live.policies):
        colour = _COLOURS[i % len(_COLOURS)]
        drawn = (([report.live], policy, "solid"), (report.simulated, f"{policy}, predicted", "dashed"))
        for runs, label, style in drawn:
            latency_ms, slower = _survival(np.concatenate([_latency_s(run, i) for run in runs]))
            panel.step(latency_ms, slower, where="post", color=colour, linestyle=style, linewidth=1.6, label=label)
    panel.set(xscale="log", yscale="log", ylim=(_LOWEST_SHARE, 1), xlabel="latency x (ms)")
    panel.set_ylabel("share slower than x")
    panel.set_title("Tails: lower and further left is better", loc="left")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g}%"))
    panel.grid(visible=True, which="major", alpha=0.3)
    panel.legend(loc="lower left", frameon=False, fontsize=8)


def _latency_s(requests: Requests, policy: int) -> FloatArray:
    answered_s: FloatArray = requests.latency_s[(requests.policy == policy) & ~np.isnan(requests.latency_s)]
    return answered_s


def _survival(latency_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    latency_ms: FloatArray = np.sort(latency_s) * 1e3
    return latency_ms, 1 - np.arange(len(latency_ms)) / max(len(latency_ms), 1)


def _ratios(panel: Axes, report: Report, reference: str) -> None:
    pairs = [pair for pair in report.whole.ratios[reference] if pair.figure != IN_TIME]
    for y, pair in enumerate(pairs):
        _bar(panel, y - _APART, pair.measured, _MEASURED, "o", "measured, 95% interval" if not y else "")
        _bar(panel, y + _APART, pair.predicted, _PREDICTED, "D", "predicted, 90% of seeds" if not y else "")
    panel.axvline(1, color="0.5", linewidth=0.8)
    panel.set_yticks(range(len(pairs)), [pair.figure for pair in pairs])
    panel.set_ylim(len(pairs) - 0.4, -0.6)
    panel.set_xlabel("ratio of latencies: left of 1 is better")
    panel.set_title(f"{report.subject} / {reference}", loc="left")
    panel.grid(visible=True, axis="x", alpha=0.3)
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False, fontsize=8)


def _bar(panel: Axes, y: float, of: Estimate, colour: str, marker: str, label: str) -> None:
    panel.plot([of.low, of.high], [y, y], color=colour, linewidth=2)
    panel.plot(of.value, y, marker, color=colour, markeredgecolor="white", markersize=8, label=label or None)
