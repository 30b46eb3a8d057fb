"""The table "When a part dies" of the page of that name, from the results of a soak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.soak.faults import FAULTS
from benchmarks.soak.report import UNEXPLAINED
from tools.pages import marks


def markdown(results: Mapping[str, Any]) -> str:
    """The table and what it was made of."""
    lines = [
        "| what happens | times | requests failed | longest request | noticed | well again |",
        "| --- | ---: | --- | ---: | --- | --- |",
    ]
    found = {row["kind"]: row for row in results["by_fault"]}
    for fault in FAULTS:
        if row := found.get(fault.name):
            cells = (
                *(fault.name, f"{row['times']:,}", _failed(row), _seconds(row["longest_s"])),
                _said(fault.noticed_by, row["noticed_s"], ": within "),
                _said(fault.remedy, row["recovered_s"], ": after "),
            )
            lines.append(f"| {' | '.join(cells)} |")
    total = sum(results["failures"].values())
    causes = ", ".join(f"{count:,} {cause}" for cause, count in results["failures"].items()) or "none"
    lines += [
        "",
        f"{results['requests']:,} requests over gRPC and REST in {results['took_s'] / 60:.0f} minutes "
        f"(seed {results['seed']}), {sum(results['faults'].values()):,} faults; {total:,} failed: {causes}. "
        "The worst of each kind, of those that no other fault overlapped; `make soak` makes it again.",
    ]
    return "\n".join(lines)


def put(results: Mapping[str, Any], page: Path) -> None:
    """Write the table between its marks; OperatorError where they are not there."""
    marks.put(markdown(results), page, "when a part dies")


def _failed(row: Mapping[str, Any]) -> str:
    if not row["failed"]:
        return "none"
    causes = ", ".join(f"{count:,} {cause}" for cause, count in row["causes"].items() if cause != UNEXPLAINED)
    unexplained = row["causes"].get(UNEXPLAINED, 0)
    return "; ".join(filter(None, [causes, f"{unexplained:,} {UNEXPLAINED}" if unexplained else ""]))


def _said(words: str, seconds: float | None, between: str) -> str:
    """Words, seconds, or both."""
    if seconds is None:
        return words
    return f"{words}{between}{_seconds(seconds)}" if words else f"{between.removeprefix(': ')}{_seconds(seconds)}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
