"""Round robin: the eligible workers in turn."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from policies.base import BoolArray, FleetView, FloatArray, IntArray, Policy, Request, count_of


@dataclasses.dataclass(frozen=True)
class RoundRobin(Policy):
    """The eligible worker at place `request.number mod count`, in the order of the view.

    The turn is the request's number and not a memory of the last pick, so where the set of eligible workers differs
    from request to request (models, canaries, draining) the turns are spread but not strict.
    """

    name: ClassVar[str] = "round_robin"
    summary: ClassVar[str] = "The eligible workers in turn."
    source: ClassVar[str] = "Nagle, On packet switches with infinite storage, RFC 970, 1985"
    equivariant: ClassVar[bool] = False

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """1 for the worker whose turn it is, `(..., n)`."""
        eligible = fleet.eligible
        count = count_of(eligible)
        turn: int | IntArray
        if isinstance(count, int) and isinstance(request.number, int):
            turn = request.number % max(count, 1)
        else:
            turn = (np.asarray(request.number, np.uint64) % np.maximum(count, 1).astype(np.uint64)).astype(np.int64)
        place = np.cumsum(eligible, axis=-1) - 1
        chosen: FloatArray = ((place == turn) & eligible).astype(np.float64)
        return chosen


def fill_turn(number: int, eligible: BoolArray, out: FloatArray) -> int:
    """`RoundRobin.probabilities` in loops, as `policies.choices` has them."""
    count, chosen = 0, -1
    for w in range(len(out)):
        out[w] = 0.0
        count += eligible[w]
    if count:
        place = number % count
        for w in range(len(out)):
            if eligible[w]:
                if place == 0:
                    chosen = w
                    break
                place -= 1
        out[chosen] = 1.0
    return chosen
