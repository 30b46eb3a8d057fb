"""Priorities of the cluster as this project numbers them, beside those of the config."""

import pytest
from support.fleets import make_router

from balancer.bounds import MAX_PRIORITY
from balancer.config.config import Config, from_mapping
from balancer.extproc.kserve import NO_OBJECTIVE
from balancer.extproc.picker import Picker
from balancer.server.workers.source import ClusterObjectives, numbered


@pytest.mark.parametrize(
    ("priorities", "sheddable", "expected"),
    [
        ({}, 3, {}),
        # Nothing is above the requests without an objective, which keep their place.
        ({"a": 0}, 0, {NO_OBJECTIVE: 0, "a": 0}),
        ({"a": 0, "b": -1, "c": -7}, 0, {NO_OBJECTIVE: 0, "a": 0, "b": 2, "c": 3}),
        ({"a": 0, "b": -1, "c": -7}, 100, {NO_OBJECTIVE: 0, "a": 0, "b": 100, "c": 101}),
        ({"a": 10, "b": 3, "c": -1}, 0, {NO_OBJECTIVE: 3, "a": 1, "b": 2, "c": 4}),
        ({"a": 10, "b": 3, "c": -1}, 100, {NO_OBJECTIVE: 3, "a": 1, "b": 2, "c": 100}),
        # None that is not negative is sheddable, though there are more ranks than numbers before those that are.
        ({"a": 10, "b": 3, "c": -1}, 2, {NO_OBJECTIVE: 1, "a": 1, "b": 1, "c": 2}),
        ({"a": 10, "c": -1}, 1, {NO_OBJECTIVE: 0, "a": 0, "c": 1}),
        ({"a": -1, "b": -(2**63)}, MAX_PRIORITY, {NO_OBJECTIVE: 0, "a": MAX_PRIORITY, "b": MAX_PRIORITY}),
    ],
)
def test_ranks_become_numbers(priorities: dict[str, int], sheddable: int, expected: dict[str, int]) -> None:
    assert numbered(priorities, sheddable) == expected


def test_the_config_goes_before_the_cluster_and_may_change() -> None:
    def config(sheddable: int, **objectives: int) -> Config:
        return from_mapping({"limits": {"sheddable_priority": sheddable}, "requests": {"objectives": objectives}})

    picker = Picker(make_router(1), lambda: 0.0)
    objectives = ClusterObjectives(config(100, batch=7), picker)
    assert picker.objectives == {"batch": 7}
    objectives.take({"batch": -1, "other": -2})
    assert picker.objectives == {NO_OBJECTIVE: 0, "batch": 7, "other": 101}
    objectives.configure(config(50))
    assert picker.objectives == {NO_OBJECTIVE: 0, "batch": 50, "other": 51}
