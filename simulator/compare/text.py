"""Numbers as tables and pages show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from simulator.scoreboard.statistics import Estimate

NONE = "-"


def table(title: str, columns: Sequence[str], caption: str = "", *, no_wrap: bool = False, **style: Any) -> Table:
    """For a terminal: texts in the first column, to the left, and numbers in the others; `no_wrap`: in none."""
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, **style)
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left", no_wrap=no_wrap or place == 0)
    return made


def milliseconds(seconds: float) -> str:
    """Three significant digits, thousands apart."""
    if not math.isfinite(seconds):
        return NONE
    value = seconds * 1e3
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def share(value: float) -> str:
    """Percent with one decimal."""
    return f"{value:.1%}" if math.isfinite(value) else NONE


def ratio(value: float) -> str:
    """Two decimals, and fewer where it is large."""
    if not math.isfinite(value):
        return NONE
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def interval(estimate: Estimate, form: str = "ratio") -> str:
    """`value (low to high)`; without the ends where they are unknown."""
    write = {"ratio": ratio, "ms": milliseconds}[form]
    if not math.isfinite(estimate.low):
        return write(estimate.value)
    return f"{write(estimate.value)} ({write(estimate.low)} to {write(estimate.high)})"
