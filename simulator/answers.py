"""What policies answer to all that waits at one moment, for whoever asks of one environment at a time."""

from __future__ import annotations

import copy
from functools import cached_property, partial
from typing import Any, Literal, cast, get_args

import numpy as np

from policies.base import FleetView, FloatArray, Policy, Request
from simulator.batch import Batch

Question = Literal["probabilities", "out_of_range"]
"""A method of `Policy`."""


class Answers:
    """Of policies, to what waits in a batch now. Each is asked once at most, for all environments at once; one that
    raises then is asked for each environment alone, so that it fails those that it fails in production.
    """

    def __init__(self, batch: Batch) -> None:
        self.view = batch.view()
        self._batch = batch
        self._found: dict[tuple[int, Question], FloatArray | None] = {}

    @cached_property
    def by_key(self) -> FloatArray:
        """The sticky hash's, `(e, n)`."""
        return self._batch.sticky_answers(self.view)

    @cached_property
    def of_sequences(self) -> FloatArray:
        """Those of the hash that places sequences, `(e, n)`."""
        return self._batch.answers_of_sequences(self.view)

    def of(self, policy: Policy, question: Question) -> FloatArray | None:
        """In all environments, `(e, ...)`; None: the policy is to be asked alone."""
        key = id(policy), question
        if key not in self._found:
            self._found[key] = self._ask(policy, question)
        return self._found[key]

    def _ask(self, policy: Policy, question: Question) -> FloatArray | None:
        shape = self.view.eligible.shape
        try:
            if question == "out_of_range":
                return np.broadcast_to(policy.out_of_range(self._batch.request(), self.view), shape[:-1])
            answers = self._batch.answers(policy, self.view)
            return answers if answers.shape == shape else None
        except Exception:  # a third party's policy may raise anything; asked alone it tells what
            return None


class Row:
    """The view of one environment of a batch: columns of shape `(n,)`."""

    def __init__(self, answers: Answers, e: int) -> None:
        self.answers, self.e = answers, e

    def __getattr__(self, name: str) -> Any:
        """The environment's part of a column."""
        return getattr(self.answers.view, name)[self.e]


def together(policy: Policy) -> Policy:
    """The policy; for the environment of a `Row` it answers what it was asked for all of them, or else as it is."""

    def ask(question: Question, request: Request, view: FleetView) -> Any:
        row = cast(Row, view)
        found = row.answers.of(policy, question)
        return getattr(policy, question)(request, view) if found is None else found[row.e]

    alike = copy.copy(policy)
    # Frozen, as policies are; nobody else has this copy.
    for question in get_args(Question):
        object.__setattr__(alike, question, partial(ask, question))
    return alike
