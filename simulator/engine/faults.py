"""What befalls workers: faults begin and end, and the autoscaler adds and drains."""

import numpy as np

from simulator.engine import device, generating
from simulator.engine import layout as at
from simulator.engine.compiled import inlined, outlined
from simulator.engine.event_heap import push
from simulator.engine.knowledge import announce, lose_reports
from simulator.engine.layout import Sim
from simulator.engine.reports import report_again
from simulator.engine.requests import UNFINISHED, end


@inlined
def _change_speed(sim: Sim, e: int, g: int, slowness: float, stalled: int, now_s: float) -> None:
    device.bring_up_to_date(sim, g, now_s)
    sim.state.real[g, at.SLOWNESS] = slowness
    sim.state.whole[g, at.STALLED] = stalled
    device.schedule(sim, e, g, now_s)


@inlined
def _lose(sim: Sim, e: int, k: int, now_s: float) -> None:
    while k >= 0:
        following = sim.state.next[e, k]
        if sim.state.status[e, k] == UNFINISHED:
            end(sim, e, k, at.LOST, now_s)
        k = following


@outlined
def _crash(sim: Sim, e: int, w: int, now_s: float) -> None:
    x = sim.state
    g = e * sim.sizes.workers + w
    device.bring_up_to_date(sim, g, now_s)
    for m in range(sim.sizes.models):
        for level in range(sim.sizes.levels + 1):
            if x.queue_count[g, m, level] > 0:
                _lose(sim, e, x.queue_head[g, m, level], now_s)
                x.queue_count[g, m, level] = 0
    for slot in range(sim.sizes.slots):
        if x.slot_state[g, slot] != at.FREE:
            _lose(sim, e, x.slot_head[g, slot], now_s)
            x.slot_state[g, slot] = at.FREE
    for m in range(sim.sizes.models):
        x.queued[g, m], x.executing[g, m], x.busy_instances[g, m] = 0, 0, 0
        x.timer_s[g, m] = np.inf
        x.compute_s[g, m] = 0.0
        x.model_epoch[g, m] += 1
    for column in (at.ACTIVE, at.WAITING, at.QUEUED, at.EXECUTING, at.SAMPLED, at.STARTED_UP, at.UP):
        x.whole[g, column] = 0
    for column in (at.LOGGED, at.PROMPTS):
        x.whole[g, column] = 0
    x.whole[g, at.INCARNATION] += 1
    x.real[g, at.DEVICE_END] = np.inf
    x.cache[g] = 0
    generating.forget(sim, g)
    lose_reports(sim, e, w)


@outlined
def begin(sim: Sim, e: int, i: int, now_s: float) -> None:
    x, plan = sim.state, sim.plan
    kind, w = plan.fault_kind[e, i], plan.fault_worker[e, i]
    g = e * sim.sizes.workers + w
    if kind == at.SLOW:
        _change_speed(sim, e, g, plan.fault_amount[e, i], x.whole[g, at.STALLED], now_s)
    elif kind == at.STALL:
        _change_speed(sim, e, g, x.real[g, at.SLOWNESS], 1, now_s)
    elif kind == at.CRASH and x.whole[g, at.UP]:
        _crash(sim, e, w, now_s)
    elif kind == at.ERRORS:
        x.real[g, at.ERROR_SHARE] = plan.fault_amount[e, i]
    elif kind == at.JOIN and not x.whole[g, at.JOINED]:
        _join(sim, e, w)
    elif kind == at.LEAVE and x.whole[g, at.JOINED]:
        x.whole[g, at.DRAINING] = 1
        announce(sim, e, w, True)
    elif kind == at.SILENT:
        x.whole[g, at.IS_SILENT] = 1
        lose_reports(sim, e, w)
    elif kind == at.UNLOAD and x.loaded[g, plan.fault_model[e, i]] == at.LOADED:
        x.loaded[g, plan.fault_model[e, i]] = at.UNLOADED
        x.model_epoch[g, plan.fault_model[e, i]] += 1
    if plan.fault_until_s[e, i] < np.inf:
        push(sim.heap, e, plan.fault_until_s[e, i], at.FAULT_END, i)


