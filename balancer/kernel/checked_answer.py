"""A policy's answer to a request, or what is wrong with it."""

from dataclasses import dataclass

import numpy as np

from balancer.kernel.policy_answers import is_shipped
from balancer.kernel.view import LiveView
from policies.base import BoolArray, FleetView, FloatArray, Policy, Request, least
from policies.traced import examples


@dataclass(frozen=True)
class _LeastPending(Policy):
    name = "least_pending"
    summary = source = ""

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        return least(fleet.pending, fleet.eligible)


LEAST = _LeastPending()
"""Decides where no policy has a valid answer."""
LEAST_PENDING = "the least pending worker is picked"


def answer(policy: Policy, request: Request, view: FleetView) -> tuple[FloatArray | None, str]:
    """The probabilities, `(n,)`; or None, and why they are no distribution over the eligible workers.

    All zero is an answer: the policy sheds.
    """
    if isinstance(view, LiveView) and (found := view.answer(policy, request)) is not None:
        return (found, "") if is_shipped(policy) or is_distribution(found, view.eligible) else (None, _flaw(found))
    return answer_alone(policy, request, view)


def answer_alone(policy: Policy, request: Request, view: FleetView) -> tuple[FloatArray | None, str]:
    """As `answer`, by the policy's own Python, for one fleet."""
    try:
        probabilities = policy.probabilities(request, view)
        if is_distribution(probabilities, view.eligible):
            return probabilities, ""
        return None, _flaw(probabilities)
    except Exception as error:  # a third party's policy may raise anything; requests must not fail for it
        return None, f"{type(error).__name__}: {error}"


def first_failure(policy: Policy) -> str:
    """What is wrong with its first invalid answer to made-up requests and fleets; empty: all are valid."""
    failures = (answer_alone(policy, request, fleet)[1] for request, fleet in examples())
    return next(filter(None, failures), "")


def is_distribution(probabilities: FloatArray, eligible: BoolArray) -> BoolArray | np.bool_:
    """Whether they are one over the eligible workers, or all zero; `(...,)` of `(..., n)`.

    Raises ValueError where shapes differ.
    """
    if probabilities.shape != eligible.shape:
        raise ValueError(f"probabilities of shape {probabilities.shape} for workers of shape {eligible.shape}")
    total = np.add.reduce(probabilities, axis=-1)
    # Comparisons with NaN are false, so NaN is none here too.
    sums = (total == 0) | (abs(total - 1) < 1e-6)
    found: BoolArray | np.bool_ = sums & (np.minimum.reduce(probabilities, axis=-1, initial=0.0) >= 0)
    strays = (probabilities > 0) > eligible
    if np.count_nonzero(strays):  # seldom, and for one fleet much faster to count
        found &= ~strays.any(axis=-1)
    return found


def _flaw(probabilities: FloatArray) -> str:
    """Why they are no distribution, `(n,)`; in words."""
    total, least_of_all = np.add.reduce(probabilities), np.minimum.reduce(probabilities, initial=np.inf)
    return f"probabilities sum to {total}, least {least_of_all}, over eligible workers only?"
