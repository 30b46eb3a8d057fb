"""The engine's loop: events in order, until a request needs a decision or all is over. What Python calls is here."""

from __future__ import annotations

import math

import numpy as np

from balancer.core.kernel import picking
from balancer.core.kernel.state import Ask, Options
from simulator.engine import batcher, device, faults, knowledge, reports
from simulator.engine import layout as at
from simulator.engine.calls import call
from simulator.engine.compiled import compiled, from_source, inlined, mix, outlined
from simulator.engine.heap import pop, push
from simulator.engine.layout import Sim
from simulator.engine.requests import UNAVAILABLE, count_coming, count_system, end, fail, send, uniform
from simulator.result import Status

_draw, _name_fallbacks = from_source(picking.draw), from_source(picking.name_fallbacks)
_keep_within_limits, _uniform_of = from_source(picking.keep_within_limits), from_source(picking.uniform_of)
_OK, _ERROR, _SHED, _NO_WORKER = int(Status.OK), int(Status.ERROR), int(Status.SHED), int(Status.NO_WORKER)


OUTSIDE = 0
"""In place of a decider's address: the caller decides."""


@inlined
def _refuse(sim: Sim, e: int, k: int, status: int, now_s: float) -> None:
    """A request ends where it arrived."""
    x = sim.state
    x.status[e, k] = status
    x.resolved_s[e, k] = now_s
    x.picked[e, k] = x.server[e, k] = -1
    x.counts[e, at.ENDED] += 1
    count_system(sim, e, -1, now_s)
    if sim.plan.env[e, at.E_CLIENTS] > 0:
        push(sim.heap, e, now_s, at.ANSWER, 0)


@inlined
def ask_of(sim: Sim, e: int, k: int) -> Ask:
    """The request as the kernel takes it; a key of 0 is none."""
    d = sim.demand
    number, key = sim.known.number[e, d.balancer[e, k]], d.key[e, k]
    keyed = 1.0 if key != 0 else 0.0
    mixed = mix(key if key != 0 else np.uint64(number))
    return Ask(d.model[e, k], d.rows[e, k], mixed, keyed, d.deadline_s[e, k], d.priority[e, k], number)


@inlined
def uniform_of(sim: Sim, e: int, b: int) -> float:
    """The lot of a balancer's next decision."""
    return _uniform_of(sim.plan.router_seed[e, b], np.uint64(sim.known.number[e, b]))


@outlined
def _within_limits(sim: Sim, e: int, k: int, b: int, now_s: float) -> int:
    return _keep_within_limits(sim, e, knowledge.row(sim, e, b, 0), ask_of(sim, e, k), now_s)


@inlined
def _arrive(sim: Sim, e: int, k: int, now_s: float) -> int:
    """A request arrives; returns how many workers may be picked for it, 0 where it was refused."""
    x, known = sim.state, sim.known
    x.arrived_s[e, k] = now_s
    count_system(sim, e, 1, now_s)
    b = sim.demand.balancer[e, k]
    if sim.plan.env[e, at.E_EXACT]:
        knowledge.know_exactly(sim, e, b, now_s)
    if now_s > known.fresh_until_s[e, b]:
        knowledge.look_who_is_eligible(sim, e, b, now_s)
    line = (e * sim.sizes.balancers + b) * sim.sizes.models + sim.demand.model[e, k]
    count = known.eligible_count[line]
    if count == 0:
        known.number[e, b] += 1
        _refuse(sim, e, k, _NO_WORKER, now_s)
        return 0
    for w in range(sim.sizes.workers):
        sim.desk.mask[e, w] = known.eligible[line, w]
    count = _within_limits(sim, e, k, b, now_s)
    if count == 0:
        known.number[e, b] += 1
        _refuse(sim, e, k, _SHED, now_s)
    return count


@outlined
def _name_those_after(sim: Sim, e: int, k: int, w: int, now_s: float) -> None:
    first = knowledge.row(sim, e, sim.demand.balancer[e, k], 0)
    _name_fallbacks(sim, e, first, w, ask_of(sim, e, k), now_s, sim.state.fallback[e, k])


