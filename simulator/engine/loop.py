"""The engine's loop: events in order, until a request needs a decision or all is over. What Python calls is here."""

import math

import numpy as np

from balancer.kernel import limits_and_draw
from balancer.kernel.state import Options
from balancer.scheduler.holding import wait_queue
from simulator.engine import batcher, device, faults, generating, knowledge, reports, sequences
from simulator.engine import layout as at
from simulator.engine.calls import call
from simulator.engine.coming import arrive, assign, count_eligible, meet, meet_sequence, place, request_of, uniform_of
from simulator.engine.compiled import compiled, from_source, inlined, outlined
from simulator.engine.event_heap import pop, push
from simulator.engine.layout import Sim
from simulator.engine.leaving import give_up, hear_void
from simulator.engine.requests import UNAVAILABLE, UNFINISHED, count_coming, end, fail, generates, uniform
from simulator.engine.sequences import in_sequence
from simulator.result import Status

_draw, _is_held_model = from_source(limits_and_draw.draw), from_source(wait_queue.is_held_model)
_SEEN_BY_HOLDER = (
    *(at.TICK, at.FAULT, at.FAULT_END, at.OUTCOME, at.GIVE_UP),
    *(at.LEFT, at.HELD_LONG, at.PEER, at.REPORT, at.SCALE),
)
"""Events by which balancers learn something, or somebody has waited for long."""
_OK, _ERROR = int(Status.OK), int(Status.ERROR)


OUTSIDE = 0
"""In place of a decider's address: the caller decides."""


@inlined
def _reach(sim: Sim, e: int, k: int, now_s: float) -> int:
    """A request reaches the worker it was sent to; returns what the batcher must look at, as `_handle` does."""
    x = sim.state
    w = x.server[e, k]
    g = e * sim.sizes.workers + w
    if x.status[e, k] != UNFINISHED:
        return -1  # its client has given up
    count_coming(sim, e, k, -1)
    if not x.whole[g, at.UP] or x.loaded[g, sim.demand.model[e, k]] != at.LOADED:
        fail(sim, e, k, now_s)
    elif (
        x.real[g, at.ERROR_SHARE] > 0
        and uniform(sim, e, 6, (k << 3) | (x.attempts[e, k] - 1)) < x.real[g, at.ERROR_SHARE]
    ):
        end(sim, e, k, _ERROR, now_s)
    elif in_sequence(sim, e, k) and not sequences.is_known(sim, e, g, k):
        end(sim, e, k, at.REFUSED, now_s)
    elif batcher.enqueue(sim, e, g, k, now_s):
        if in_sequence(sim, e, k):
            sequences.begin(sim, e, g, k)
        return w * sim.sizes.models + sim.demand.model[e, k]
    else:
        fail(sim, e, k, now_s)
    return -1


@inlined
def _hear(sim: Sim, e: int, k: int, now_s: float) -> None:
    x = sim.state
    status = x.status[e, k]
    if generates(sim, e, sim.demand.model[e, k]):
        knowledge.hear_generated(sim, e, k, status == _OK, now_s)
    if status == at.REFUSED:
        hear_void(sim, e, k, now_s)
        return
    latency_s = x.resolved_s[e, k] - x.sent_s[e, k]
    if status in (UNAVAILABLE, at.LOST) or (sim.plan.env[e, at.E_EXTRAS] and sim.demand.responses[e, k] > 0):
        latency_s = math.nan
    x.received[e, x.counts[e, at.RECEIVED]] = k
    x.counts[e, at.RECEIVED] += 1
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
    if kind == at.SAMPLE:
        reports.take_sample(sim, e, subject, now_s)
    elif kind == at.REPORT:
        way, number = subject >> at.REPORT_BITS, subject & ((1 << at.REPORT_BITS) - 1)
        w, b = way // knowledge.balancers(sim, e), way % knowledge.balancers(sim, e)
        place = reports.find_snapshot(sim, e, w, number)
        if place >= 0:
            reports.receive(sim, e, b, w, place, now_s)
    elif kind == at.PEER:
        knowledge.hear_peer(sim, e, subject, now_s)
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
    elif kind == at.GIVE_UP:
        give_up(sim, e, subject, now_s)
    elif kind == at.LEFT:
        sim.state.counts[e, at.LEAVING] -= 1
        hear_void(sim, e, subject, now_s)


@inlined
def _finish(sim: Sim, e: int, g: int, now_s: float) -> int:
    """The execution that is due on the device ends; returns its model."""
    slot = sim.state.whole[g, at.NEXT_SLOT]
    device.leave(sim, e, g, now_s)
    m = sim.state.slot_model[g, slot]
    if generates(sim, e, m):
        generating.finish(sim, e, g, slot, now_s)
    else:
        batcher.finish(sim, e, g, slot, now_s)
    return int(m)


@inlined
def _look(sim: Sim, e: int, g: int, m: int, now_s: float) -> None:
    if generates(sim, e, m):
        generating.look(sim, e, g, m, now_s)
    else:
        batcher.look(sim, e, g, m, now_s)


@inlined
def _handle(sim: Sim, e: int, kind: int, subject: int, now_s: float) -> int:
    """One event; returns the worker and model (`worker * models + model`) that the batcher must look at, or -1."""
    x, n, models = sim.state, sim.sizes.workers, sim.sizes.models
    if kind == at.DEVICE_DONE:
        if x.real[e * n + subject, at.DEVICE_END] == now_s:
            return subject * models + _finish(sim, e, e * n + subject, now_s)
    elif kind == at.HOST_DONE:
        g, slot = e * n + subject // sim.sizes.slots, subject % sim.sizes.slots
        if x.slot_state[g, slot] == at.ON_HOST and x.slot_ready_s[g, slot] == now_s:
            device.enqueue(sim, e, g, slot, now_s)
    elif kind == at.TIMER:
        g, m = e * n + subject // models, subject % models
        if x.timer_s[g, m] == now_s:
            x.timer_s[g, m] = np.inf
            return subject
    elif kind == at.REACH:
        return _reach(sim, e, subject, now_s)
    elif kind == at.FIRST_TOKEN:
        knowledge.hear_first_token(sim, e, subject, now_s)
    else:
        _handle_rare(sim, e, kind, subject, now_s)
    return -1


