"""Charges for requests that ended: which these are since the last decision, found among those in the system alone."""

from __future__ import annotations

import numpy as np

from policies.base import BoolArray, FloatArray
from simulator.batch import Batch, IntArray
from simulator.engine import layout as at
from simulator.engine.compiled import compiled
from simulator.result import Status

_OK = int(Status.OK)


class Charges:
    """Seconds that are charged beside the integral of the number in the system.

    `deadline_charge_s` for each request that missed its deadline or failed (refused, shed, in error, lost), and
    `tail_charge * max(0, latency - tail_from_s)` for each that ended, its own deadline in place of `tail_from_s` where
    that is None.
    """

    def __init__(self, batch: Batch, deadline_charge_s: float, tail_charge: float, tail_from_s: float | None) -> None:
        """Of all environments of the batch."""
        e, k = batch.sim.demand.time_s.shape
        self._batch = batch
        self._deadline_charge_s, self._tail_charge = deadline_charge_s, tail_charge
        self._tail_from_s = -1.0 if tail_from_s is None else tail_from_s
        self._to_client_s = np.zeros(e)
        self._seen, self._live_count = np.zeros(e, np.int64), np.zeros(e, np.int64)
        self._live = np.zeros((e, k), np.int32)

    def reset(self, e: int) -> None:
        """Environment `e` starts anew: nothing has arrived."""
        self._seen[e] = self._live_count[e] = 0
        self._to_client_s[e] = self._batch.fleets[e].network.to_client_s

    def since_last(self, active: BoolArray) -> FloatArray | float:
        """Seconds charged for what ended in the environments `active`, `(e,)`, since the last call or the start."""
        if self._deadline_charge_s == self._tail_charge == 0:
            return 0.0
        state, demand = self._batch.sim.state, self._batch.sim.demand
        arrived: IntArray = np.where(self._batch.waiting, state.counts[:, at.DECIDING] + 1, self._live.shape[1])
        missed, excess_s = np.zeros(len(active)), np.zeros(len(active))
        _settle(
            active,
            arrived,
            self._seen,
            self._live,
            self._live_count,
            (state.status, state.arrived_s, state.resolved_s, demand.deadline_s),
            self._to_client_s,
            self._tail_from_s,
            missed,
            excess_s,
        )
        charged: FloatArray = self._deadline_charge_s * missed + self._tail_charge * excess_s
        return charged


@compiled
def _settle(
    active: BoolArray,
    arrived: IntArray,
    seen: IntArray,
    live: IntArray,
    live_count: IntArray,
    requests: tuple[IntArray, FloatArray, FloatArray, FloatArray],
    to_client_s: FloatArray,
    tail_from_s: float,
    missed: FloatArray,
    excess_s: FloatArray,
) -> None:
    """Take up what has arrived, and drop and account for what has ended; `live` holds indices, `(e, k)`."""
    status, arrived_s, resolved_s, deadline_s = requests
    for e in range(active.size):
        if not active[e]:
            continue
        count = live_count[e]
        for k in range(seen[e], arrived[e]):
            live[e, count] = k
            count += 1
        seen[e] = max(seen[e], arrived[e])
        kept = 0
        for i in range(count):
            k = live[e, i]
            if np.isnan(resolved_s[e, k]):
                live[e, kept] = k
                kept += 1
                continue
            latency_s = resolved_s[e, k] + to_client_s[e] - arrived_s[e, k]
            limit_s = deadline_s[e, k] if tail_from_s < 0 else tail_from_s
            missed[e] += status[e, k] != _OK or latency_s > deadline_s[e, k]
            excess_s[e] += max(latency_s - limit_s, 0.0)
        live_count[e] = kept
