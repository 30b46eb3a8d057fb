"""The page of all fields is what the schema says."""

import re
from pathlib import Path

from balancer.config.page import page

PAGE = Path(__file__).parents[3] / "docs" / "config.md"


def test_page_is_not_stale() -> None:
    assert PAGE.read_text() == page(), "run: make docs"


def test_every_field_is_explained() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if not re.search(r"\| [A-Z`].*\|$", row)] == []
