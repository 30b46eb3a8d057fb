"""The pictures: tails of latency, measured and predicted; every figure; and the last policy against the others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from dev.experiments.live.figures import IN_TIME, Requests
from dev.experiments.live.report import Report
from simulator.compare.statistics import Estimate

# Okabe and Ito's colours, told apart with any colour vision.
_COLOURS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9")
_MEASURED, _PREDICTED = "#000000", "#D55E00"
_MARKERS = {"p50": "o", "p95": "s", "p99": "D"}
_LOWEST_SHARE = 2e-3
_APART = 0.16
_STYLE: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}


def fidelity(report: Report, path: Path) -> None:
    policies, columns = list(report.whole.policies), 3
    lines = -(-(len(policies) + 1) // columns)
    with mpl.rc_context(_STYLE):
        canvas = Figure(figsize=(12, 3.6 * lines), layout="constrained", dpi=130)
        panels = canvas.subplots(lines, columns, squeeze=False).ravel()
        for i, policy in enumerate(policies):
            _tail(panels[i], [report.live], i, "live", color=_MEASURED, linewidth=1.8)
            _tail(panels[i], report.simulated, i, "simulated", color=_PREDICTED, linestyle="dashed", linewidth=1.8)
            _tail_axes(panels[i], policy)
        _scatter(panels[len(policies)], report)
        for panel in panels[len(policies) + 1 :]:
            panel.remove()
        _save(canvas, path)


def switchback(report: Report, path: Path) -> None:
    """Write it as PNG: all tails, and a panel of ratios for each of the other policies."""
    references = list(report.whole.ratios)
    with mpl.rc_context(_STYLE):
        canvas = Figure(figsize=(13, 5.2), layout="constrained", dpi=130)
        panels = canvas.subplots(1, 1 + len(references), width_ratios=[1.6, *[1] * len(references)])
        canvas.suptitle(
            f"{report.recording.session.rounds} blocks of alternating windows on real Tritons with emulated GPUs",
            fontweight="bold",
        )
        for i, policy in enumerate(report.live.policies):
            colour = _COLOURS[i % len(_COLOURS)]
            _tail(panels[0], [report.live], i, policy, color=colour, linewidth=1.6)
            predicted = f"{policy}, predicted"
            _tail(panels[0], report.simulated, i, predicted, color=colour, linestyle="dashed", linewidth=1.6)
        _tail_axes(panels[0], "Tails: lower and further left is better")
        for panel, reference in zip(panels[1:], references, strict=True):
            _ratios(panel, report, reference)
        _save(canvas, path)


def _save(canvas: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path)


def _tail(panel: Axes, runs: Sequence[Requests], policy: int, label: str, **style: Any) -> None:
    latency_s = np.concatenate([run.latency_s[run.policy == policy] for run in runs])
    latency_ms = np.sort(latency_s[~np.isnan(latency_s)]) * 1e3
    slower = 1 - np.arange(len(latency_ms)) / max(len(latency_ms), 1)
    panel.step(latency_ms, slower, where="post", label=label, **style)


def _tail_axes(panel: Axes, title: str) -> None:
    panel.set(xscale="log", yscale="log", ylim=(_LOWEST_SHARE, 1), xlabel="latency x (ms)")
    panel.set_ylabel("share slower than x")
    panel.set_title(title, loc="left", fontweight="bold")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g}%"))
    _plain_ticks(panel)
    panel.legend(loc="lower left", frameon=False, fontsize=8)


def _scatter(panel: Axes, report: Report) -> None:
    pairs = {
        policy: [pair for pair in found if pair.figure in _MARKERS] for policy, found in report.whole.policies.items()
    }
    ends_ms = np.array([5.0, 3e3 * max(pair.measured.high for found in pairs.values() for pair in found)])
    panel.fill_between(ends_ms, 0.8 * ends_ms, 1.2 * ends_ms, color="0.92", linewidth=0, label="within 20%")
    panel.fill_between(ends_ms, 0.9 * ends_ms, 1.1 * ends_ms, color="0.82", linewidth=0, label="within 10%")
    for (policy, found), colour in zip(pairs.items(), _COLOURS, strict=False):
        for pair in found:
            live, simulated_ms = pair.measured, pair.predicted.value * 1e3
            panel.plot([live.low * 1e3, live.high * 1e3], [simulated_ms] * 2, color=colour, linewidth=1)
            label = policy if pair.figure == "p50" else None
            style: dict[str, Any] = {"color": colour, "markeredgecolor": "white", "markersize": 8, "label": label}
            panel.plot(live.value * 1e3, simulated_ms, _MARKERS[pair.figure], **style)
    panel.set(xscale="log", yscale="log", xlim=ends_ms, ylim=ends_ms, xlabel="live (ms)", ylabel="simulated (ms)")
    panel.set_title("circle p50, square p95, diamond p99", loc="left")
    _plain_ticks(panel)
    panel.yaxis.set_major_formatter(panel.xaxis.get_major_formatter())
    panel.legend(loc="upper left", frameon=False, fontsize=8)


def _plain_ticks(panel: Axes) -> None:
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(visible=True, which="major", alpha=0.3)


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
