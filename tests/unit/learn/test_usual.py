"""When a fleet is another one than it was."""

import dataclasses
import math
from types import SimpleNamespace
from typing import cast

import pytest

from balancer.config.learning import Usual
from balancer.learn.usual import Look, Watched, look
from balancer.server.page.document import PageDocument


def test_of_a_page_that_shows_not_all_workers_only_those_that_it_calls_unwell_are_gone() -> None:
    watched, seen = (
        Watched(),
        Look(frozenset({"m"}), frozenset({"a", "b"}), frozenset(), 10.0, all_workers=True, all_models=True),
    )
    for _ in range(10):
        watched.take(seen, 1.0)
    usual = watched.usual
    some = dataclasses.replace(seen, workers=frozenset({"a"}), all_workers=False)
    for _ in range(5):
        watched.take(some, 1.0)
    assert watched.differs(some, usual) == ""
    assert watched.differs(dataclasses.replace(some, unwell=frozenset({"b"})), usual) == "a worker is gone: b"


def test_of_a_page_that_shows_not_all_models_none_is_new() -> None:
    watched, seen = Watched(), Look(frozenset({"m"}), frozenset({"a"}), frozenset(), 10.0, True, all_models=True)
    watched.take(seen, 1.0)
    other = dataclasses.replace(seen, models=frozenset({"n"}))
    assert watched.differs(dataclasses.replace(other, all_models=False), Usual(models=("m",), most_per_s=99.0)) == ""
    assert watched.differs(other, Usual(models=("m",), most_per_s=99.0)) == "there is a new model: n"


def test_a_worker_that_went_before_what_is_learned_is_no_part_of_it() -> None:
    watched, seen = Watched(), Look(frozenset({"m"}), frozenset({"a", "b"}), frozenset(), 10.0, True, all_models=True)
    watched.take(seen, 1.0)
    for _ in range(3):
        watched.take(dataclasses.replace(seen, workers=frozenset({"a", "c"})), 1.0)
    assert watched.usual.workers == ("a", "c")


@pytest.mark.parametrize("rate_per_s", [math.nan, math.inf, -1.0])
def test_a_page_that_tells_no_rate_hides_no_other(rate_per_s: float) -> None:
    def page(rate_per_s: float) -> PageDocument:
        recent = SimpleNamespace(rate_per_s=rate_per_s)
        shown = SimpleNamespace(workers=[], models=["m"], workers_left_out=0, models_left_out=0, recent=recent)
        return cast(PageDocument, shown)

    assert look([page(rate_per_s), page(7.0)]).rate_per_s == 7.0
