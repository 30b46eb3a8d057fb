"""How a benchmark is to run, and the tables that its parts hand back."""

import csv
import json
import re
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable


@dataclass(frozen=True)
class Options:
    quick: bool = False
    """A third of the time and of the rounds."""
    rounds: int | None = None
    """Of what is measured in rounds; None: each part's own number."""

    def seconds(self, full_s: float) -> float:
        """How long to measure what takes `full_s` in a full run."""
        return full_s / 3 if self.quick else full_s

    def often(self, full: int) -> int:
        """How often to repeat what is repeated `full` times in a full run."""
        if self.rounds is not None:
            return self.rounds
        return max(2, full // 3) if self.quick else full


def best_us(work: Callable[[], object], repeats: int) -> float:
    """Microseconds of CPU that the work takes, at best."""
    spent_s = []
    for _ in range(repeats):
        before_s = time.process_time()
        work()
        spent_s.append(time.process_time() - before_s)
    return min(spent_s) * 1e6


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


def keep(tables: Sequence[Table], folder: Path, facts: Mapping[str, Any]) -> None:
    """Each table as CSV in the folder; about.json says, by file, what it is of and what it was measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    about_path = folder / "about.json"
    about = json.loads(about_path.read_text()) if about_path.exists() else {}
    for table in tables:
        file = textwrap.shorten(re.sub(r"[^a-z0-9]+", " ", table.title.lower()), 48, placeholder="")
        file = file.replace(" ", "-") + ".csv"
        with (folder / file).open("w", encoding="utf-8", newline="") as opened:
            csv.writer(opened, lineterminator="\n").writerows([table.columns, *table.rows])
        about[file] = {"title": table.title, "note": table.note, **facts}
    about_path.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
