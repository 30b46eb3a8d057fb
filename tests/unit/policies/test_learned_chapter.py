"""The chapter's tables are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies import learned
from policies.learned.features import FEATURES, SCHEMA, TERMS, Feature

CHAPTER = (Path(learned.__file__).parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("one", [*FEATURES, *TERMS], ids=lambda one: one.name)
def test_every_input_is_documented_as_it_is(one: Feature) -> None:
    assert f"| `{one.name}` | {one.of} | {one.unit} | {one.most:,.0f} |" in CHAPTER


def test_no_input_is_documented_that_is_not_there() -> None:
    rows = [line for line in CHAPTER.splitlines() if line.startswith("| `") and line.count("|") == 6]
    assert len(rows) == len(FEATURES) + len(TERMS)


def test_the_schema_is_named() -> None:
    assert SCHEMA in CHAPTER
