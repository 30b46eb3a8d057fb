"""Policies of third parties become programs, or stay NumPy for a reason in words."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.example_plugin.example_policy import FreshestReport
from support.moody_plugin.moody_policy import MoodyFile
from support.slowest_plugin.slowest_policy import Slowest
from support.strangers import DOES_NOT_FIT, FIT, Costs, Softmax, stranger
from support.views import make_view

from policies.base import Policy, Request
from policies.traced import traced
from policies.traced.program import BINARY, COUNT, FOLDS, HEAD, LINES, NAMES, RESULT, UNARY, WORDS, answered, checked

POLICIES: dict[str, Policy] = {
    "the example": FreshestReport(),
    "slowest": Slowest(),
    "softmax": Softmax(),
    "costs": Costs(),
    **{name: stranger(function) for name, function in FIT.items()},
}


def program_of(policy: Policy) -> Any:
    found = traced(policy)
    assert found.program is not None, found.reason
    return found.program


@pytest.mark.parametrize("name", POLICIES)
def test_it_answers_as_the_function_does(name: str) -> None:
    policy, draw = POLICIES[name], np.random.default_rng(5)
    program = program_of(policy)
    for number in range(60):
        n = int(draw.integers(1, 80))
        eligible = draw.random(n) < draw.choice([1.0, 0.5])
        eligible[draw.integers(n)] = True
        names = ("pending", "in_flight", "tokens", "latency_s", "report_age_s")
        columns = {column: draw.exponential(size=n).round(1) for column in names}
        view = make_view(n, eligible=eligible, weight=1.0 + draw.integers(0, 3, n), **columns)
        key = int(draw.integers(2**62)) if number % 2 else None
        request = Request("m", rows=float(draw.integers(1, 33)), number=number * 10**6, key=key)
        wanted = policy.probabilities(request, view)
        np.testing.assert_allclose(answered(program, request, view), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("function", DOES_NOT_FIT, ids=lambda function: function.__name__)
def test_what_does_not_fit_stays_numpy_for_a_reason(function: Callable[..., Any]) -> None:
    found = traced(stranger(function))
    assert found.program is None
    assert DOES_NOT_FIT[function] in found.reason


def test_what_reads_a_file_is_no_program() -> None:
    assert traced(MoodyFile()).program is not None
    assert "more than request and fleet" in traced(MoodyFile(mood=__file__)).reason


def test_what_holds_something_that_may_change_is_no_program() -> None:
    @dataclasses.dataclass(frozen=True)
    class Holding(Slowest):
        held: Any = dataclasses.field(default_factory=list, metadata={"doc": "Anything"})

    assert "its option held is a list, which may change" in traced(Holding()).reason


def test_options_are_in_the_program() -> None:
    assert program_of(FreshestReport(step_s=0.5)).tolist() != program_of(FreshestReport(step_s=0.25)).tolist()


def test_it_is_found_once_and_goes_along() -> None:
    policy = FreshestReport()
    assert traced(policy) is traced(policy)
    assert traced(pickle.loads(pickle.dumps(policy))).program is not None
    assert policy == FreshestReport()


def test_rows_of_many_are_answered_alike() -> None:
    view = make_view(5, leading=(3,), report_age_s=np.random.default_rng(1).random((3, 5)))
    request = Request("m", rows=np.ones((3, 1)), number=np.arange(3, dtype=np.uint64)[:, None])
    program = program_of(FreshestReport())
    rows = [answered(program, Request("m", number=row), view.row(row)) for row in range(3)]
    np.testing.assert_array_equal(answered(program, request, view), rows)


def test_a_program_that_would_go_beyond_its_arrays_is_refused() -> None:
    good = program_of(FreshestReport())
    operands = {"constant": 0, **dict.fromkeys(("column", *UNARY, *FOLDS), 1), **dict.fromkeys(BINARY, 2), "where": 3}
    words = [COUNT, LINES, RESULT]
    for k in range(int(good[COUNT])):
        first = HEAD + WORDS * k
        words += range(first, first + 2 + operands.get(NAMES[int(good[first])], 0))
    for word in words:
        for value in (-1.0, 0.5, 1e9, np.nan, np.inf):
            spoiled = good.copy()
            spoiled[word] = value
            with pytest.raises(ValueError, match=r"it is|there is no|works on lines|its answer"):
                checked(spoiled)


def test_what_reads_before_it_writes_or_over_what_it_reads_is_refused() -> None:
    program = program_of(FreshestReport())
    cut = np.concatenate([program[:HEAD], program[HEAD + WORDS :]])
    cut[COUNT] -= 1
    with pytest.raises(ValueError, match="works on lines that are not there"):
        checked(cut)
    over = np.array([2.0, 1.0, 0.0, 0.0, NAMES.index("index"), 0, 0, 0, 0, NAMES.index("take"), 0, 0, 0, 0])
    with pytest.raises(ValueError, match="take writes over what it reads"):
        checked(over)
    with pytest.raises(ValueError, match="not as long as it says"):
        checked(program[:-1])
