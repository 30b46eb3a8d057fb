"""What counts as an answer."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
from support.fleets import make_router

from balancer.kernel.checked_answer import answer, is_distribution
from policies.base import FleetView, FloatArray, Policy, Request

ELIGIBLE = np.array([True, True, False])
CASES = [
    ([0.25, 0.75, 0.0], True),
    ([1.0 + 1e-9, 0.0, 0.0], True),
    ([0.0, 0.0, 0.0], True),  # it sheds
    ([0.5, 0.0, 0.5], False),
    ([0.5, 0.25, 0.0], False),
    ([1.5, -0.5, 0.0], False),
    ([1.0, -1.0, 0.0], False),
    ([np.nan, 1.0, 0.0], False),
    ([np.inf, 0.0, 0.0], False),
]


@dataclasses.dataclass(frozen=True)
class Answering(Policy):
    name: ClassVar[str] = "answering"
    summary: ClassVar[str] = "Answers what it was given."
    source: ClassVar[str] = "these tests"

    given: object = dataclasses.field(default=None, metadata={"doc": "What it answers"})

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        return self.given  # type: ignore[return-value]  # strangers may answer anything


def test_many_answers_are_judged_each_by_itself() -> None:
    answers = np.array([probabilities for probabilities, _ in CASES])
    found = is_distribution(answers, np.broadcast_to(ELIGIBLE, answers.shape))
    assert np.asarray(found).tolist() == [valid for _, valid in CASES]


@pytest.mark.parametrize("given", [np.array([1.0]), np.ones((1, 3)) / 3, np.float64(1.0), [0.5, 0.5, 0.0], None])
def test_what_is_no_array_of_a_number_for_each_worker_is_no_answer(given: object) -> None:
    router = make_router(3, Answering())
    probabilities, failure = answer(Answering(given), Request("m"), router.view(Request("m"), 0.0))
    assert probabilities is None
    assert failure
