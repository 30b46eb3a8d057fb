"""A policy of a third party that is published, and what is drawn by its tables, in Python."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from balancer.core.kernel import picking
from policies.base import BoolArray, FleetView, FloatArray, Policy, Request, least, option
from policies.columns import columns_of
from policies.hashing import mix, unit


@dataclasses.dataclass(frozen=True)
class Thirds(Policy):
    """The fewest in flight, in a loop that nothing compiles."""

    name: ClassVar[str] = "thirds"
    summary: ClassVar[str] = "The fewest in flight."
    source: ClassVar[str] = "These tests"

    reads: str = option("", "What it reads of the request beside the fleet")
    raises: bool = option(False, "Whether it raises")
    sheds: bool = option(False, "Whether it sheds")
    even: bool = option(False, "Whether all get the same")

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """Shares for the least; of a loop, as nothing else would do."""
        if self.raises:
            raise RuntimeError("thirds")
        if self.reads:
            getattr(fleet if self.reads in columns_of("request") else request, self.reads)
        shares = np.zeros(fleet.eligible.shape)
        for row, share in np.ndenumerate(least(fleet.in_flight * (not self.even), fleet.eligible)):
            shares[row] = 0.0 if self.sheds else share
        return shares


def lacking(table: npt.NDArray[Any], in_flight: FloatArray, mask: BoolArray) -> FloatArray | None:
    """What each worker lacks by that table, as shares, `(n,)`; None: nobody anything, so that the balancer is asked."""
    content, n = table[0], len(mask)
    targets, levels = content["targets"][:, :n], int(content["levels"])
    if content["fixed"]:
        return _shares(np.where(mask, targets[0], 0.0))
    more, level = float((in_flight - content["base"][:n])[mask].sum()), 0
    while level + 1 < levels and more >= content["upto"][level]:
        level += 1
    tries = [(place, 0) for place in range(level, levels)] + [(levels - 1, 1 << power) for power in range(11)]
    found = (_shares(np.where(mask & (targets[to] > 0), targets[to] + beyond - in_flight, 0.0)) for to, beyond in tries)
    return next((shares for shares in found if shares is not None), None)


def _shares(weights: FloatArray) -> FloatArray | None:
    whole = picking.total_of(weights.clip(0.0).tolist())
    return weights.clip(0.0) / whole if whole > 0 else None


def drawn(shares: FloatArray, seed: int, number: int) -> tuple[int, float]:
    """Whom the lot falls on, and the share that it had."""
    listed = shares.tolist()
    row = picking.draw(listed, unit(mix(mix(seed) ^ number)))
    return row, listed[row] / picking.total_of(listed)
