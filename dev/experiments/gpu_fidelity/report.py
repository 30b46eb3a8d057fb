"""How far predictions are from measurements: tables for people, CSV for programs, and a picture."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dev.experiments.gpu_fidelity.predict import CHOSEN_ON, predict
from dev.experiments.gpu_fidelity.setups import METRICS, Setup
from policies.base import FloatArray
from simulator.compare import text

UNPREDICTABLE = "ConvNets"
"""Its offline table has only a sum, most of which is a single client's transfer over HTTP; see docs/fidelity/gpu.md."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A setup; arrays of shape `(concurrencies, metrics)`, in the order and units of `METRICS`."""

    setup: Setup
    measured: FloatArray
    predicted: FloatArray

    @property
    def errors(self) -> FloatArray:
        """Predicted over measured, minus 1; NaN where nothing was measured."""
        relative: FloatArray = self.predicted / self.measured - 1
        return relative


def compare(setup: Setup, every: int = 1) -> Comparison:
    rows = setup.observed[::every]
    predicted = predict(setup, tuple(row.concurrency for row in rows))
    return Comparison(setup, np.array([row.values for row in rows]), predicted)


def summary(comparisons: Iterable[Comparison]) -> tuple[FloatArray, FloatArray]:
    """Median and 90th percentile of the absolute relative error, `(metrics,)` each, over all rows."""
    absolute = np.abs(np.concatenate([each.errors for each in comparisons]))
    return np.nanmedian(absolute, axis=0), np.nanpercentile(absolute, 90, axis=0)


def groups(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    predictable = [each for each in comparisons if each.setup.family != UNPREDICTABLE]
    found = {
        "all setups": list(comparisons),
        f"all but {UNPREDICTABLE}": predictable,
        "constants chosen on: V100, A30": [each for each in predictable if each.setup.table.device in CHOSEN_ON],
        "constants not chosen on: A100, T4": [each for each in predictable if each.setup.table.device not in CHOSEN_ON],
    }
    for family in dict.fromkeys(each.setup.family for each in comparisons):
        for runtime in dict.fromkeys(each.setup.runtime for each in comparisons if each.setup.family == family):
            chosen = [each for each in comparisons if (each.setup.family, each.setup.runtime) == (family, runtime)]
            found[f"{family}, {runtime}"] = chosen
    return {heading: part for heading, part in found.items() if part}


def markdown(comparisons: Sequence[Comparison]) -> str:
    summed = [
        [heading, *(f"{middle:.0%} / {most:.0%}" for middle, most in zip(*summary(part), strict=True))]
        for heading, part in groups(comparisons).items()
    ]
    by_setup = [[each.setup.name, *map(_cell, each.errors.T)] for each in comparisons]
    first = text.markdown(["absolute error: median / 90th percentile", *METRICS], summed)
    return f"{first}\n\n{text.markdown(['median: absolute (signed)', *METRICS], by_setup)}\n"


def _cell(errors: FloatArray) -> str:
    known = errors[~np.isnan(errors)]
    return f"{np.median(np.abs(known)):.0%} ({np.median(known):+.0%})" if len(known) else text.NONE


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """A line for each group and each setup: median and 90th percentile of the absolute error, and the signed median."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["of", *(f"{metric}_{what}" for metric in METRICS for what in ("median", "p90", "signed"))])
    for name, part in [*groups(comparisons).items(), *((each.setup.name, [each]) for each in comparisons)]:
        signed = np.nanmedian(np.concatenate([each.errors for each in part]), axis=0)
        values = zip(*summary(part), signed, strict=True)
        writer.writerow([name, *(f"{value:.3f}" for three in values for value in three)])
    return written.getvalue()


_COLOURS = ("#2a78b5", "#d9822b", "#9a9a9a", "#3a9c5f", "#8a5fb0", "#b5485d", "#7a6a4f", "#3aa5a5")
"""Of families, in the order of the table; again from the first where there are more."""
_MARKERS = {"TensorRT": "o", "PyTorch": "^", "TensorFlow": "s", "ONNX Runtime": "D", "TF-TRT": "x"}
_UNITS = {"throughput": "requests/s"}


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write a picture with a panel for each metric, logarithmic; a band of 20% about the diagonal."""
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(14, 3.6), layout="constrained")
        for axes, (column, metric) in zip(figure.subplots(1, len(METRICS)), enumerate(METRICS), strict=True):
            _panel(axes, comparisons, column)
            axes.set_title(metric)
            axes.set_xlabel(f"measured, {_UNITS.get(metric, 'ms')}")
        figure.axes[0].set_ylabel("predicted")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=len(unique), frameon=False)
        figure.savefig(path, dpi=130)


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
