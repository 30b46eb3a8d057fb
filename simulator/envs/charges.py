"""What a step costs and whether it ends the episode, worked out for all environments in one pass.

The requests that ended since the last decision are found among those in the system alone.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from balancer.kernel.compiled.numba_records import Native
from policies.base import BoolArray, FloatArray, IntArray
from simulator.batch import Batch
from simulator.engine.compiled import compiled, inlined
from simulator.engine.layout import DECIDING, IN_SYSTEM, INTEGRAL, NOW, Sim
from simulator.result import Status

_OK = int(Status.OK)
# Columns of `ChargeTable.terms`.
_REWARD_SCALE, _DEADLINE_CHARGE, _TAIL_CHARGE, _TAIL_FROM, _MAX_IN_SYSTEM = range(5)


class ChargeTerms(NamedTuple):
    """What is charged, see README.md; `tail_from_s` below 0: a request's own deadline."""

    reward_scale: float
    deadline_charge_s: float
    tail_charge: float
    tail_from_s: float
    max_in_system: float


class ChargeTable(NamedTuple):
    terms: FloatArray
    requests: int
    integral_s: FloatArray
    """Of the number in the system, `(e,)`."""
    to_client_s: FloatArray
    seen: IntArray
    """Requests taken up, `(e,)`."""
    live_count: IntArray
    live: npt.NDArray[np.int32]
    """Indices of those that have not ended, `(e, k)`."""


class Charges:
    """Seconds that are charged: the integral of the number in the system and, beside it, for requests that ended.

    `deadline_charge_s` for each request that missed its deadline or failed (refused, shed, in error, lost), and
    `tail_charge * max(0, latency - tail_from_s)` for each that ended, its own deadline in place of `tail_from_s` where
    that is None.
    """

    def __init__(self, batch: Batch, requests: int, terms: ChargeTerms) -> None:
        e, k = batch.sim.demand.time_s.shape
        self._batch = batch
        self._table = ChargeTable(
            np.array(terms),
            requests,
            np.zeros(e),
            np.zeros(e),
            np.zeros(e, np.int64),
            np.zeros(e, np.int64),
            np.zeros((e, k), np.int32),
        )
        self._native = Native(self._table)

    def reset(self, e: int) -> None:
        """Environment `e` starts anew: nothing has arrived but what it stands at."""
        table = self._table
        table.seen[e] = table.live_count[e] = 0
        table.to_client_s[e] = self._batch.fleets[e].network.to_client_s
        table.integral_s[e] = self._batch.sim.state.clock[e, INTEGRAL]

    def conclude(self, active: BoolArray, running: BoolArray) -> tuple[FloatArray, BoolArray, int]:
        """Reward since the last call or the start, `(e,)`, and terminated, truncated and either, `(3, e)`; 0 but in
        `active`. And how many episodes are over by that, which are no longer `running`.
        """
        reward, ends = np.empty(len(active)), np.empty((3, len(active)), np.bool_)
        ended = _conclude(self._batch.native, self._native, self._batch.waiting, active, running, reward, ends)
        return reward, ends, int(ended)


@compiled
def _conclude(
    sim: Sim,
    table: ChargeTable,
    waiting: BoolArray,
    active: BoolArray,
    running: BoolArray,
    reward: FloatArray,
    ends: BoolArray,
) -> int:
    terms, requests, ended = table.terms, table.requests, 0
    terminated, truncated, over = ends[0], ends[1], ends[2]
    charged = terms[_DEADLINE_CHARGE] != 0 or terms[_TAIL_CHARGE] != 0
    for e in range(active.size):
        reward[e], terminated[e], truncated[e], over[e] = 0.0, False, False, False
        if not active[e]:
            continue
        counts, integral_s = sim.state.counts[e], sim.state.clock[e, INTEGRAL]
        cost_s = integral_s - table.integral_s[e]
        table.integral_s[e] = integral_s
        if charged:
            arrived = counts[DECIDING] + 1 if waiting[e] else table.live.shape[1]
            cost_s += _settle(sim, table, e, arrived)
        truncated[e] = not waiting[e] or counts[DECIDING] >= requests
        terminated[e] = not truncated[e] and counts[IN_SYSTEM] > terms[_MAX_IN_SYSTEM]
        if terminated[e]:
            left_s = sim.demand.time_s[e, requests] - sim.state.clock[e, NOW]
            cost_s += terms[_MAX_IN_SYSTEM] * max(left_s, 0.0)
        reward[e] = -terms[_REWARD_SCALE] * cost_s
        over[e] = terminated[e] or truncated[e]
        running[e] = running[e] and not over[e]
        ended += over[e]
    return ended


@inlined
def _settle(sim: Sim, table: ChargeTable, e: int, arrived: int) -> float:
    """Take up what has arrived, drop what has ended, and return the seconds that are charged for it."""
    x, live, terms = sim.state, table.live[e], table.terms
    count = table.live_count[e]
    for k in range(table.seen[e], arrived):
        live[count] = k
        count += 1
    table.seen[e] = max(table.seen[e], arrived)
    kept, missed, excess_s = 0, 0.0, 0.0
    for i in range(count):
        k = live[i]
        if np.isnan(x.resolved_s[e, k]):
            live[kept] = k
            kept += 1
            continue
        latency_s = x.resolved_s[e, k] + table.to_client_s[e] - x.arrived_s[e, k]
        limit_s = sim.demand.deadline_s[e, k] if terms[_TAIL_FROM] < 0 else terms[_TAIL_FROM]
        missed += x.status[e, k] != _OK or latency_s > sim.demand.deadline_s[e, k]
        excess_s += max(latency_s - limit_s, 0.0)
    table.live_count[e] = kept
    return terms[_DEADLINE_CHARGE] * missed + terms[_TAIL_CHARGE] * excess_s