@inlined
def _next(sim: Sim, e: int) -> tuple[float, int, int]:
    """Take the next event: time, kind and subject. Of an arrival that is the request, and of an answer in a closed loop
    the request that follows: the number of requests where none is left."""
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
        if kind == at.ANSWER:
            subject = x.counts[e, at.NEXT_ANSWERED]
            x.counts[e, at.NEXT_ANSWERED] = min(subject + 1, sim.sizes.requests)
    elif kind == at.OUTCOME:
        x.counts[e, at.OUTCOME_HEAD] = x.next[e, subject]
    elif kind == at.REACH:
        x.counts[e, at.REACH_HEAD] = x.next[e, subject]
    else:
        x.counts[e, at.NEXT_ARRIVAL] = subject + 1
    return at_s, kind, subject


@inlined
def _ask(sim: Sim, e: int, k: int, now_s: float) -> None:
    a, d = sim.pending, sim.demand
    b = d.balancer[e, k]
    a.model[e], a.balancer[e], a.rows[e], a.key[e] = d.model[e, k], b, d.rows[e, k], d.key[e, k]
    a.deadline_s[e], a.priority[e], a.now_s[e] = d.deadline_s[e, k], d.priority[e, k], now_s
    a.prompt_tokens[e] = request_of(sim, e, k, now_s).prompt_tokens
    a.number[e] = sim.known.number[e, b]
    a.sequence[e] = in_sequence(sim, e, k)
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


@outlined
def _attend(sim: Sim, e: int, kind: int, subject: int, options: Options, now_s: float) -> None:
    """See to those who are held, after an event; see `holding.py`."""
    event = (np.int64(kind) << at.KIND_BITS) | np.int64(subject)
    call(int(sim.plan.env[e, at.E_HOLDER]), sim, options, e, event, now_s)


@outlined
def _come_in_sequence(sim: Sim, e: int, k: int, now_s: float) -> bool:
    """A request of a sequence arrives, whose worker no policy picks; returns whether the caller is to send it there."""
    w = meet_sequence(sim, e, k, now_s)
    if w >= 0 and sim.plan.env[e, at.E_SEQUENCES_OUTSIDE]:
        sim.state.counts[e, at.DECIDING] = k
        _ask(sim, e, k, now_s)
        return True
    if w >= 0:
        assign(sim, e, k, w, now_s)
    return False


@inlined
def _come(sim: Sim, e: int, k: int, decider: int, options: Options, now_s: float) -> bool:
    """A request arrives; returns whether the caller is to decide it."""
    arrive(sim, e, k, now_s)
    if in_sequence(sim, e, k):
        return _come_in_sequence(sim, e, k, now_s)
    if count_eligible(sim, e, k, now_s) == 0:
        return False
    sticks = sim.plan.env[e, at.E_STICKY] > 0 and sim.demand.key[e, k] != 0
    if sim.plan.env[e, at.E_HOLDER] > 0 and not sticks and _is_held_model(sim.held, e, sim.demand.model[e, k]):
        _attend(sim, e, at.ARRIVAL, k, options, now_s)
    elif decider != OUTSIDE:
        place(sim, e, k, decider, options, now_s)
    elif meet(sim, e, k, now_s):
        sim.state.counts[e, at.DECIDING] = k
        _ask(sim, e, k, now_s)
        return True
    return False


@compiled
def begin(sim: Sim, e: int) -> None:
    """Time 0: balancers know the present workers, tick, and hear their reports."""
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
    deciding, models = 0, sim.sizes.models
    for e in range(waiting.size):
        if not waiting[e]:
            continue
        x, counts = sim.state, sim.state.counts[e]
        if counts[at.DECIDING] >= 0:
            assign(sim, e, counts[at.DECIDING], workers[e], x.clock[e, at.NOW])
        counts[at.DECIDING] = -1
        waiting[e] = False
        while counts[at.ENDED] < sim.sizes.requests or counts[at.OUTCOME_HEAD] >= 0 or counts[at.LEAVING] > 0:
            now_s, kind, subject = _next(sim, e)
            x.clock[e, at.NOW] = now_s
            if kind >= at.ANSWER:
                if subject < sim.sizes.requests and _come(sim, e, subject, decider, options, now_s):
                    waiting[e] = True
                    deciding += 1
                    break
            elif kind == at.OUTCOME:
                _hear(sim, e, subject, now_s)
            elif kind in (at.TICK, at.SAMPLE, at.REPORT, at.SCALE, at.TIMELINE) and _is_stuck(sim, e):
                break
            else:
                place = _handle(sim, e, kind, subject, now_s)
                if place >= 0:
                    _look(sim, e, e * sim.sizes.workers + place // models, place % models, now_s)
            if sim.plan.env[e, at.E_HOLDER] > 0 and kind in _SEEN_BY_HOLDER:
                _attend(sim, e, kind, subject, options, now_s)
    return deciding


@compiled
def draw(probabilities: np.ndarray, uniform: np.ndarray, choices: np.ndarray) -> None:
    """`Router.route`'s draw for each row of `(e, n)` by its number in `(e,)`; -1 where all are zero."""
    for e in range(uniform.size):
        choices[e] = _draw(probabilities[e], uniform[e])
