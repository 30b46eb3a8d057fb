"""What one config changes of another, field by field, in words that the page and `balancer check --against` share."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

RESTART_FIELDS = (
    *("discovery.kubernetes", "discovery.dns", "discovery.file", "listen", "admin"),
    *("tls", "processes", "first_process", "envoy"),
)
"""Fields and sections that a running balancer does not take over; all others are swapped while requests flow."""

MOST_SHOWN = 50
"""Changes that people are shown of one file."""
_MOST_CHARACTERS = 120
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs."""

    field: str
    """Dotted."""
    words: str
    """The field, what it is, and what it becomes."""
    restart: bool
    """Whether only a restart takes it over."""


def leaves(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a config as JSON by dotted field; an empty section is a value."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def waits_for_restart(field: str) -> bool:
    """Whether a running balancer does not take the dotted field over."""
    return any(f"{field}.".startswith(f"{section}.") for section in RESTART_FIELDS)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What `new` changes of `old`, both as `Config.model_dump(mode="json")`, by field."""
    before, after = leaves(old), leaves(new)
    return [_change(field, was, becomes) for field, was, becomes in _differing(before, after)]


def words_of(found: list[Change]) -> list[str]:
    """Their words, as many as people are shown."""
    more = len(found) - MOST_SHOWN
    return [change.words for change in found[:MOST_SHOWN]] + ([f"and {more} more"] if more > 0 else [])


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    sections_before, sections_after = _sections(before), _sections(after)
    for field in sorted(before.keys() | after.keys()):
        was, becomes = before.get(field, _ABSENT), after.get(field, _ABSENT)
        if was == becomes or _gives_way(field, was, sections_after) or _gives_way(field, becomes, sections_before):
            continue
        yield field, was, becomes


def _sections(fields: Iterable[str]) -> set[str]:
    """What dotted fields are in: once for all, as models may be many."""
    return {field[: dot.start()] for field in fields for dot in re.finditer(r"\.", field)}


def _gives_way(field: str, value: Any, sections: Collection[str]) -> bool:
    """Whether it is but an empty section, where the other config has fields of that section: these are told."""
    return not (value or value is _ABSENT) and field in sections


def _change(field: str, was: Any, becomes: Any) -> Change:
    restart = waits_for_restart(field)
    if was is _ABSENT:
        what = f"{_shown(becomes)} is added"
    elif becomes is _ABSENT:
        what = f"{_shown(was)} is removed"
    else:
        what = f"{_shown(was)} becomes {_shown(becomes)}"
    # Names of models are the file's: no control character of theirs may reach a terminal.
    name = field if field.isprintable() else json.dumps(field)
    return Change(field, f"{name}: {what}, {'by a restart' if restart else 'at once'}", restart)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}... ({len(text)} characters)"
