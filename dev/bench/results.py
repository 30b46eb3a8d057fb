"""What a part of the benchmark hands back: tables to read, aims held against their figures, and every raw number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.table import Table as RichTable


@dataclass(frozen=True)
class Aim:
    """A figure beside what it should be."""

    name: str
    value: float
    unit: str
    limit: float
    at_least: bool = False
    """Whether the figure should be that large; else that small."""

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def as_json(self) -> dict[str, Any]:
        """For the file of results."""
        sign = ">=" if self.at_least else "<="
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "aim": f"{sign} {self.limit}",
            "met": self.met,
        }


@dataclass
class Table:
    """Rows of texts and numbers; the first column is text."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""

    def rich(self) -> RichTable:
        """For the terminal."""
        table = RichTable(title=self.title, caption=self.note or None, title_justify="left", caption_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a file."""
        lines = [f"**{self.title}**", "", _line(self.columns), _line(["---", *["---:"] * (len(self.columns) - 1)])]
        lines += map(_line, self.rows)
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


@dataclass
class Section:
    """What one part found."""

    tables: list[Table]
    raw: dict[str, Any]
    aims: list[Aim] = field(default_factory=list)


def aims_table(aims: list[Aim]) -> Table:
    """All aims in one table."""
    rows = [
        [
            aim.name,
            f"{aim.value:,.3g} {aim.unit}" if aim.value < 100 else f"{aim.value:,.0f} {aim.unit}",
            f"{'≥' if aim.at_least else '≤'} {aim.limit:,g} {aim.unit}",
            "met" if aim.met else "not met",
        ]
        for aim in aims
    ]
    return Table("Aims", ["figure", "measured", "aim", ""], rows)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
