"""What one config changes of another, in words."""

from typing import Any

import pytest

from balancer.config.changes import MOST_SHOWN, changes, words_of
from balancer.config.config import Config, from_mapping
from balancer.config.watch import ConfigState


def listed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What one file changes of another."""
    before, after = from_mapping(old), from_mapping(new)
    set_fields = after.model_dump(mode="json", exclude_defaults=True)
    return words_of(changes(before.model_dump(mode="json"), after.model_dump(mode="json"), set_fields))


@pytest.mark.parametrize(
    ("data", "words", "back"),
    [
        ({}, [], []),
        ({"seed": 7}, ["seed: 0 becomes 7, at once"], ["seed: 7 becomes 0, at once"]),
        (
            {"processes": 2},
            ["processes: 1 becomes 2, by a restart"],
            ["processes: 2 becomes 1, by a restart"],
        ),
        (
            {"listen": {"admin": "127.0.0.1:9999"}},
            ['listen.admin: "127.0.0.1:8090" becomes "127.0.0.1:9999", by a restart'],
            ['listen.admin: "127.0.0.1:9999" becomes "127.0.0.1:8090", by a restart'],
        ),
        (
            {"requests": {"objectives": {"batch": 200}}},
            ["requests.objectives.batch: 200 is added, at once"],
            ["requests.objectives.batch: 200 is removed, at once"],
        ),
    ],
)
def test_fields_are_shown_with_both_values_and_when(data: dict[str, Any], words: list[str], back: list[str]) -> None:
    assert listed({}, data) == words
    assert listed(data, {}) == back


@pytest.mark.parametrize(
    ("data", "section", "words"),
    [
        ({"models": {"m": {"versions": ["3"]}}}, "models.m", ['models.m.versions: ["3"] is added, at once']),
        (
            {"models": {"m": {"split": {"old": 1, "new": 2}}}},
            "models.m",
            ['models.m.split.old: "1" is added, at once', 'models.m.split.new: "2" is added, at once'],
        ),
        ({"models": {"m": {}}}, "models.m", ["models.m: {} is added, at once"]),
        ({"models": {"m": {"memory_bytes": 0}}}, "models.m", ["models.m: {} is added, at once"]),
        (
            {"shadow": {"name": "round_robin", "share": 0.5}},
            "shadow",
            ['shadow.name: "round_robin" is added, at once', "shadow.share: 0.5 is added, at once"],
        ),
    ],
)
def test_of_a_section_that_comes_what_differs_from_defaults_is_shown(
    data: dict[str, Any], section: str, words: list[str]
) -> None:
    assert listed({}, data) == words
    assert listed(data, {}) == [f"{section}: the section is removed, at once"]


def test_what_a_section_that_stays_has_is_shown_by_its_fields() -> None:
    split = {"split": {"old": 1, "new": 2}}
    assert listed({"models": {"m": {}}}, {"models": {"m": {**split, "versions": [1, 2]}}}) == [
        'models.m.split.old: "1" is added, at once',
        'models.m.split.new: "2" is added, at once',
        'models.m.versions: [] becomes ["1", "2"], at once',
    ]
    assert listed({"models": {"m": split}}, {"models": {"m": {}}}) == [
        "models.m.split: the section is removed, at once"
    ]


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
