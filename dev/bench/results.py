"""What a part of the benchmark is given, and what it hands back: tables, aims beside their figures, all raw numbers."""

from __future__ import annotations

import csv
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from dev.stack import POLICY


@dataclass(frozen=True)
class Options:
    """How the benchmark is to run, as its command line says."""

    quick: bool = False
    """A third of the time and of the rounds."""
    out: Path = Path("out/bench")
    policy: str = POLICY
    """Of the parts that compare front ends."""
    rounds: int | None = None
    """Of the same parts; None: their own number."""

    def seconds(self, full_s: float) -> float:
        """How long to measure what takes `full_s` in a full run."""
        return full_s / 3 if self.quick else full_s

    def often(self, full: int) -> int:
        """How often to repeat what is repeated `full` times in a full run."""
        if self.rounds is not None:
            return self.rounds
        return max(2, full // 3) if self.quick else full


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
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def as_json(self) -> dict[str, Any]:
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
        table = RichTable(title=self.title, caption=self.note or None, title_justify="left", caption_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.columns), _line(["---", *["---:"] * (len(self.columns) - 1)])]
        lines += map(_line, self.rows)
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])


def keep(tables: Sequence[Table], folder: Path, facts: Mapping[str, Any]) -> None:
    """Each table as CSV in the folder; about.json says, by file, what it is of and what it was measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    about_path = folder / "about.json"
    about = json.loads(about_path.read_text()) if about_path.exists() else {}
    measured = {name: facts[name] for name in ("commit", "cores", "cpu", "envoy")}
    for table in tables:
        file = textwrap.shorten(re.sub(r"[^a-z0-9]+", " ", table.title.lower()), 48, placeholder="")
        file = file.replace(" ", "-") + ".csv"
        with (folder / file).open("w", encoding="utf-8", newline="") as opened:
            csv.writer(opened, lineterminator="\n").writerows([table.columns, *table.rows])
        about[file] = {"title": table.title, "note": table.note, **measured}
    about_path.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")


@dataclass
class Section:
    tables: list[Table]
    raw: dict[str, Any]
    aims: list[Aim] = field(default_factory=list)


def aims_table(aims: list[Aim]) -> Table:
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
