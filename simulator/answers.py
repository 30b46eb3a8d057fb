"""What policies answer to all that waits at one moment, for whoever asks of one environment at a time."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import numpy as np

from balancer.core.answering import OneOfMany, answer_alone, flaw, is_distribution
from policies.base import BoolArray, FleetView, FloatArray, Policy, Request
from simulator.batch import Batch


class Answers:
    """Of policies, to what waits in a batch now. Each is asked once at most, for all environments at once; one that
    raises then is asked for each environment alone, so that it fails those that it fails in production.
    """

    def __init__(self, batch: Batch) -> None:
        self.view = batch.view()
        self._batch = batch
        self._found: dict[int, tuple[FloatArray, BoolArray] | None] = {}
        self._outside: dict[int, FloatArray | None] = {}

    @cached_property
    def by_key(self) -> FloatArray:
        """The sticky hash's, `(e, n)`."""
        return self._batch.sticky_answers(self.view)

    def answer(self, policy: Policy, e: int) -> tuple[FloatArray | None, str] | None:
        """As `balancer.core.answering.answer`; None: the policy is to be asked alone."""
        key = id(policy)
        if key not in self._found:
            self._found[key] = self._ask(policy)
        found = self._found[key]
        if found is None:
            return None
        probabilities, valid = found
        return (probabilities[e], "") if valid[e] else (None, flaw(probabilities[e]))

    def out_of_range(self, policy: Policy, e: int) -> float | None:
        """As `balancer.core.answering.out_of_range`; None: the policy is to be asked alone."""
        key = id(policy)
        if key not in self._outside:
            self._outside[key] = self._ask_range(policy)
        found = self._outside[key]
        return None if found is None else float(found[e])

    def _ask(self, policy: Policy) -> tuple[FloatArray, BoolArray] | None:
        try:
            probabilities = self._batch.answers(policy, self.view)
            return probabilities, np.asarray(is_distribution(probabilities, self.view.eligible))
        except Exception:  # a third party's policy may raise anything; asked alone it tells what
            return None

    def _ask_range(self, policy: Policy) -> FloatArray | None:
        try:
            outside = policy.out_of_range(self._batch.request(), self.view)
            return np.broadcast_to(outside, self.view.eligible.shape[:-1])
        except Exception:  # see above
            return None


class Row(OneOfMany):
    """The view of one environment of a batch: columns of shape `(n,)`."""

    def __init__(self, answers: Answers, e: int) -> None:
        self._answers, self._e = answers, e

    def __getattr__(self, name: str) -> Any:
        """The environment's part of a column."""
        return getattr(self._answers.view, name)[self._e]

    @property
    def as_view(self) -> FleetView:
        """Itself: it has all columns, though nothing in it says so."""
        return cast(FleetView, self)

    def answer(self, policy: Policy, request: Request) -> tuple[FloatArray | None, str]:
        """See `OneOfMany`."""
        return self._answers.answer(policy, self._e) or answer_alone(policy, request, self.as_view)

    def out_of_range(self, policy: Policy, request: Request) -> float:
        """See `OneOfMany`."""
        found = self._answers.out_of_range(policy, self._e)
        return float(np.max(policy.out_of_range(request, self.as_view))) if found is None else found