@inlined
def _assign(sim: Sim, e: int, k: int, w: int, now_s: float) -> None:
    """A decision is made: worker `w`, or -1 to shed."""
    d = sim.demand
    sim.known.number[e, d.balancer[e, k]] += 1
    if w < 0:
        _refuse(sim, e, k, _SHED, now_s)
        return
    sim.state.picked[e, k] = w
    if sim.plan.env[e, at.E_FALLIBLE]:
        _name_those_after(sim, e, k, w, now_s)
    knowledge.count_in(sim, e, knowledge.row(sim, e, d.balancer[e, k], w), d.model[e, k], d.rows[e, k], now_s)
    send(sim, e, k, w, now_s)


@inlined
def _reach(sim: Sim, e: int, k: int, now_s: float) -> int:
    """A request reaches the worker it was sent to; returns what the batcher must look at, as `_handle` does."""
    x = sim.state
    w = x.server[e, k]
    g = e * sim.sizes.workers + w
    count_coming(sim, e, k, -1)
    if not x.whole[g, at.UP] or sim.plan.table[g, sim.demand.model[e, k]] < 0:
        fail(sim, e, k, now_s)
    elif (
        x.real[g, at.ERROR_SHARE] > 0
        and uniform(sim, e, 6, (k << 3) | (x.attempts[e, k] - 1)) < x.real[g, at.ERROR_SHARE]
    ):
        end(sim, e, k, _ERROR, now_s)
    elif batcher.enqueue(sim, e, g, k, now_s):
        return w * sim.sizes.models + sim.demand.model[e, k]
    else:
        fail(sim, e, k, now_s)
    return -1


@inlined
def _hear(sim: Sim, e: int, k: int, now_s: float) -> None:
    """A balancer hears how a request ended."""
    x = sim.state
    status = x.status[e, k]
    latency_s = x.resolved_s[e, k] - x.sent_s[e, k]
    if status in (UNAVAILABLE, faults.LOST):
        latency_s = math.nan
    x.heard[e, x.counts[e, at.HEARD]] = k
    x.counts[e, at.HEARD] += 1
    knowledge.observe_outcome(sim, e, k, latency_s, status == _OK, now_s)


@outlined
def _record_timeline(sim: Sim, e: int, now_s: float) -> None:
    x = sim.state
    line = x.counts[e, at.TIMELINE_ROW]
    if line < x.timeline.shape[1]:
        for w in range(sim.sizes.workers):
            whole = x.whole[e * sim.sizes.workers + w]
            x.timeline[e, line, w] = whole[at.QUEUED] + whole[at.EXECUTING]
        x.counts[e, at.TIMELINE_ROW] = line + 1
        push(sim.heap, e, (line + 1) * sim.plan.env[e, at.E_TIMELINE], at.TIMELINE, 0)


@outlined
def _handle_rare(sim: Sim, e: int, kind: int, subject: int, now_s: float) -> None:
    """An event that concerns no request."""
    if kind == at.SAMPLE:
        reports.take_sample(sim, e, subject, now_s)
    elif kind == at.REPORT:
        way, number = subject >> at.REPORT_BITS, subject & ((1 << at.REPORT_BITS) - 1)
        w, b = way // knowledge.balancers(sim, e), way % knowledge.balancers(sim, e)
        place = reports.find_snapshot(sim, e, w, number)
        if place >= 0:
            reports.receive(sim, e, b, w, place, now_s)
    elif kind == at.TICK:
        knowledge.fade_all(sim, e)
        push(sim.heap, e, now_s + 1.0, at.TICK, 0)
    elif kind == at.FAULT:
        faults.begin(sim, e, subject, now_s)
    elif kind == at.FAULT_END:
        faults.cease(sim, e, subject, now_s)
    elif kind == at.SCALE:
        faults.scale(sim, e, now_s)
    elif kind == at.TIMELINE:
        _record_timeline(sim, e, now_s)


