"""Words of a person in a page that is made by a command: between two marks, and kept when the page is made anew."""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- written by hand: begin -->", "<!-- written by hand: end -->"
NOTHING_YET = "*What to make of it is still to be written, by hand, here.*"


def words_of(page: Path) -> str:
    """What stands between the marks of a page that was there before; empty where nothing does."""
    _, begin, rest = (page.read_text(encoding="utf-8") if page.exists() else "").partition(BEGIN)
    words, end, _ = rest.partition(END)
    return words.strip() if begin and end else ""


def marked(words: str) -> str:
    """The words, or a hint that there are none yet, between the marks."""
    return f"{BEGIN}\n{words or NOTHING_YET}\n{END}"
