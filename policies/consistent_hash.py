"""Consistent hash: weighted rendezvous hashing with bounded load."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from policies.base import WORST, BoolArray, FloatArray, option
from policies.choices import LEAST
from policies.costs import CostPolicy, total_of
from policies.hashing import rendezvous_cost

_LEAST_WEIGHT = 1e-100
"""Keeps the division defined where no worker is eligible."""


@dataclasses.dataclass(frozen=True)
class ConsistentHash(CostPolicy):
    """The worker that wins the request's key, unless it is too busy; then the key's next.

    All balancers agree without talking, a worker that comes or goes moves only its own share of the keys, and no worker
    holds more than `balance_factor` times its weighted share of the load (rounded up to a whole request), but for the
    first `floor` requests: few are no imbalance, and keys stay where they are at low load. A request without a key is
    hashed by its number, which spreads but sticks to nothing; it has no reason to wait, and goes without the floor.
    """

    name: ClassVar[str] = "consistent_hash"
    summary: ClassVar[str] = "One worker per routing key, the next one if it is too busy."
    source: ClassVar[str] = (
        "Thaler, Ravishankar, IEEE/ACM ToN 1998 (rendezvous); "
        "Mirrokni, Thorup, Zadimoghaddam, Consistent hashing with bounded loads, SODA 2018"
    )
    needs_key: ClassVar[bool] = True

    balance_factor: float = option(
        1.25, "Largest load of a worker, as a multiple of its weighted share; a large one binds nothing", gt=1.0
    )
    load: Literal["pending", "in_flight"] = option(
        "pending", "What is bounded: pending (all balancers' requests, from reports) or in_flight (own and peers')"
    )
    floor: float = option(
        8.0, "Requests that a worker may hold whatever the others' load, so that keys stay at low load", ge=0.0
    )

    choice = LEAST
    facts: ClassVar = {"total_load": total_of("load"), "total_weight": total_of("weight")}

    def columns(self) -> dict[str, str]:
        return {"load": self.load}

    @staticmethod
    def cost(draw: FloatArray, weight: FloatArray) -> FloatArray:
        return rendezvous_cost(draw, weight)

    @staticmethod
    def candidate(
        load: FloatArray,
        weight: FloatArray,
        total_load: FloatArray,
        total_weight: FloatArray,
        balance_factor: float,
        floor: float,
        keyed: float,
    ) -> BoolArray:
        """Whether it has room. Somebody has: if all were at their bounds, the loads would sum to more than they do."""
        share = balance_factor * (total_load + 1.0) / np.maximum(total_weight, _LEAST_WEIGHT)
        return np.fmin(load, WORST) < np.maximum(np.ceil(share * weight), floor * keyed)
