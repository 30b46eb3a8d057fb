"""The table of the page; the words around it are written by hand, and stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.autoscaling.figures import Figures
from tools.pages import marks

_HEAD = (
    "| load | target of the wait | too few | too many | replicas, mean (enough) | most | changes | p99 | late |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|\n"
)


def table(found: Mapping[tuple[str, str], Figures]) -> str:
    """By load and variant."""
    return _HEAD + "".join(_line(load, variant, each) for (load, variant), each in found.items())


def _line(load: str, variant: str, of: Figures) -> str:
    cells = (
        load,
        variant,
        f"{of.too_few:.1%}",
        f"{of.too_many:.1%}",
        f"{of.mean_replicas:.1f} ({of.mean_needed:.1f})",
        str(of.largest),
        str(of.changes),
        f"{of.p99_s:.2f} s" if of.p99_s < 10 else f"{of.p99_s:.0f} s",
        f"{of.late:.1%}",
    )
    return f"| {' | '.join(cells)} |\n"


def renew(page: Path, found: Mapping[tuple[str, str], Figures]) -> None:
    """Put the table into the page, between its marks; OperatorError where there are none."""
    # A blank line on either side, as Markdown wants around a table.
    marks.put(f"\n{table(found)}", page, "results")