@outlined
def cease(sim: Sim, e: int, i: int, now_s: float) -> None:
    """Fault `i` ends; an index past the faults is that of a worker which the autoscaler added and is ready now."""
    x, plan = sim.state, sim.plan
    faults = int(plan.env[e, at.E_FAULTS])
    if i >= faults:
        _be_ready(sim, e, i - faults, now_s)
        return
    kind, w = plan.fault_kind[e, i], plan.fault_worker[e, i]
    g = e * sim.sizes.workers + w
    if kind == at.SLOW:
        _change_speed(sim, e, g, 1.0, x.whole[g, at.STALLED], now_s)
    elif kind == at.STALL:
        _change_speed(sim, e, g, x.real[g, at.SLOWNESS], 0, now_s)
    elif kind == at.CRASH and x.whole[g, at.READY] and not x.whole[g, at.UP]:
        _come_up(sim, e, w, now_s)
    elif kind == at.ERRORS:
        x.real[g, at.ERROR_SHARE] = 0.0
    elif kind == at.JOIN:
        _be_ready(sim, e, w, now_s)
    elif kind == at.SILENT and x.whole[g, at.IS_SILENT]:
        x.whole[g, at.IS_SILENT] = 0
        report_again(sim, e, w, now_s)
    elif kind == at.LOAD or (kind == at.UNLOAD and x.loaded[g, plan.fault_model[e, i]] == at.UNLOADED):
        x.loaded[g, plan.fault_model[e, i]] = at.LOADED


@inlined
def _come_up(sim: Sim, e: int, w: int, now_s: float) -> None:
    g = e * sim.sizes.workers + w
    sim.state.whole[g, at.READY] = 1
    sim.state.whole[g, at.UP] = 1
    report_again(sim, e, w, now_s)


@outlined
def _be_ready(sim: Sim, e: int, w: int, now_s: float) -> None:
    """One that is loading has loaded; a fault and the autoscaler may both have had it join."""
    x, g = sim.state, e * sim.sizes.workers + w
    if x.whole[g, at.JOINED] and not x.whole[g, at.READY]:
        _come_up(sim, e, w, now_s)


@inlined
def _join(sim: Sim, e: int, w: int) -> None:
    g = e * sim.sizes.workers + w
    sim.state.whole[g, at.JOINED] = 1
    announce(sim, e, w, False)


@outlined
def scale(sim: Sim, e: int, now_s: float) -> None:
    x, env, n = sim.state, sim.plan.env, sim.sizes.workers
    period_s = env[e, at.E_SCALE_PERIOD]
    push(sim.heap, e, (round(now_s / period_s) + 1) * period_s, at.SCALE, 0)
    serving, pending, absent, drained, last = 0, 0, -1, -1, -1
    for w in range(n):
        whole = x.whole[e * n + w]
        if not whole[at.JOINED]:
            if absent < 0 and sim.plan.worker[e * n + w, at.W_EXISTS]:
                absent = w
        elif whole[at.DRAINING]:
            if drained < 0:
                drained = w
        elif whole[at.UP]:
            serving += 1
            pending += whole[at.QUEUED] + whole[at.EXECUTING]
            last = w
    if serving == 0:
        return
    mean = pending / serving
    if mean > env[e, at.E_SCALE_UP]:
        if absent >= 0:
            _join(sim, e, absent)
            push(sim.heap, e, now_s + env[e, at.E_SCALE_LOAD], at.FAULT_END, int(env[e, at.E_FAULTS]) + absent)
        elif drained >= 0:
            x.whole[e * n + drained, at.DRAINING] = 0
            announce(sim, e, drained, False)
    elif mean < env[e, at.E_SCALE_DOWN] and serving > env[e, at.E_SCALE_LEAST]:
        x.whole[e * n + last, at.DRAINING] = 1
        announce(sim, e, last, True)
