"""Consistent hash: weighted rendezvous hashing with bounded load."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from policies.base import WORST, FleetView, FloatArray, Policy, Request, least, option
from policies.hashing import rendezvous_cost


@dataclasses.dataclass(frozen=True)
class ConsistentHash(Policy):
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
        "pending", "What is bounded: pending (all balancers' requests, from reports) or in_flight (own, exact)"
    )
    floor: float = option(
        8.0, "Requests that a worker may hold whatever the others' load, so that keys stay at low load", ge=0.0
    )

    def probabilities(self, request: Request, fleet: FleetView) -> FloatArray:
        """1 for the key's worker, `(..., n)`."""
        key = request.number if request.key is None else request.key
        cost = rendezvous_cost(key, fleet.name_hash, fleet.weight)
        eligible = fleet.eligible
        if self.balance_factor == np.inf:
            return least(cost, eligible)
        weight = np.where(eligible, fleet.weight, 0.0)
        load = fleet.pending if self.load == "pending" else fleet.in_flight
        load = np.where(eligible, np.fmin(load, WORST), 0.0)
        total_weight = np.add.reduce(weight, axis=-1, keepdims=True)
        total_load = np.add.reduce(load, axis=-1, keepdims=True) + 1.0
        share = self.balance_factor * total_load / np.where(total_weight > 0.0, total_weight, 1.0)
        # Somebody has room: if all were at their bounds, the loads would sum to more than they do.
        most = np.ceil(share * weight)
        if request.key is not None:
            most = np.maximum(most, self.floor)
        return least(cost, (load < most) & eligible)
