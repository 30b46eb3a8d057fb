"""The fleet as a picture: what lies at each worker, what the balancer believes of it, where the last request went."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from policies.base import BoolArray, FloatArray
from simulator.engine import layout as at
from simulator.scenario import Scenario

if TYPE_CHECKING:
    from simulator.envs.episodes import Episodes

RENDER_MODES = ("rgb_array",)
Frame = npt.NDArray[np.uint8]
Rgb = tuple[int, int, int]

WIDTH, HEIGHT = 960, 540
_SCALE = 2
"""Drawn so many times larger and reduced, for smooth edges."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 936, 104, 428
_PAPER, _INK, _SOFT, _LINE, _BAND = (251, 251, 250), (28, 31, 35), (110, 117, 126), (226, 228, 230), (238, 240, 242)
# Okabe and Ito's colours, readable for the colour-blind.
_MODELS: tuple[Rgb, ...] = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233))
_STATES: dict[str, Rgb] = {
    "down": (196, 43, 43),
    "stalled": (196, 43, 43),
    "errors": (196, 43, 43),
    "slow": (190, 110, 0),
    "draining": (190, 110, 0),
    "loading": (0, 114, 178),
    "absent": (150, 156, 163),
    "stale": (128, 90, 180),
}
_NAMED_PX, _TURNED_PX = 54, 17
"""Widths of a worker's column from which its name is written, or written upwards."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Picture:
    """What is drawn of one environment; arrays by worker."""

    scenario: Scenario
    heading: str
    request: str
    request_model: int
    queued: FloatArray
    """By model, `(n, m)`."""
    executing: FloatArray
    believed: FloatArray
    states: list[str]
    """Empty: as it should be."""
    picked: int


def render(episodes: Episodes, e: int) -> Frame:
    """Draw environment `e`; `(HEIGHT, WIDTH, 3)`.

    Raises:
        ValueError: it has not been reset yet.
    """
    picture = _look(episodes, e)
    image = Image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), _PAPER)
    pen = _Pen(image)
    pen.text(_LEFT, 34, picture.scenario.name, 22)
    pen.text(_LEFT, 64, picture.heading, 14, _SOFT)
    if picture.request:
        pen.text(_RIGHT, 34, picture.request, 14, anchor="rm")
        left = _RIGHT - pen.width(picture.request, 14) - 20
        pen.box(left, 28, left + 12, 40, _colour(picture.request_model), radius=3)
    _draw_workers(pen, picture)
    _draw_legend(pen, picture)
    return np.asarray(image.reduce(_SCALE), np.uint8)


def _look(episodes: Episodes, e: int) -> _Picture:
    scenario, batch = episodes.scenarios[e], episodes.batch
    if scenario is None:
        raise ValueError("there is nothing to draw yet: call reset() before render()")
    state, view = batch.sim.state, batch.view()
    count, models = len(scenario.fleet.workers), len(scenario.fleet.models)
    workers = slice(e * episodes.workers, e * episodes.workers + count)
    heading = f"{batch.now_s[e]:.2f} s   {state.counts[e, at.IN_SYSTEM]} in the system   {_demand(scenario)}"
    request, model = "", int(batch.model()[e])
    if batch.waiting[e]:
        k, demand = batch.deciding[e], batch.sim.demand
        rows, deadline_s = demand.rows[e, k], demand.deadline_s[e, k]
        request = f"{scenario.fleet.models[model].name}, {rows} row{'s' if rows > 1 else ''}"
        request += f", within {1000 * deadline_s:.0f} ms" if math.isfinite(deadline_s) else ""
        request += f", at balancer {demand.balancer[e, k]}" if scenario.fleet.balancers > 1 else ""
    stale = view.report_age_s[e, :count] > scenario.fleet.settings.stale_after_s
    return _Picture(
        scenario=scenario,
        heading=heading,
        request=request,
        request_model=model,
        queued=state.queued[workers, :models].astype(np.float64),
        executing=state.executing[workers, :models].astype(np.float64),
        believed=view.pending[e, :count],
        states=_states(state.whole[workers], state.real[workers], stale),
        picked=int(episodes.last_pick[e]),
    )


def _demand(scenario: Scenario) -> str:
    workload = scenario.workload
    if workload.clients:
        return f"{workload.clients} clients"
    return f"{workload.rate_per_s:,.0f} requests/s, load {workload.rate_per_s / scenario.capacity_per_s:.2f}"


def _states(whole: npt.NDArray[Any], real: FloatArray, stale: BoolArray) -> list[str]:
    """What is the matter with each worker; the first that holds."""
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
    names = np.array([*held, ""])
    first = np.argmax(np.stack([*held.values(), np.ones(len(whole), np.bool_)]), axis=0)
    return [str(name) for name in names[first]]


def _draw_workers(pen: _Pen, picture: _Picture) -> None:
    pending = picture.queued.sum(axis=1) + picture.executing.sum(axis=1)
    highest = max(float(pending.max()), float(picture.believed.max()), 8.0) * 1.05
    step = _round_number(highest / 4)
    lines = math.ceil(highest / step)
    per_request = (_BOTTOM - _TOP) / (lines * step)
    for value in np.arange(lines + 1) * step:
        y = _BOTTOM - value * per_request
        pen.line(_LEFT, y, _RIGHT, y, _LINE)
        pen.text(_LEFT - 8, y, f"{value:g}", 12, _SOFT, anchor="rm")
    each = (_RIGHT - _LEFT) / len(pending)
    bar = min(each * 0.62, 44.0) if each >= _TURNED_PX else each * 0.85
    overhang, thickness = (3.0, 1.5) if each >= _TURNED_PX else (0.0, 1.0)
    for w in range(len(pending)):
        middle = _LEFT + (w + 0.5) * each
        left, right = middle - bar / 2, middle + bar / 2
        if w == picture.picked:
            pen.box(middle - each / 2, _TOP, middle + each / 2, _BOTTOM, _BAND)
        y = _BOTTOM
        for counts, tint in ((picture.executing[w], 0.0), (picture.queued[w], 0.55)):
            for model in np.flatnonzero(counts):
                top = y - counts[model] * per_request
                pen.box(left, top, right, y, _mixed(_colour(int(model)), _PAPER, tint))
                y = top
        if w == picture.picked:
            wide = max(6.0, min(bar / 2, 9.0))
            pen.triangle(middle, min(y, _BOTTOM - picture.believed[w] * per_request) - 7, wide)
        believed_y = _BOTTOM - picture.believed[w] * per_request
        pen.line(left - overhang, believed_y, right + overhang, believed_y, _INK, thickness)
        _write_worker(pen, picture, w, middle, each)
    pen.line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, _SOFT)


def _write_worker(pen: _Pen, picture: _Picture, w: int, middle: float, each: float) -> None:
    """Name, device, speed and state beneath a bar, as far as there is room."""
    worker, state = picture.scenario.fleet.workers[w], picture.states[w]
    colour = _STATES.get(state, _INK)
    if state:
        pen.box(middle - each * 0.31, _BOTTOM + 2, middle + each * 0.31, _BOTTOM + 6, colour)
    if each >= _NAMED_PX:
        speed = f"speed {worker.speed:g}" if worker.speed != 1 else ""
        kind = " ".join(part for part in (worker.device.replace("*", ""), speed) if part)
        for i, line in enumerate((worker.name, kind)):
            pen.text(
                middle, _BOTTOM + 18 + 16 * i, pen.fitting(line, 12, each - 4), 12, (colour, _SOFT)[i], anchor="mm"
            )
        pen.text(middle, _BOTTOM + 50, state, 12, colour, anchor="mm")
    elif each >= _TURNED_PX:
        also = f", {state}" if state else ""
        name = pen.fitting(worker.name, 11, 64 - pen.width(also, 11))
        pen.upwards(middle, _BOTTOM + 9, name + also, 11, colour)


def _draw_legend(pen: _Pen, picture: _Picture) -> None:
    x, y = float(_LEFT), HEIGHT - 26
    for i, model in enumerate(picture.scenario.fleet.models):
        pen.box(x, y - 6, x + 12, y + 6, _colour(i), radius=3)
        pen.text(x + 18, y, model.name, 13)
        x += 18 + pen.width(model.name, 13) + 18
    entries = ("dark: executes, light: queued", "as the balancer believes", "last pick")
    x = _RIGHT - sum(pen.width(entry, 13) + 20 for entry in entries) - 24
    pen.text(x, y, entries[0], 13, _SOFT)
    x += pen.width(entries[0], 13) + 18
    pen.line(x, y, x + 16, y, _INK, 1.5)
    pen.text(x + 22, y, entries[1], 13, _SOFT)
    x += pen.width(entries[1], 13) + 44
    pen.triangle(x, y + 5, 6)
    pen.text(x + 12, y, entries[2], 13, _SOFT)


class _Pen:
    """Draws in points of the final picture, from the upper left."""

    def __init__(self, image: Image.Image) -> None:
        self._image, self._draw = image, ImageDraw.Draw(image)

    def text(self, x: float, y: float, text: str, size: int, colour: Rgb = _INK, anchor: str = "lm") -> None:
        self._draw.text((x * _SCALE, y * _SCALE), text, fill=colour, font=_font(size), anchor=anchor)

    def upwards(self, x: float, y: float, text: str, size: int, colour: Rgb) -> None:
        """Text turned by a quarter, its end at the top."""
        mask = Image.new("L", (math.ceil(self.width(text, size) * _SCALE), 2 * size * _SCALE))
        ImageDraw.Draw(mask).text((0, size * _SCALE), text, fill=255, font=_font(size), anchor="lm")
        turned = mask.rotate(90, expand=True)
        self._image.paste(colour, (round((x - size) * _SCALE), round(y * _SCALE)), turned)

    def fitting(self, text: str, size: int, width: float) -> str:
        """The text, cut where it is too wide."""
        while len(text) > 3 and self.width(text, size) > width:
            text = text.removesuffix("..")[:-1] + ".."
        return text

    def width(self, text: str, size: int) -> float:
        return float(_font(size).getlength(text)) / _SCALE

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: Rgb, width: float = 1.0) -> None:
        ends = (x0 * _SCALE, y0 * _SCALE, x1 * _SCALE, y1 * _SCALE)
        self._draw.line(ends, fill=colour, width=round(width * _SCALE))

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: Rgb, radius: float = 0.0) -> None:
        corners = (x0 * _SCALE, y0 * _SCALE, max(x1 * _SCALE - 1, x0 * _SCALE), max(y1 * _SCALE - 1, y0 * _SCALE))
        self._draw.rounded_rectangle(corners, radius * _SCALE, fill=colour)

    def triangle(self, x: float, y: float, width: float) -> None:
        """One that points down to (x, y)."""
        points = ((x, y), (x - width / 2, y - width), (x + width / 2, y - width))
        self._draw.polygon([(px * _SCALE, py * _SCALE) for px, py in points], fill=_INK)


@functools.cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size * _SCALE)


def _colour(model: int) -> Rgb:
    return _MODELS[model % len(_MODELS)]


def _mixed(colour: Rgb, other: Rgb, share: float) -> Rgb:
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(colour, other, strict=True))
    return red, green, blue


def _round_number(least: float) -> float:
    """1, 2, 5 or 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if least <= power * factor)
