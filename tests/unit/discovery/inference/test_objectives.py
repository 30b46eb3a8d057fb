"""Objectives over an API that does as the test says: which count, and what is left out."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_kubernetes_api import FakeApi
from support.inference import objective
from support.pods import Followed, until_stopped

from balancer.discovery.cluster.api import ApiError, ClusterAccess
from balancer.discovery.inference import objectives
from balancer.discovery.inference.objectives import OBJECTIVES, Objective, ObjectiveSource, Priorities, read_objective


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (objective("a", 5), Objective("a", 5)),
        (objective("a", -(2**63)), Objective("a", -(2**63))),
        (objective("a", None), Objective("a", 0)),
        (objective("a", 5, of="other"), Objective("a", None)),
        (objective("a", 5, group="inference.networking.k8s.io", kind="InferencePool"), Objective("a", 5)),
        (objective("a", 5, group="inference.networking.x-k8s.io"), Objective("a", None)),
        (objective("a", 5, kind="Service"), Objective("a", None)),
        (objective("a" * 257, 5), None),
        (objective("", 5), None),
        ({"metadata": {"name": "a"}, "spec": {"poolRef": [], "priority": 1}}, None),
        ({"metadata": {"name": "a"}, "spec": {"poolRef": {}}}, None),
        ({"metadata": {"name": 1}, "spec": {"poolRef": {"name": "triton"}}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_an_objective_is_the_pools_or_counts_for_nothing(found: Any, expected: Objective | None) -> None:
    assert read_objective(found, "triton") == expected


@pytest.mark.parametrize("priority", [True, 1.5, "1", 2**63, [1]])
def test_a_priority_that_is_no_number_is_complained_of(priority: Any) -> None:
    found = read_objective(objective("a", priority), "triton")
    assert found is not None
    assert found.priority is None
    assert "is not allowed: must be a whole number of 64 bits; the objective counts as none" in found.invalid


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["triton", "a", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["metadata", "name", "spec", "poolRef", "priority", "group"]), inner)
        ),
    )
)
def test_whatever_comes_is_an_objective_or_none(found: Any) -> None:
    kept = read_objective(found, "triton")
    assert kept is None or kept.priority is None or type(kept.priority) is int


class Following(Followed[Priorities]):
    """A source of objectives."""

    def __init__(self) -> None:
        self.api = FakeApi()
        access = ClusterAccess("app=a", "here")
        super().__init__(ObjectiveSource(access, "triton", self._connect), dict)  # type: ignore[arg-type]  # a fake API

    def _connect(self, access: ClusterAccess) -> FakeApi:
        assert access == ClusterAccess("", "here", resource=OBJECTIVES)
        return self.api


async def test_they_come_change_and_go() -> None:
    following = Following()
    api = following.api
    async with until_stopped(following.follow(), following.stop):
        api.list(objective("batch", -1), objective("others", 7, of="other"))
        await following.until({"batch": -1})
        api.tell_of("ADDED", objective("chat", 3))
        await following.until({"batch": -1, "chat": 3})
        api.tell_of("MODIFIED", objective("batch", -9))
        await following.until({"batch": -9, "chat": 3})
        api.tell_of("MODIFIED", objective("chat", "much"))  # type: ignore[arg-type]  # what is no number
        await following.until({"batch": -9})
        api.tell_of("DELETED", objective("batch", -9))
        await following.until({})
        assert following.source.counts.invalid_values == {"inference_objective": 1}


async def test_of_too_many_the_first_count(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(objectives, "MOST", 2)
    following = Following()
    api = following.api
    async with until_stopped(following.follow(), following.stop):
        api.list(objective("a", 1), objective("b", 2), objective("c", 3))
        await following.until({"a": 1, "b": 2})
        api.tell_of("ADDED", objective("d", 4))
        api.list(objective("b", 2), objective("c", 3), objective("d", 4))
        api.tell_of("DELETED", objective("a", 1))
        await following.until({"b": 2, "c": 3})
    warnings = [message for message in caplog.messages if "more than 2" in message]
    assert warnings == [
        "discovery.kubernetes: there are more than 2 InferenceObjectives, and the others are left out; delete some"
    ]


async def test_a_cluster_without_the_kind_is_no_reason_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    following = Following()
    async with until_stopped(following.follow(), following.stop):
        following.api.lists.put(ApiError("absent", "404: no such kind"))
        following.api.list(objective("a", 1))
        await following.until({"a": 1})
        assert following.source.counts.failures == {"absent": 1}
    (record,) = (record for record in caplog.records if "no such kind" in record.message)
    assert record.levelname == "INFO"
