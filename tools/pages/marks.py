"""What a command finds, between two marks of a page that is written by hand."""

from __future__ import annotations

from pathlib import Path

from balancer.errors import OperatorError


def put(text: str, page: Path, name: str) -> None:
    """Write it between the page's `<!-- NAME -->` and `<!-- /NAME -->`; OperatorError where they are not there."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise OperatorError(f"{page}: no {begin} ... {end} to put the table between; add the two marks")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
