"""Triton's dynamic batcher, and what happens when an execution starts and ends.

Triton: `GetDynamicBatch` in core's `dynamic_batch_scheduler.cc`.
"""

import math

import numpy as np

from simulator.engine import device
from simulator.engine import layout as at
from simulator.engine.compiled import inlined, outlined
from simulator.engine.event_heap import push
from simulator.engine.layout import Sim
from simulator.engine.reports import log_execution
from simulator.engine.requests import UNFINISHED, end, fail, uniform
from simulator.result import Status

_OK = int(Status.OK)


@inlined
def level_of(sim: Sim, e: int, m: int, k: int) -> int:
    spec, level = sim.plan.model[e * sim.sizes.models + m], sim.demand.priority[e, k]
    return int(min(level if level > 0 else spec[at.M_DEFAULT_LEVEL], spec[at.M_LEVELS])) - 1


@inlined
def enqueue(sim: Sim, e: int, g: int, k: int, now_s: float) -> bool:
    """Queue a request at its level; False where the queue is full."""
    x = sim.state
    m = sim.demand.model[e, k]
    spec = sim.plan.model[e * sim.sizes.models + m]
    level = level_of(sim, e, m, k)
    if 0 < spec[at.M_MAX_QUEUE] <= x.queue_count[g, m, level]:
        return False
    x.queued_s[e, k] = now_s
    x.stage[e, k] = at.IN_QUEUE
    put(sim, e, g, m, level, k)
    x.queued[g, m] += 1
    x.whole[g, at.QUEUED] += 1
    return True


@inlined
def put(sim: Sim, e: int, g: int, m: int, level: int, k: int) -> None:
    x = sim.state
    x.next[e, k] = -1
    if x.queue_count[g, m, level] == 0:
        x.queue_head[g, m, level] = k
    else:
        x.next[e, x.queue_tail[g, m, level]] = k
    x.queue_tail[g, m, level] = k
    x.queue_count[g, m, level] += 1


@inlined
def take(sim: Sim, e: int, g: int, m: int, level: int) -> int:
    x = sim.state
    k = x.queue_head[g, m, level]
    x.queue_head[g, m, level] = x.next[e, k]
    x.queue_count[g, m, level] -= 1
    return k


@inlined
def put_in_front(sim: Sim, e: int, g: int, m: int, k: int) -> None:
    """Queue a request once more, before all others of its level."""
    x, level = sim.state, level_of(sim, e, m, k)
    if x.queue_count[g, m, level] == 0:
        put(sim, e, g, m, level, k)
    else:
        x.next[e, k] = x.queue_head[g, m, level]
        x.queue_head[g, m, level] = k
        x.queue_count[g, m, level] += 1
    x.stage[e, k] = at.IN_QUEUE
    x.queued[g, m] += 1
    x.whole[g, at.QUEUED] += 1


@outlined
def take_out(sim: Sim, e: int, k: int) -> None:
    """Take a request that is queued out of the queue, wherever it stands."""
    x, m = sim.state, sim.demand.model[e, k]
    g = e * sim.sizes.workers + x.server[e, k]
    for level in range(sim.sizes.levels + 1):
        before, one = -1, x.queue_head[g, m, level]
        for _ in range(x.queue_count[g, m, level]):
            if one == k:
                if before < 0:
                    x.queue_head[g, m, level] = x.next[e, k]
                else:
                    x.next[e, before] = x.next[e, k]
                if x.queue_tail[g, m, level] == k:
                    x.queue_tail[g, m, level] = before
                x.queue_count[g, m, level] -= 1
                x.queued[g, m] -= 1
                x.whole[g, at.QUEUED] -= 1
                return
            before, one = one, x.next[e, one]


@outlined
def _expire(sim: Sim, e: int, g: int, m: int, now_s: float) -> None:
    """Remove, or put behind, the requests at the front of each level that have waited too long."""
    x = sim.state
    spec = sim.plan.model[e * sim.sizes.models + m]
    late = sim.sizes.levels
    for level in range(late):
        while x.queue_count[g, m, level] > 0:
            k = x.queue_head[g, m, level]
            if now_s - x.queued_s[e, k] <= spec[at.M_TIMEOUT]:
                break
            take(sim, e, g, m, level)
            if spec[at.M_DELAY_LATE]:
                put(sim, e, g, m, late, k)
            else:
                x.queued[g, m] -= 1
                x.whole[g, at.QUEUED] -= 1
                fail(sim, e, k, now_s)


@inlined
def _batch_rows(sim: Sim, e: int, g: int, m: int, now_s: float) -> int:
    """Rows of the batch to start now; 0: wait, with the timer set."""
    x = sim.state
    spec = sim.plan.model[e * sim.sizes.models + m]
    preferred = sim.plan.preferred[e * sim.sizes.models + m]
    rows, found, full = 0, 0, False
    oldest_s = np.inf
    for level in range(sim.sizes.levels + 1):
        if full:
            break
        k = x.queue_head[g, m, level]
        for _ in range(x.queue_count[g, m, level]):
            if rows > 0 and rows + sim.demand.rows[e, k] > spec[at.M_MAX_ROWS]:
                full = True
                break
            rows += sim.demand.rows[e, k]
            oldest_s = min(oldest_s, x.queued_s[e, k])
            if spec[at.M_DELAY] > 0:
                for size in preferred:
                    if size == rows:
                        found = rows
            k = x.next[e, k]
    due_s = oldest_s + spec[at.M_DELAY]
    if now_s >= due_s:
        return rows
    if found > 0:
        return found
    if full or rows >= spec[at.M_PREFERRED]:
        return rows
    if x.timer_s[g, m] != due_s:
        x.timer_s[g, m] = due_s
        w = g - e * sim.sizes.workers
        push(sim.heap, e, due_s, at.TIMER, w * sim.sizes.models + m)
    return 0


