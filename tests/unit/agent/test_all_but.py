"""Whom an agent tells how much, by hand."""

from balancer import bounds
from balancer.reports.others import all_but


def test_each_is_told_the_sum_of_all_others() -> None:
    told = {"x": {"a": 1}, "y": {"a": 2, "b": 3}, "z": {}}
    assert dict(all_but("x", told) or ()) == {"a": 2, "b": 3}
    assert dict(all_but("z", told) or ()) == {"a": 3, "b": 3}
    # Also one whose stream begins only now.
    assert dict(all_but("new", told) or ()) == {"a": 3, "b": 3}


def test_who_is_alone_is_told_nothing() -> None:
    assert all_but("x", {"x": {"a": 1}}) is None
    assert all_but("x", {}) is None


def test_a_sum_without_one_of_the_others_is_none() -> None:
    told = {"x": None, "y": {"a": 2}, "z": {"a": 4}}
    assert all_but("y", told) is None
    assert dict(all_but("x", told) or ()) == {"a": 6}


def test_a_sum_of_too_many_models_is_none() -> None:
    half = bounds.MAX_MODELS_IN_FLIGHT // 2
    first, second = ({f"{name}{i}": 1 for i in range(half)} for name in "ab")
    assert len(all_but("x", {"y": first, "z": second}) or ()) == bounds.MAX_MODELS_IN_FLIGHT
    assert all_but("x", {"y": first, "z": {**second, "one more": 1}}) is None
