"""Many workers' answers as one, on plain data: mappings, lists, numbers and texts, as JSON has them.

Pure. Both protocols have the same names for the same things, so one rule serves both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MOST = 2**64 - 1
"""What Triton's counters can say."""
_NAMED_BY: Mapping[str, tuple[str, ...]] = {
    "batch_stats": ("batch_size",),
    "memory_usage": ("type", "id"),
}
"""Lists of a model's statistics, by what tells their entries apart."""
_SAME = frozenset({"name", "version", *(field for fields in _NAMED_BY.values() for field in fields)})
_LATEST = frozenset({"last_inference"})
# As Triton spells them, from the best. Whatever else there is counts as worse.
_STATES = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")

Plain = Any


def statistics(answers: Iterable[Mapping[str, Plain]]) -> dict[str, Plain]:
    """The sum over workers, by model and version; statistics of batches by their size."""
    models: dict[tuple[str, str], Plain] = {}
    for answer in answers:
        for model in answer.get("model_stats", ()):
            key = str(model.get("name", "")), str(model.get("version", ""))
            models[key] = _added(models[key], model) if key in models else model
    return {"model_stats": list(models.values())}


def _added(one: Plain, other: Plain, name: str = "") -> Plain:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {
            field: _added(one[field], other[field], field)
            if field in one and field in other
            else one.get(field, other.get(field))
            for field in {**one, **other}
        }
    if isinstance(one, list) and isinstance(other, list):
        return _added_lists(one, other, _NAMED_BY.get(name, ()))
    if name in _LATEST:
        return max(one, other)
    if name in _SAME or isinstance(one, bool) or not (isinstance(one, int) and isinstance(other, int)):
        return one
    return min(one + other, _MOST)


def _added_lists(one: Sequence[Plain], other: Sequence[Plain], named_by: tuple[str, ...]) -> list[Plain]:
    entries: dict[tuple[Plain, ...], Plain] = {}
    for entry in (*one, *other):
        key = tuple(entry.get(field, 0) for field in named_by)
        entries[key] = _added(entries[key], entry) if key in entries else entry
    return [entries[key] for key in sorted(entries, key=lambda key: tuple(map(_sortable, key)))]


def _sortable(value: Plain) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, str(value))


def index(answers: Iterable[Iterable[Mapping[str, Plain]]], *, ready: bool = False) -> list[Mapping[str, Plain]]:
    """The union of what workers list, each version in the worst state that it has on one of them.

    A model without a version was never loaded by that worker: it is listed where no worker has a version of it.
    `ready`: only what is ready everywhere.
    """
    entries: dict[tuple[str, str], Mapping[str, Plain]] = {}
    for answer in answers:
        for entry in answer:
            key = str(entry.get("name", "")), str(entry.get("version", ""))
            if key not in entries or _badness(entry) > _badness(entries[key]):
                entries[key] = entry
    loaded = {name for name, version in entries if version}
    return [
        entry
        for (name, version), entry in entries.items()
        if (version or name not in loaded) and (not ready or entry.get("state") == _STATES[0])
    ]


def _badness(entry: Mapping[str, Plain]) -> int:
    state = entry.get("state", "")
    return _STATES.index(state) if state in _STATES else len(_STATES)


def metadata(answers: Sequence[Mapping[str, Plain]]) -> Mapping[str, Plain]:
    """The first one's, with the versions that any worker has."""
    versions = {str(version) for answer in answers for version in answer.get("versions", ())}
    return {**answers[0], "versions": sorted(versions, key=lambda version: (len(version), version))}


def agree(answers: Sequence[Plain], but: frozenset[str] = frozenset()) -> bool:
    """Whether all say the same, but for fields that differ by right."""

    def compared(answer: Plain) -> Plain:
        return (
            {key: value for key, value in answer.items() if key not in but} if isinstance(answer, Mapping) else answer
        )

    return all(compared(answer) == compared(answers[0]) for answer in answers[1:])
