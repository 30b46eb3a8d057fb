"""Choices made inside the engine: what the policy of the same name, and the router's draw, would pick, bit for bit
(but for the last bit of an exponential). Also the limits and fallbacks, which are the router's.
"""

from __future__ import annotations

import math

import numpy as np

from policies.base import WORST
from simulator.engine.compiled import inlined, mix, unit
from simulator.engine.knowledge import row
from simulator.engine.layout import E_ERROR_DECAY, Sim

OUTSIDE, RANDOM, ROUND_ROBIN, LEAST_REQUESTS, WLPR, EXPECTED_LATENCY = range(6)
"""How a request is decided; OUTSIDE: by the caller."""


@inlined
def pending_of(sim: Sim, r: int, now_s: float) -> float:
    """`queue.pending_now` for one worker."""
    q = sim.queue
    if q.others[r] == 0:
        return q.in_flight[r]
    left = 0.0
    if q.others_work_s[r] > 0:
        left = 1 - (now_s - q.others_s[r]) / max(q.others_work_s[r] + q.own_work_s[r], 1e-9)
    return q.in_flight[r] + q.others[r] * min(max(left, 0.0), 1.0)


@inlined
def completion_of(sim: Sim, r: int, m: int, request_rows: float, now_s: float) -> float:
    """`View.completion_s` for one worker."""
    q, s = sim.queue, sim.service
    backlog_s = q.own_work_s[r] - min(max(now_s - q.progress_s[r], 0.0), q.executing_s[r])
    if q.others[r] > 0 and q.others_work_s[r] > 0:
        left = 1 - (now_s - q.others_s[r]) / max(q.others_work_s[r] + q.own_work_s[r], 1e-9)
        backlog_s = backlog_s + q.others_work_s[r] * min(max(left, 0.0), 1.0)
    rows = q.waiting_rows[r, m] + request_rows
    batches = math.ceil(rows / s.max_batch_rows[r, m])
    work_s = (s.fixed_s[r, m] * batches + s.per_row_s[r, m] * rows) / s.instances[r, m]
    return max(backlog_s, 0.0) + (work_s - q.waiting_model_s[r, m])


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
                silence_s = max(now_s - sim.latency.errors_at_s[r], 0.0)
                rate = sim.latency.errors[r] * math.exp(-silence_s / sim.plan.env[e, E_ERROR_DECAY])
                cost[w] = cost[w] + penalty_s * rate
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
