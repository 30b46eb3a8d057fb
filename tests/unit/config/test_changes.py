"""What one config changes of another, in words."""

from __future__ import annotations

from typing import Any

import pytest

from balancer.config.changes import MOST_SHOWN, changes, words_of
from balancer.config.config import Config, from_mapping
from balancer.config.watch import ConfigState


def dumped(data: dict[str, Any]) -> dict[str, Any]:
    return from_mapping(data).model_dump(mode="json")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, []),
        ({"seed": 7}, ["seed: 0 becomes 7, at once"]),
        ({"processes": 2}, ["processes: 1 becomes 2, by a restart"]),
        ({"models": {"m": {"versions": ["3"]}}}, ['models.m.versions: ["3"] is added, at once']),
        ({"shadow": {"name": "random", "share": 0.5}}, ["shadow.share: 0.5 is added, at once"]),
        (
            {"listen": {"admin": "127.0.0.1:9999"}},
            ['listen.admin: "127.0.0.1:8090" becomes "127.0.0.1:9999", by a restart'],
        ),
    ],
)
def test_fields_are_told_with_both_values_and_when(data: dict[str, Any], words: list[str]) -> None:
    found = words_of(changes(dumped({}), dumped(data)))
    assert set(words) <= set(found)
    assert bool(words) == bool(found)
    back = words_of(changes(dumped(data), dumped({})))
    assert len(back) == len(found)


def test_a_section_that_comes_is_told_by_its_fields_alone() -> None:
    found = changes(dumped({}), dumped({"shadow": {"name": "random"}, "models": {"m": {}}}))
    assert all(change.field.startswith(("shadow.", "models.m.")) for change in found)


def test_long_values_and_many_fields_are_cut_and_control_characters_are_escaped() -> None:
    names = {"a\x1b[31mb": "x" * 1000} | {f"n{number}": 1 for number in range(2 * MOST_SHOWN)}
    words = words_of(changes({"models": {}}, {"models": names}))
    assert len(words) == MOST_SHOWN + 1
    assert words[-1] == f"and {MOST_SHOWN + 1} more"
    assert max(map(len, words)) < 200
    assert all(word.isprintable() for word in words)


def test_the_state_keeps_what_came_into_force_and_what_waits() -> None:
    state = ConfigState(Config(), "balancer.yaml", 1.0)
    for seed in range(1, 31):
        assert state.accept(from_mapping({"seed": seed, "processes": 2}), 1.0 + seed)
    assert len(state.history) == 20
    assert state.history[-1].changes == ("seed: 29 becomes 30, at once",)
    assert state.hash == state.history[-1].hash == state.config.hash
    assert state.waiting_changes == ["processes: 1 becomes 2, by a restart"]
    assert not state.accept(state.config, 99.0)
    assert state.history[-1].at_s == 31.0