@inlined
def _handle(sim: Sim, e: int, kind: int, subject: int, now_s: float) -> int:
    """One event; returns the worker and model (`worker * models + model`) that the batcher must look at, or -1."""
    x, n, models = sim.state, sim.sizes.workers, sim.sizes.models
    if kind == at.DEVICE_DONE:
        if x.real[e * n + subject, at.DEVICE_END] == now_s:
            return subject * models + batcher.finish(sim, e, e * n + subject, now_s)
    elif kind == at.HOST_DONE:
        g, slot = e * n + subject // sim.sizes.slots, subject % sim.sizes.slots
        if x.slot_state[g, slot] == at.ON_HOST and x.slot_ready_s[g, slot] == now_s:
            device.ask(sim, e, g, slot, now_s)
    elif kind == at.TIMER:
        g, m = e * n + subject // models, subject % models
        if x.timer_s[g, m] == now_s:
            x.timer_s[g, m] = np.inf
            return subject
    elif kind == at.REACH:
        return _reach(sim, e, subject, now_s)
    else:
        _handle_rare(sim, e, kind, subject, now_s)
    return -1


@inlined
def _next(sim: Sim, e: int) -> tuple[float, int, int]:
    """Take the next event: time, kind and subject; an arrival's subject is the request."""
    x, env = sim.state, sim.plan.env
    requests = sim.sizes.requests
    if env[e, at.E_CLIENTS] > 0:
        requests = min(requests, int(env[e, at.E_CLIENTS]))
    at_s, kind, subject, from_heap = np.inf, at.ARRIVAL, x.counts[e, at.NEXT_ARRIVAL], False
    if subject < requests:
        at_s = sim.demand.time_s[e, subject]
    if sim.heap.at_s[e, 0] <= at_s:
        at_s, payload, from_heap = sim.heap.at_s[e, 0], sim.heap.payload[e, 0], True
        kind, subject = payload >> at.KIND_BITS, payload & ((1 << at.KIND_BITS) - 1)
    head = x.counts[e, at.OUTCOME_HEAD]
    if head >= 0:
        then_s = x.resolved_s[e, head] + env[e, at.E_OUTCOME]
        if then_s < at_s or (then_s == at_s and kind > at.OUTCOME):
            at_s, kind, subject, from_heap = then_s, at.OUTCOME, head, False
    head = x.counts[e, at.REACH_HEAD]
    if head >= 0:
        then_s = x.sent_s[e, head] + env[e, at.E_TO_WORKER]
        if then_s < at_s or (then_s == at_s and kind > at.REACH):
            at_s, kind, subject, from_heap = then_s, at.REACH, head, False
    if from_heap:
        pop(sim.heap, e)
    elif kind == at.OUTCOME:
        x.counts[e, at.OUTCOME_HEAD] = x.next[e, subject]
    elif kind == at.REACH:
        x.counts[e, at.REACH_HEAD] = x.next[e, subject]
    else:
        x.counts[e, at.NEXT_ARRIVAL] = subject + 1
    return at_s, kind, subject


@inlined
def _ask(sim: Sim, e: int, k: int, now_s: float) -> None:
    """Lay out what waits for a decision."""
    a, d = sim.asked, sim.demand
    b = d.balancer[e, k]
    a.model[e], a.balancer[e], a.rows[e], a.key[e] = d.model[e, k], b, d.rows[e, k], d.key[e, k]
    a.deadline_s[e], a.priority[e], a.now_s[e] = d.deadline_s[e, k], d.priority[e, k], now_s
    a.number[e] = sim.known.number[e, b]
    a.uniform[e] = uniform_of(sim, e, b)


@inlined
def _is_stuck(sim: Sim, e: int) -> bool:
    """Whether nothing will come but what comes for ever: requests are left on a worker that is stalled for good."""
    count = sim.state.counts
    scheduled = sim.sizes.requests
    if sim.plan.env[e, at.E_CLIENTS] > 0:
        scheduled = min(scheduled, int(sim.plan.env[e, at.E_CLIENTS]))
    nothing_comes = sim.heap.lasting[e] == 0 and count[e, at.NEXT_ARRIVAL] >= scheduled
    return nothing_comes and count[e, at.OUTCOME_HEAD] < 0 and count[e, at.REACH_HEAD] < 0


