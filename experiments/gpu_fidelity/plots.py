"""Predicted over measured, a point for each setup and concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.gpu_fidelity.errors import Comparison
from experiments.gpu_fidelity.setups import METRICS

_COLOURS = ("#2a78b5", "#d9822b", "#9a9a9a", "#3a9c5f", "#8a5fb0", "#b5485d", "#7a6a4f", "#3aa5a5")
"""Of families, in the order of the table; again from the first where there are more."""
_MARKERS = {"TensorRT": "o", "PyTorch": "^", "TensorFlow": "s", "ONNX Runtime": "D", "TF-TRT": "x"}
_UNITS = {"throughput": "requests/s"}


def scatter(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write a picture with a panel for each metric, logarithmic; a band of 20% about the diagonal."""
    with mpl.rc_context({"svg.hashsalt": "fidelity", "font.size": 9}):
        figure = Figure(figsize=(14, 3.6), layout="constrained")
        for axes, (column, metric) in zip(figure.subplots(1, len(METRICS)), enumerate(METRICS), strict=True):
            _panel(axes, comparisons, column)
            axes.set_title(metric)
            axes.set_xlabel(f"measured, {_UNITS.get(metric, 'ms')}")
        figure.axes[0].set_ylabel("predicted")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=len(unique), frameon=False)
        # Without a date, so that the same numbers make the same file.
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, comparisons: Sequence[Comparison], column: int) -> None:
    families = list(dict.fromkeys(each.setup.family for each in comparisons))
    for each in comparisons:
        family, runtime = each.setup.family, each.setup.runtime
        axes.plot(
            each.measured[:, column],
            each.predicted[:, column],
            _MARKERS[runtime],
            color=_COLOURS[families.index(family) % len(_COLOURS)],
            markersize=3,
            alpha=0.6,
            linestyle="none",
            label=f"{family}, {runtime}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color="#555555", linewidth=0.8)
    axes.fill_between(ends, ends * 0.8, ends * 1.2, color="#555555", alpha=0.12, linewidth=0)
    axes.set_xlim(*ends)
