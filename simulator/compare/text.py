"""Numbers and tables as terminals and pages show them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from balancer.errors import OperatorError
from balancer.load.result import milliseconds, share
from simulator.compare.statistics import Estimate

__all__ = ["NONE", "interval", "markdown", "milliseconds", "plain", "put_between_marks", "ratio", "share", "table"]
NONE = "-"


def table(title: str, columns: Sequence[str], caption: str = "", *, no_wrap: bool = False, **style: Any) -> Table:
    """For a terminal: texts in the first column, to the left, and numbers in the others; `no_wrap`: in none."""
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, **style)
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left", no_wrap=no_wrap or place == 0)
    return made


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first columns, so many, are words."""
    rows = [head, [*["---"] * words, *["---:"] * (len(head) - words)], *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


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


def plain(content: Any, digits: int = 17) -> Any:
    """As JSON takes it: records as objects, tuples and arrays as lists, floats of so many digits, None for NaN and the
    infinite."""
    if is_dataclass(content):
        content = {field.name: getattr(content, field.name) for field in fields(content)}
    if isinstance(content, np.ndarray | np.generic):
        content = content.tolist()
    if isinstance(content, Mapping):
        return {name: plain(value, digits) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value, digits) for value in content]
    if isinstance(content, float):
        return float(f"{content:.{digits}g}") if math.isfinite(content) else None
    return content


def put_between_marks(text: str, page: Path, name: str) -> None:
    """Write it between the page's `<!-- NAME -->` and `<!-- /NAME -->`; OperatorError where they are not there."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise OperatorError(f"{page}: no {begin} ... {end} to put the table between; add the two marks")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