@inlined
def _advance(sim: Sim, e: int, decider: int, options: Options) -> bool:
    """Go on to the next decision (True; never where the engine decides itself), or to the end (False)."""
    x, models = sim.state, sim.sizes.models
    while x.counts[e, at.ENDED] < sim.sizes.requests or x.counts[e, at.OUTCOME_HEAD] >= 0:
        now_s, kind, subject = _next(sim, e)
        x.clock[e, at.NOW] = now_s
        if kind == at.ANSWER:
            if x.counts[e, at.NEXT_ANSWERED] == sim.sizes.requests:
                continue
            subject = x.counts[e, at.NEXT_ANSWERED]
            x.counts[e, at.NEXT_ANSWERED] = subject + 1
        if kind == at.OUTCOME:
            _hear(sim, e, subject, now_s)
        elif kind >= at.ANSWER:
            count = _arrive(sim, e, subject, now_s)
            if count > 0:
                x.counts[e, at.DECIDING] = subject
                if decider == OUTSIDE:
                    _ask(sim, e, subject, now_s)
                    return True
                _assign(sim, e, subject, call(decider, sim, options, e, subject, now_s), now_s)
                x.counts[e, at.DECIDING] = -1
        elif kind in (at.TICK, at.SAMPLE, at.REPORT, at.SCALE, at.TIMELINE) and _is_stuck(sim, e):
            break
        else:
            place = _handle(sim, e, kind, subject, now_s)
            if place >= 0:
                batcher.look(sim, e, e * sim.sizes.workers + place // models, place % models, now_s)
    x.counts[e, at.DECIDING] = -1
    return False


@compiled
def begin(sim: Sim, e: int) -> None:
    """Time 0: balancers know the present workers, tick, and hear their reports; see README.md."""
    x, n = sim.state, sim.sizes.workers
    for w in range(n):
        for b in range(knowledge.balancers(sim, e)):
            sim.known.added[knowledge.row(sim, e, b, w)] = x.whole[e * n + w, at.UP]
    knowledge.fade_all(sim, e)
    for w in range(n):
        if x.whole[e * n + w, at.UP]:
            place = reports.sample(sim, e, w, 0.0)
            for b in range(knowledge.balancers(sim, e)):
                reports.receive(sim, e, b, w, place, 0.0)
            reports.next_sample(sim, e, w, 0.0)
    push(sim.heap, e, 1.0, at.TICK, 0)
    env = sim.plan.env
    for i in range(int(env[e, at.E_FAULTS])):
        push(sim.heap, e, sim.plan.fault_at_s[e, i], at.FAULT, i)
    if env[e, at.E_SCALE_PERIOD] < np.inf:
        push(sim.heap, e, env[e, at.E_SCALE_PERIOD], at.SCALE, 0)
    if env[e, at.E_TIMELINE] > 0:
        push(sim.heap, e, 0.0, at.TIMELINE, 0)


@compiled
def advance(sim: Sim, workers: np.ndarray, waiting: np.ndarray, decider: int, options: Options) -> int:
    """In each environment of `waiting`: send what waits to its worker of `workers` (-1: shed), and go on to the next
    decision, or with the decider at an address to the end; `(e,)` each.

    Sets `waiting` to those that wait for a decision now, and returns how many they are.
    """
    deciding = 0
    for e in range(waiting.size):
        if waiting[e]:
            k = sim.state.counts[e, at.DECIDING]
            if k >= 0:
                _assign(sim, e, k, workers[e], sim.state.clock[e, at.NOW])
            waiting[e] = _advance(sim, e, decider, options)
            deciding += waiting[e]
    return deciding


@compiled
def draw(probabilities: np.ndarray, uniform: np.ndarray, choices: np.ndarray) -> None:
    """`Router.route`'s draw for each row of `(e, n)` by its number in `(e,)`; -1 where all are zero."""
    for e in range(uniform.size):
        choices[e] = _draw(probabilities[e], uniform[e])
