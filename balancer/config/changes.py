"""What one config changes of another, field by field, in words that the page and `balancer check --against` share."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

RESTART_FIELDS = (
    *("discovery.kubernetes", "discovery.dns", "discovery.ray", "discovery.file", "listen", "admin"),
    *("tls", "processes", "first_process", "peers", "envoy", "state_file"),
)
"""Fields and sections that a running balancer does not take over; all others are swapped while requests flow."""

MOST_SHOWN = 50
"""Changes that people are shown of one file."""
_MOST_CHARACTERS = 120
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    field: str
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


def changes(
    old: Mapping[str, Any], new: Mapping[str, Any], set_fields: Mapping[str, Any] | None = None
) -> list[ConfigChange]:
    """What `new` changes of `old`, both as `Config.model_dump(mode="json")`, by field.

    Args:
        old: The config before.
        new: The config after.
        set_fields: `new` without what stands at its default (`exclude_defaults=True`): so much is shown of a section
            that comes; None: all.
    """
    return [_change(*differing) for differing in _differing(old, new, new if set_fields is None else set_fields, "")]


def words_of(found: list[ConfigChange]) -> list[str]:
    more = len(found) - MOST_SHOWN
    return [change.words for change in found[:MOST_SHOWN]] + ([f"and {more} more"] if more > 0 else [])


def _differing(
    old: Mapping[str, Any], new: Mapping[str, Any], set_fields: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted(old.keys() | new.keys()):
        field, was, becomes = f"{prefix}{name}", old.get(name, _ABSENT), new.get(name, _ABSENT)
        shown = set_fields.get(name, becomes)
        if isinstance(was, Mapping) and isinstance(becomes, Mapping):
            yield from _differing(was, becomes, shown, f"{field}.")
        elif isinstance(becomes, Mapping):
            # An empty value gives way to the section, of which the fields are told.
            if was and was is not _ABSENT:
                yield field, was, _ABSENT
            for each, value in (leaves(shown, f"{field}.") or {field: shown}).items():
                yield each, _ABSENT, value
        elif isinstance(was, Mapping):
            yield field, was, becomes or _ABSENT
        elif was != becomes:
            yield field, was, becomes


def _change(field: str, was: Any, becomes: Any) -> ConfigChange:
    restart = waits_for_restart(field)
    if was is _ABSENT:
        what = f"{_shown(becomes)} is added"
    elif becomes is _ABSENT:
        what = f"{'the section' if isinstance(was, Mapping) else _shown(was)} is removed"
    else:
        what = f"{_shown(was)} becomes {_shown(becomes)}"
    # Names of models are the file's: no control character of theirs may reach a terminal.
    name = field if field.isprintable() else json.dumps(field)
    return ConfigChange(field, f"{name}: {what}, {'by a restart' if restart else 'at once'}", restart)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}... ({len(text)} characters)"