@inlined
def noise(sim: Sim, e: int, g: int, m: int) -> float:
    spec = sim.plan.model[e * sim.sizes.models + m]
    if spec[at.M_NOISE] == 0:
        return 1.0
    k = ((g - e * sim.sizes.workers) << 40) | sim.state.whole[g, at.STARTED]
    first = uniform(sim, e, 1, k)
    if spec[at.M_NOISE] == at.EXPONENTIAL:
        return -math.log1p(-first)
    if spec[at.M_NOISE] == at.LOGNORMAL:
        z = math.sqrt(-2 * math.log1p(-first)) * math.cos(2 * math.pi * uniform(sim, e, 2, k))
        return math.exp(spec[at.M_SIGMA] * z - spec[at.M_HALF_VARIANCE])
    return 1.0


@inlined
def work_of(sim: Sim, e: int, g: int, k: int, enters: bool) -> float:
    """A request's work if it starts on this worker now: less where its key is cached; `enters`: it is from now on."""
    work = sim.demand.work[e, k]
    entries = int(sim.plan.env[e, at.E_CACHE])
    key = sim.demand.key[e, k]
    if entries > 0 and key != 0:
        place = int(key % np.uint64(entries))
        if sim.state.cache[g, place] == key:
            return work * (1 - sim.plan.env[e, at.E_SAVING])
        if enters:
            sim.state.cache[g, place] = key
    return work


@inlined
def _start(sim: Sim, e: int, g: int, m: int, rows: int, now_s: float) -> None:
    """Take a batch of so many rows out of the queue, and start it in the first free slot."""
    x = sim.state
    slot = 0
    while x.slot_state[g, slot] != at.FREE:
        slot += 1
    taken, level, tail, requests, work = 0, 0, -1, 0, 0.0
    while taken < rows:
        while x.queue_count[g, m, level] == 0:
            level += 1
        k = take(sim, e, g, m, level)
        if tail < 0:
            x.slot_head[g, slot] = k
        else:
            x.next[e, tail] = k
        tail = k
        x.stage[e, k] = at.EXECUTES
        size = sim.demand.rows[e, k]
        taken += size
        requests += 1
        work += size * work_of(sim, e, g, k, True)
    x.next[e, tail] = -1
    x.queued[g, m] -= requests
    x.whole[g, at.QUEUED] -= requests
    x.executing[g, m] += requests
    x.whole[g, at.EXECUTING] += requests
    x.busy_instances[g, m] += 1
    x.slot_model[g, slot] = m
    x.slot_rows[g, slot] = taken
    x.slot_start_s[g, slot] = now_s
    table = sim.plan.table[g, m]
    left_s = sim.plan.device_s[table, taken] / sim.plan.worker[g, at.W_SPEED] * (work / taken) * noise(sim, e, g, m)
    if x.whole[g, at.STARTED_UP] < sim.plan.env[e, at.E_COLD]:
        left_s *= sim.plan.env[e, at.E_COLD_FACTOR]
    x.slot_left_s[g, slot] = left_s
    x.whole[g, at.STARTED] += 1
    x.whole[g, at.STARTED_UP] += 1
    host_s = sim.plan.host_s[table, taken]
    if host_s > 0:
        x.slot_state[g, slot] = at.ON_HOST
        x.slot_ready_s[g, slot] = now_s + host_s
        push(sim.heap, e, now_s + host_s, at.HOST_DONE, (g - e * sim.sizes.workers) * sim.sizes.slots + slot)
    else:
        device.enqueue(sim, e, g, slot, now_s)


@inlined
def look(sim: Sim, e: int, g: int, m: int, now_s: float) -> None:
    x = sim.state
    while x.whole[g, at.UP] and x.queued[g, m] > 0 and x.busy_instances[g, m] < sim.plan.instances[g, m]:
        if sim.plan.model[e * sim.sizes.models + m, at.M_TIMEOUT] < np.inf:
            _expire(sim, e, g, m, now_s)
            if x.queued[g, m] == 0:
                break
        rows = _batch_rows(sim, e, g, m, now_s)
        if rows == 0:
            break
        _start(sim, e, g, m, rows, now_s)


@inlined
def finish(sim: Sim, e: int, g: int, slot: int, now_s: float) -> None:
    """A batch was executed: its requests have their answers."""
    x = sim.state
    m = x.slot_model[g, slot]
    took_s = now_s - x.slot_start_s[g, slot]
    requests = 0
    k = x.slot_head[g, slot]
    while k >= 0:
        following = x.next[e, k]
        if x.status[e, k] == UNFINISHED:
            end(sim, e, k, _OK, now_s)
            if sim.plan.env[e, at.E_EXTRAS] and sim.demand.responses[e, k] > 0:
                began_s = x.slot_began_s[g, slot]
                x.first_s[e, k] = began_s + (now_s - began_s) * sim.demand.first_share[e, k]
        requests += 1
        k = following
    x.slot_state[g, slot] = at.FREE
    x.executing[g, m] -= requests
    x.whole[g, at.EXECUTING] -= requests
    log_execution(sim, e, g, m, x.slot_rows[g, slot], requests, took_s)
    x.compute_s[g, m] += took_s * requests
    x.busy_instances[g, m] -= 1
