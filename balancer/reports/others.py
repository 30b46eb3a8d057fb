"""What an agent tells each balancer of all the others' requests: the sum of what these answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from balancer import bounds


def all_but(one: str, told: Mapping[str, Mapping[str, int] | None]) -> tuple[tuple[str, int], ...] | None:
    """(model, requests) of all balancers but `one`; None where one of them has not told, or they are too many models.

    Args:
        one: Who is to hear it.
        told: What each connected balancer told, by its address.
    """
    heard = [counts for address, counts in told.items() if address != one]
    if not heard:
        return None
    total: Counter[str] = Counter()
    for counts in heard:
        if counts is None:
            return None
        total.update(counts)
    return tuple(total.items()) if len(total) <= bounds.MAX_MODELS_IN_FLIGHT else None
