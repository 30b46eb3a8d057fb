"""Round robin: the eligible workers in turn."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from policies.base import BoolArray, FleetView, FloatArray, Policy, Request


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
        number: Any = np.atleast_1d(request.number)
        shape = np.broadcast_shapes(number.shape, fleet.eligible.shape)
        numbers, masks = np.broadcast_to(number, shape), np.broadcast_to(fleet.eligible, shape)
        shares = np.empty(shape)
        for row in np.ndindex(shape[:-1]):
            line = [0.0] * shape[-1]
            fill_turn(int(next(numbers[row].flat, 0)), masks[row].tolist(), line)
            shares[row] = line
        return shares


def fill_turn(number: int, eligible: Sequence[bool] | BoolArray, out: list[float] | FloatArray) -> int:
    """Write the shares, as the fills of `policies.choices` do."""
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
