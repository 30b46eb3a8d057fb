"""The picture: tails of the time to first token, a panel a scenario; simulated ones dashed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from dev.experiments.served.record import Played
from policies.base import FloatArray

# Okabe and Ito's colours, told apart with any colour vision.
_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#000000", "#D55E00", "#CC79A7")


def draw(played: Sequence[Played], path: Path) -> None:
    canvas = Figure(figsize=(5.5 * len(played), 4.6), layout="constrained", dpi=130)
    for axes, each in zip(canvas.subplots(1, len(played), squeeze=False)[0], played, strict=True):
        for colour, (name, live) in zip(_COLOURS, each.live.items(), strict=False):
            _tail(axes, live.first_s, color=colour, linewidth=1.6, label=name)
            if name in each.simulated:
                _tail(axes, each.simulated[name][0].ravel(), color=colour, linewidth=1.2, linestyle="dashed")
        axes.set_title(each.scenario)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(2 / len(each.arrivals), 1)
        axes.set_xlabel("seconds to the first token")
        axes.set_ylabel("share of requests that take longer")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.spines[["top", "right"]].set_visible(False)
    canvas.axes[0].legend(frameon=False, fontsize=8, title="dashed: simulated", title_fontsize=8)
    canvas.savefig(path)


def _tail(axes: Axes, seconds: FloatArray, **style: Any) -> None:
    ordered = np.sort(seconds[~np.isnan(seconds)])
    axes.plot(ordered, 1 - np.arange(len(ordered)) / len(ordered), **style)
