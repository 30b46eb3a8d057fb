"""Asking a policy: its answer, or what is wrong with it."""

from __future__ import annotations

import numpy as np

from balancer.core.view import LiveView
from policies.base import FleetView, FloatArray, Policy, Request


def ask(policy: Policy, request: Request, view: FleetView) -> tuple[FloatArray | None, str]:
    """The probabilities, `(n,)`; or None, and why they are no distribution over the eligible workers.

    All zero is an answer: the policy sheds.
    """
    if isinstance(view, LiveView) and (compiled := view.answer(policy, request)) is not None:
        return compiled, ""
    try:
        probabilities = policy.probabilities(request, view)
        total = float(np.add.reduce(probabilities))
        # Comparisons with NaN are false, so NaN is invalid here too.
        valid = (total == 0 or abs(total - 1) < 1e-6) and np.minimum.reduce(probabilities) >= 0
        if valid and not np.count_nonzero((probabilities > 0) > view.eligible):
            return probabilities, ""
        return None, f"probabilities sum to {total}, least {probabilities.min()}, over eligible workers only?"
    except Exception as error:  # a third party's policy may raise anything; requests must not fail for it
        return None, f"{type(error).__name__}: {error}"
