"""Choices made inside the engine: what the policy of the same name, and the router's draw, would pick, bit for bit
(but for the last bit of an exponential). Also the limits and fallbacks, which are the router's.
"""

from __future__ import annotations

import math

import numpy as np

from policies.base import WORST
from simulator.engine.compiled import (
    backlog_now_s,
    completion_now_s,
    error_rate_now,
    inlined,
    mix,
    others_left,
    pending_now,
    unit,
)
from simulator.engine.knowledge import row
from simulator.engine.layout import E_ERROR_DECAY, Sim

OUTSIDE, RANDOM, ROUND_ROBIN, LEAST_REQUESTS, WLPR, EXPECTED_LATENCY = range(6)
"""How a request is decided; OUTSIDE: by the caller."""


@inlined
def pending_of(sim: Sim, r: int, now_s: float) -> float:
    """As `FleetView.pending` of one worker, which needs no arithmetic where there are no others."""
    q = sim.queue
    if q.others[r] == 0:
        return q.in_flight[r]
    return pending_now(q, r, others_left(q, r, now_s))


@inlined
def completion_of(sim: Sim, r: int, m: int, rows: float, now_s: float) -> float:
    """As `FleetView.completion_s` of one worker."""
    q = sim.queue
    left = others_left(q, r, now_s) if q.others[r] > 0 else 0.0
    return completion_now_s(q, sim.service, (r, m), rows, backlog_now_s(q, r, now_s, left))


@inlined
def draw(sim: Sim, e: int, b: int) -> float:
    """The router's draw for the next decision of a balancer."""
    return unit(mix(sim.plan.router_seed[e, b] ^ np.uint64(sim.known.number[e, b])))


@inlined
def _least(sim: Sim, e: int, b: int, cost: np.ndarray) -> int:
    """A draw from `policies.base.least`: equal shares for the eligible of least cost."""
    mask = sim.state.mask[e]
    lowest, ties = np.inf, 0
    for w in range(cost.size):
        if mask[w]:
            cost[w] = min(cost[w], WORST)
            if cost[w] < lowest:
                lowest, ties = cost[w], 1
            elif cost[w] == lowest:
                ties += 1
    return _take(sim, e, b, cost, lowest, ties)


@inlined
def _take(sim: Sim, e: int, b: int, cost: np.ndarray, value: float, ties: int) -> int:
    """A draw from equal shares for those whose cost has the value; sums as `cumsum` does."""
    share = 1.0 / ties
    total = 0.0
    for _ in range(ties):
        total += share
    target = draw(sim, e, b) * total
    cumulative, last = 0.0, -1
    for w in range(cost.size):
        if sim.state.mask[e, w] and cost[w] == value:
            cumulative += share
            last = w
            if cumulative > target:
                break
    return last


@inlined
def _round_robin(sim: Sim, e: int, b: int, count: int) -> int:
    turn = sim.known.number[e, b] % count
    if count == sim.sizes.workers:
        return turn
    w = -1
    while turn >= 0:
        w += 1
        if sim.state.mask[e, w]:
            turn -= 1
    return w


@inlined
def _expected_latency(
    sim: Sim, e: int, k: int, b: int, cost: np.ndarray, temperature: float, penalty_s: float, now_s: float
) -> int:
    mask = sim.state.mask[e]
    first, m = row(sim, e, b, 0), sim.demand.model[e, k]
    best = WORST
    for w in range(cost.size):
        if mask[w]:
            r = first + w
            cost[w] = completion_of(sim, r, m, sim.demand.rows[e, k], now_s)
            if penalty_s > 0 and sim.latency.errors[r] > 0:
                cost[w] = cost[w] + penalty_s * error_rate_now(sim.latency, r, now_s, sim.plan.env[e, E_ERROR_DECAY])
            cost[w] = min(cost[w], WORST)
            best = min(best, cost[w])
    if temperature == 0:
        return _least(sim, e, b, cost)
    scale = max(temperature * best, 1e-9)
    total, last = 0.0, -1
    for w in range(cost.size):
        if mask[w]:
            cost[w] = math.exp((best - cost[w]) / scale)
            total += cost[w]
    target, cumulative = draw(sim, e, b) * total, 0.0
    for w in range(cost.size):
        if mask[w] and cost[w] > 0:
            cumulative += cost[w]
            last = w
            if cumulative > target:
                break
    return last


@inlined
def pick(sim: Sim, e: int, k: int, b: int, count: int, how: int, options: np.ndarray, now_s: float) -> int:
    """Whom the policy `how` picks; `count` workers are eligible."""
    n = sim.sizes.workers
    if how == ROUND_ROBIN:
        return _round_robin(sim, e, b, count)
    cost = sim.state.scratch[e]
    first = row(sim, e, b, 0)
    if how == RANDOM:
        cost[:] = 0.0
        return _take(sim, e, b, cost, 0.0, count)
    if how == LEAST_REQUESTS:
        for w in range(n):
            cost[w] = sim.queue.in_flight[first + w]
        return _least(sim, e, b, cost)
    if how == WLPR:
        for w in range(n):
            cost[w] = (pending_of(sim, first + w, now_s) + options[0]) / sim.plan.weight[e, w]
        return _least(sim, e, b, cost)
    return _expected_latency(sim, e, k, b, cost, options[0], options[1], now_s)
