"""The fleet as a picture: what lies at each worker, what the balancer believes of it, where the last request went."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from policies.base import BoolArray, FloatArray
from simulator.engine import layout as at
from simulator.scenario import Scenario
from simulator.spec import SimulatedWorker

if TYPE_CHECKING:
    from simulator.envs.episodes import Episodes

RENDER_MODES = ("rgb_array",)
Frame = npt.NDArray[np.uint8]

WIDTH, HEIGHT = 960, 540
_DPI = 100
_INK, _SOFT, _LINE, _BAND = "#1c1f23", "#6e757e", "#e2e4e6", "#eef0f2"
# Okabe and Ito's colours, readable for the colour-blind.
_MODELS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LIGHT = 0.45
_STATES = {
    **dict.fromkeys(("down", "stalled", "errors"), "#c42b2b"),
    **dict.fromkeys(("slow", "draining"), "#be6e00"),
    "loading": "#0072b2",
    "absent": "#969ca3",
    "stale": "#805ab4",
}
_MOST_UPRIGHT, _MOST_NAMED = 16, 52
"""Workers up to whose number names are written upright, and written at all."""
_MARK = "\u25cf"
"""Beneath a worker that something is the matter with, where there is no room for words."""


def render(episodes: Episodes, e: int) -> Frame:
    """Draw environment `e`; `(HEIGHT, WIDTH, 3)`.

    Raises:
        ValueError: it has not been reset yet.
    """
    scenario, batch = episodes.scenarios[e], episodes.batch
    if scenario is None:
        raise ValueError("there is nothing to draw yet: call reset() before render()")
    state, view, fleet = batch.sim.state, batch.view(), scenario.fleet
    rows = slice(e * episodes.workers, e * episodes.workers + len(fleet.workers))
    believed = view.pending[e, : len(fleet.workers)]
    stale = view.report_age_s[e, : len(fleet.workers)] > fleet.settings.stale_after_s
    figure = Figure((WIDTH / _DPI, HEIGHT / _DPI), _DPI, facecolor="#fbfbfa", layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor="none")
    heading = f"{batch.now_s[e]:.2f} s   {state.counts[e, at.IN_SYSTEM]} in the system   {_demand(scenario)}"
    axes.set_title(f"{scenario.name}\n{heading}", loc="left", color=_INK)
    axes.set_title(_request(episodes, scenario, e), loc="right", color=_INK)
    _draw_bars(axes, state.executing[rows], state.queued[rows], believed, int(episodes.last_pick[e]))
    _name_workers(axes, fleet.workers, _states(state.whole[rows], state.real[rows], stale))
    models = [Patch(color=_colour(m), label=model.name) for m, model in enumerate(fleet.models)]
    shades = Patch(color="none", label="(dark: executes, light: queued)")
    marks = [*models, shades, *axes.get_legend_handles_labels()[0]]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize="small")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), np.uint8)[..., :3].copy()


def _demand(scenario: Scenario) -> str:
    workload = scenario.workload
    if workload.clients:
        return f"{workload.clients} clients"
    return f"{workload.rate_per_s:,.0f} requests/s, load {workload.rate_per_s / scenario.capacity_per_s:.2f}"


def _request(episodes: Episodes, scenario: Scenario, e: int) -> str:
    """What waits for a decision, in words; empty: nothing."""
    if not episodes.batch.waiting[e]:
        return ""
    k, demand, fleet = episodes.batch.deciding[e], episodes.batch.sim.demand, scenario.fleet
    rows, deadline_s = demand.rows[e, k], demand.deadline_s[e, k]
    words = f"{fleet.models[demand.model[e, k]].name}, {rows} row{'s' if rows > 1 else ''}"
    words += f", within {1000 * deadline_s:.0f} ms" if math.isfinite(deadline_s) else ""
    return words + (f", at balancer {demand.balancer[e, k]}" if fleet.balancers > 1 else "")


def _states(whole: npt.NDArray[Any], real: FloatArray, stale: BoolArray) -> list[str]:
    """What is the matter with each worker: the first that holds; empty: nothing."""
    held = {
        "absent": whole[:, at.JOINED] == 0,
        "loading": whole[:, at.READY] == 0,
        "down": whole[:, at.UP] == 0,
        "stalled": whole[:, at.STALLED] == 1,
        "errors": real[:, at.ERROR_SHARE] > 0,
        "draining": whole[:, at.DRAINING] == 1,
        "slow": real[:, at.SLOWNESS] > 1,
        "stale": stale,
    }
    return np.select(list(held.values()), list(held), default="").tolist()


def _draw_bars(
    axes: Axes, executing: npt.NDArray[Any], queued: npt.NDArray[Any], believed: FloatArray, picked: int
) -> None:
    """A bar for each worker of what executes and, on it, what is queued, by model `(n, m)`; and what is believed."""
    workers, top = np.arange(len(believed)), np.zeros(len(believed))
    for counts, opacity in ((executing, 1.0), (queued, _LIGHT)):
        for m in range(counts.shape[1]):
            axes.bar(workers, counts[:, m], 0.62, top, color=_colour(m), alpha=opacity, zorder=2)
            top += counts[:, m]
    axes.hlines(believed, workers - 0.38, workers + 0.38, _INK, zorder=3, label="as the balancer believes")
    highest = max(float(top.max()), float(believed.max()), 8.0)
    if picked >= 0:
        axes.axvspan(picked - 0.5, picked + 0.5, color=_BAND, zorder=0)
        over = max(top[picked], believed[picked]) + 0.03 * highest
        axes.plot(picked, over, "v", color=_INK, zorder=3, label="last pick")
    axes.set(xlim=(-0.5, len(believed) - 0.5), ylim=(0, 1.08 * highest))
    axes.grid(axis="y", color=_LINE, zorder=1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=_SOFT)


def _name_workers(axes: Axes, workers: tuple[SimulatedWorker, ...], states: list[str]) -> None:
    """Name, device, speed and state beneath each bar, as far as there is room; the state as the colour, too."""
    upright, named = len(workers) <= _MOST_UPRIGHT, len(workers) <= _MOST_NAMED
    names = []
    for worker, state in zip(workers, states, strict=True):
        speed = "" if worker.speed == 1 else f"speed {worker.speed:.3g}"
        kind = f"{worker.device.replace('*', '')} {speed}".strip()
        beside = ", ".join(filter(None, (worker.name, state))) if named else _MARK * bool(state)
        names.append("\n".join((worker.name, kind, state)) if upright else beside)
    axes.set_xticks(range(len(workers)), names, fontsize="small", rotation=0 if upright or not named else 90)
    for label, state in zip(axes.get_xticklabels(), states, strict=True):
        label.set_color(_STATES.get(state, _INK))


def _colour(model: int) -> str:
    return _MODELS[model % len(_MODELS)]
