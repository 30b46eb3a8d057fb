"""Who is left out for failing at everything, by hand-made stories; time is an argument."""

import numpy as np
import pytest

from balancer.kernel.settings import Settings
from balancer.scheduler.events import WorkerAdded, WorkersAdded
from balancer.scheduler.outliers import Outliers
from balancer.scheduler.router import Router
from policies.base import Request
from policies.least_requests import LeastRequests

FLEET = ("a", "b", "c")


def left_out_after(outliers: Outliers, story: str, now_s: float = 0.0) -> frozenset[tuple[str, str]]:
    """Each letter is an answer of that worker, in capitals an error that its request may have caused; a space is a
    tick."""
    for each in story:
        if each == " ":
            outliers.tick(FLEET, now_s)
        else:
            outliers.count("m", each.lower(), each.islower())
    return outliers.tick(FLEET, now_s)


@pytest.mark.parametrize(
    ("story", "out"),
    [
        ("AAAAAbcbcb", "a"),
        ("A b A c A b A c A b", ""),  # as many, but the last answer came after the last error
        ("A b A c A b A c A b A", "a"),
        ("bcbcbcbcb AAAAA", ""),  # what others answered before says nothing
        ("AAAAAAAAAAAAAA", ""),  # nobody shows that it is not the requests
        ("AAAAaAAAbcbcbcb", ""),  # it answers some
        ("AAAA a AAAA bcbcbc", ""),
        ("ABCABCABC bcbcb ABCABC", ""),  # bad inputs wherever they go
        ("AAAAA bbbbbcccccBcccccc A", "a"),  # few of others' fail
        ("AAAAABBBBBccccc", "ab"),  # two of three
        ("AAAAABBBBB ccccc A B", "ab"),
        ("AAAAABBbBBccCcc", ""),
    ],
)
def test_who_fails_while_others_do_not_is_left_out(story: str, out: str) -> None:
    assert left_out_after(Outliers(), story) == {("m", worker) for worker in out}


def test_who_is_left_out_is_tried_again_ever_more_seldom_until_it_answers() -> None:
    outliers = Outliers()
    assert left_out_after(outliers, "AAAAAbcbcb", 0.0)
    assert left_out_after(outliers, "bcA", 4.9)  # sent before
    assert not left_out_after(outliers, "bc", 5.0)
    assert left_out_after(outliers, "bcA", 5.1)
    assert left_out_after(outliers, "bc", 15.0)
    assert not left_out_after(outliers, "bc", 15.2)
    assert not left_out_after(outliers, "a", 15.3)
    assert not left_out_after(outliers, "AAAA", 15.4)


def test_nothing_is_kept_of_workers_that_left_nor_of_models_at_which_nobody_fails() -> None:
    outliers = Outliers()
    left_out_after(outliers, "AAAAAbcbcb")
    assert not outliers.tick(("b", "c"), 0.1)
    for number in range(20_000):
        outliers.count(f"of a client {number}", "b", good=True)
    outliers.tick(FLEET, 0.2)
    assert not outliers._models
    assert not outliers._counted


@pytest.mark.parametrize("sequence", [False, True])
def test_nobody_left_out_gets_a_request_but_where_all_are(sequence: bool) -> None:
    router = Router(LeastRequests(), Settings(reports_required=False))
    router.observe(WorkersAdded(tuple(WorkerAdded(name) for name in FLEET)), 0.0)
    request = Request("m", key=7, sequence=True) if sequence else Request("m")
    before = {router.route(request, 0.0).worker for _ in range(9)}
    (failing,) = before if sequence else {"a"}
    router.leave_out(frozenset({("m", failing)}))
    if not sequence:
        assert failing in {router.route(Request("other"), 0.0).worker for _ in range(9)}
    after = {router.route(request, 0.0).worker for _ in range(9)}
    assert after == (before if sequence else {"b", "c"})
    router.leave_out(frozenset(("m", worker) for worker in FLEET))
    assert {router.route(request, 0.0).worker for _ in range(9)} <= set(FLEET)
    router.leave_out(frozenset())
    assert np.count_nonzero(router.fleet.servable("m", "")) == 3
