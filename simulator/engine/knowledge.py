"""What balancers know: reports taken, sent and received; outcomes; eligibility. The estimators are the core's own."""

from __future__ import annotations

import math

import numpy as np

from simulator.engine.compiled import (
    TokenLimits,
    batch_work_s,
    exponential,
    inlined,
    latency_observe,
    outlined,
    queue_ended,
    queue_reported,
    queue_sent,
    recount,
    service_fit,
    service_observe,
    tokens_advance,
    tokens_take,
)
from simulator.engine.heap import push
from simulator.engine.layout import (
    E_CAPACITY,
    E_DEFAULT_S,
    E_DELAY,
    E_ERROR_DECAY,
    E_FADE,
    E_JITTER,
    E_LATENCY_DECAY,
    E_LOSS,
    E_MEMORY,
    E_PERIOD,
    E_REFILL,
    E_REQUIRED,
    E_SAMPLES,
    E_STALE,
    E_TARGET,
    EPOCH,
    INCARNATION,
    IS_SILENT,
    LOGGED,
    M_MAX_ROWS,
    NEXT_SAMPLE,
    REPORT,
    REPORT_BITS,
    REPORT_NUMBER,
    SAMPLE,
    SAMPLED,
    UP,
    Sim,
)
from simulator.engine.requests import uniform

_ROW_SHARE = 0.3
_WELL_KNOWN = 5.0
_WARM_UP_EXECUTIONS = 3


@inlined
def row(sim: Sim, e: int, b: int, w: int) -> int:
    """Of worker `w` as balancer `b` knows it."""
    return (e * sim.sizes.balancers + b) * sim.sizes.workers + w


@inlined
def _refill(sim: Sim, e: int, r: int, now_s: float) -> None:
    """`Fleet._refill`."""
    env = sim.plan.env
    limits = TokenLimits(env[e, E_CAPACITY], env[e, E_REFILL], env[e, E_TARGET])
    tokens_advance(sim.tokens, r, sim.queue.in_flight[r] + sim.queue.others[r], limits, now_s)


@inlined
def count_in(sim: Sim, e: int, k: int, w: int, now_s: float) -> None:
    """`Fleet.sent`: the deciding balancer counts its pick."""
    r = row(sim, e, sim.demand.balancer[e, k], w)
    queue_sent(sim.queue, sim.service, r, sim.demand.model[e, k], sim.demand.rows[e, k], now_s)
    _refill(sim, e, r, now_s)
    tokens_take(sim.tokens, r)


@inlined
def observe_outcome(sim: Sim, e: int, k: int, latency_s: float, ok: bool, now_s: float) -> None:
    """`Router._finished`; a latency of NaN is none."""
    x, env = sim.state, sim.plan.env
    b = sim.demand.balancer[e, k]
    picked, server = x.picked[e, k], x.server[e, k]
    r = row(sim, e, b, picked)
    queue_ended(sim.queue, sim.service, r, sim.demand.model[e, k], sim.demand.rows[e, k], now_s)
    _refill(sim, e, r, now_s)
    if server != picked:
        latency_observe(sim.latency, r, None, False, now_s, env[e, E_LATENCY_DECAY], env[e, E_ERROR_DECAY])
        r = row(sim, e, b, server)
    if math.isnan(latency_s):
        latency_observe(sim.latency, r, None, ok, now_s, env[e, E_LATENCY_DECAY], env[e, E_ERROR_DECAY])
    else:
        latency_observe(sim.latency, r, latency_s, ok, now_s, env[e, E_LATENCY_DECAY], env[e, E_ERROR_DECAY])


@inlined
def sample(sim: Sim, e: int, w: int, now_s: float) -> int:
    """The agent of a worker takes a report; returns its place in the ring."""
    x, models = sim.state, sim.sizes.models
    g = e * sim.sizes.workers + w
    number = x.whole[g, REPORT_NUMBER]
    x.whole[g, REPORT_NUMBER] = number + 1
    place = number % sim.sizes.snapshots
    x.snapshot[g, place, 0] = x.whole[g, LOGGED]
    x.snapshot[g, place, 1] = x.whole[g, EPOCH]
    x.snapshot[g, place, 2] = x.whole[g, INCARNATION]
    x.snapshot[g, place, 3] = number
    kept = int(sim.plan.env[e, E_SAMPLES])
    taken = x.whole[g, SAMPLED]
    oldest = (taken - min(taken, kept)) % kept
    for m in range(models):
        x.snapshot_pending[g, place, m] = x.queued[g, m]
        executing = 0.0
        if taken > 0:
            growth_s = x.compute_s[g, m] - x.sample_compute_s[g, oldest, m]
            elapsed_s = now_s - x.sample_s[g, oldest]
            if elapsed_s > 0:
                most = sim.plan.model[e * models + m, M_MAX_ROWS] * sim.plan.instances[g, m]
                executing = min(growth_s / elapsed_s, most)
        x.snapshot_executing[g, place, m] = executing
        x.sample_compute_s[g, taken % kept, m] = x.compute_s[g, m]
    x.sample_s[g, taken % kept] = now_s
    x.whole[g, SAMPLED] = taken + 1
    return place


@outlined
def send_report(sim: Sim, e: int, w: int, now_s: float) -> None:
    """Take a report and send it to every balancer."""
    x, env = sim.state, sim.plan.env
    place = sample(sim, e, w, now_s)
    number = x.snapshot[e * sim.sizes.workers + w, place, 3]
    for b in range(sim.sizes.balancers):
        way = w * sim.sizes.balancers + b
        k = (way << 40) | number
        if env[e, E_LOSS] > 0 and uniform(sim, e, 5, k) < env[e, E_LOSS]:
            continue
        at_s = now_s + env[e, E_DELAY]
        if env[e, E_JITTER] > 0:
            at_s += exponential(env[e, E_JITTER], uniform(sim, e, 4, k))
        push(sim.heap, e, at_s, REPORT, (way << REPORT_BITS) | (number & ((1 << REPORT_BITS) - 1)))


@inlined
def next_sample(sim: Sim, e: int, w: int, now_s: float) -> None:
    """Set the worker's next regular sample, after now."""
    period_s = sim.plan.env[e, E_PERIOD]
    phase = uniform(sim, e, 7, w)
    i = math.floor(now_s / period_s - phase) + 1
    at_s = (phase + i) * period_s
    while at_s <= now_s:
        i += 1
        at_s = (phase + i) * period_s
    sim.state.real[e * sim.sizes.workers + w, NEXT_SAMPLE] = at_s
    push(sim.heap, e, at_s, SAMPLE, w)


@outlined
def _learn(sim: Sim, e: int, r: int, g: int, m: int) -> None:
    """`Fleet._learn`: feed what was executed since the last report to the fit."""
    known = sim.known
    warm = known.executions_all[r, m] > _WARM_UP_EXECUTIONS
    learned = False
    for size in range(1, known.executions.shape[2]):
        new = known.executions[r, m, size] - known.executions_seen[r, m, size]
        if new > 0:
            if warm:
                seconds = known.seconds[r, m, size] - known.seconds_seen[r, m, size]
                service_observe(sim.service, r, m, size, new, seconds, sim.plan.env[e, E_MEMORY])
                learned = True
            known.executions_seen[r, m, size] = known.executions[r, m, size]
            known.seconds_seen[r, m, size] = known.seconds[r, m, size]
    if learned:
        recount(sim.queue, sim.service, r, m)


@inlined
def log_execution(sim: Sim, e: int, g: int, m: int, rows: int, seconds: float) -> None:
    """Count an execution that ended; whoever has not heard of the one that is overwritten learns of it now."""
    x, known = sim.state, sim.known
    logged = x.whole[g, LOGGED]
    place = logged % sim.sizes.log
    if logged >= sim.sizes.log:
        for b in range(sim.sizes.balancers):
            r = row(sim, e, b, g - e * sim.sizes.workers)
            if known.incarnation[r] == x.whole[g, INCARNATION] and known.position[r] == logged - sim.sizes.log:
                _count_execution(sim, r, g, place)
                known.position[r] += 1
    x.log_model[g, place] = m
    x.log_rows[g, place] = rows
    x.log_s[g, place] = seconds
    x.whole[g, LOGGED] = logged + 1


@inlined
def _count_execution(sim: Sim, r: int, g: int, place: int) -> None:
    known = sim.known
    m, rows = sim.state.log_model[g, place], sim.state.log_rows[g, place]
    known.executions[r, m, rows] += 1
    known.executions_all[r, m] += 1
    known.seconds[r, m, rows] += sim.state.log_s[g, place]


@outlined
def receive(sim: Sim, e: int, b: int, w: int, place: int, now_s: float) -> None:
    """`Fleet.report`: a balancer takes a report over; late ones, and those on the way when a stream broke, are lost."""
    x, known, s = sim.state, sim.known, sim.service
    g, r = e * sim.sizes.workers + w, row(sim, e, b, w)
    position, epoch, incarnation, number = x.snapshot[g, place]
    if epoch != x.whole[g, EPOCH] or number <= known.report_number[r]:
        return
    if incarnation != known.incarnation[r]:
        known.incarnation[r] = incarnation
        known.position[r] = 0
        known.executions[r], known.seconds[r] = 0.0, 0.0
        known.executions_seen[r], known.seconds_seen[r] = 0.0, 0.0
        known.executions_all[r] = 0.0
    known.report_number[r] = number
    for at in range(max(known.position[r], x.whole[g, LOGGED] - sim.sizes.log), position):
        _count_execution(sim, r, g, at % sim.sizes.log)
    some = position > known.position[r]
    known.position[r] = max(position, known.position[r])
    if not known.ready[r]:
        known.ready[r] = 1
        _forget_eligible(sim, e, b)
    pending, executing, work_s = 0.0, 0.0, 0.0
    for m in range(sim.sizes.models):
        if sim.plan.table[g, m] < 0:
            continue
        s.max_batch_rows[r, m] = sim.plan.model[e * sim.sizes.models + m, M_MAX_ROWS]
        s.instances[r, m] = sim.plan.instances[g, m]
        if some:
            _learn(sim, e, r, g, m)
        pending += x.snapshot_pending[g, place, m]
        executing += x.snapshot_executing[g, place, m]
        there = x.snapshot_pending[g, place, m] + x.snapshot_executing[g, place, m]
        if there > 0:
            work_s += batch_work_s(s, r, m, there)[1]
    queue_reported(sim.queue, r, pending, executing, work_s, sim.sizes.balancers, now_s)
    _refill(sim, e, r, now_s)
    if now_s - known.reported_s[r] > sim.plan.env[e, E_STALE]:
        _forget_eligible(sim, e, b)
    known.reported_s[r] = now_s


@inlined
def find_snapshot(sim: Sim, e: int, w: int, low_number: int) -> int:
    """The place in the ring of the report whose number ends in these bits; -1 where it was overwritten."""
    g = e * sim.sizes.workers + w
    span = 1 << REPORT_BITS
    last = sim.state.whole[g, REPORT_NUMBER] - 1
    number = last - ((last - low_number) % span)
    place = number % sim.sizes.snapshots
    return place if number >= 0 and sim.state.snapshot[g, place, 3] == number else -1


@outlined
def know_exactly(sim: Sim, e: int, b: int, now_s: float) -> None:
    """For the reference that knows every queue at every moment: what a report taken now would say of it."""
    x = sim.state
    for w in range(sim.sizes.workers):
        g, r = e * sim.sizes.workers + w, row(sim, e, b, w)
        if not sim.known.ready[r]:
            continue
        pending, executing, work_s = 0.0, 0.0, 0.0
        for m in range(sim.sizes.models):
            there = x.queued[g, m] + x.executing[g, m]
            pending += x.queued[g, m]
            executing += x.executing[g, m]
            if there > 0:
                work_s += batch_work_s(sim.service, r, m, there)[1]
        queue_reported(sim.queue, r, pending, executing, work_s, sim.sizes.balancers, now_s)


@inlined
def _forget_eligible(sim: Sim, e: int, b: int) -> None:
    sim.known.fresh_until_s[e, b] = -np.inf


@outlined
def lose_reports(sim: Sim, e: int, w: int) -> None:
    """`ReportsLost` at every balancer; what is on the way is lost too."""
    sim.state.whole[e * sim.sizes.workers + w, EPOCH] += 1
    for b in range(sim.sizes.balancers):
        sim.known.reported_s[row(sim, e, b, w)] = -np.inf
        _forget_eligible(sim, e, b)


@outlined
def announce(sim: Sim, e: int, w: int, draining: bool) -> None:
    """`WorkerAdded` at every balancer."""
    known = sim.known
    for b in range(sim.sizes.balancers):
        r = row(sim, e, b, w)
        if not known.added[r]:
            known.added[r] = 1
            fade(sim, e, b, 0.0)
        known.draining[r] = draining
        _forget_eligible(sim, e, b)


@outlined
def take_sample(sim: Sim, e: int, w: int, now_s: float) -> None:
    """A sample is due; one that is down or silent takes none, until `report_again`."""
    x = sim.state
    g = e * sim.sizes.workers + w
    if x.real[g, NEXT_SAMPLE] == now_s and x.whole[g, UP] and not x.whole[g, IS_SILENT]:
        send_report(sim, e, w, now_s)
        next_sample(sim, e, w, now_s)


@outlined
def report_again(sim: Sim, e: int, w: int, now_s: float) -> None:
    """A worker that is up and not silent takes a sample now, and regular ones from now on."""
    x = sim.state
    g = e * sim.sizes.workers + w
    if x.whole[g, UP] and not x.whole[g, IS_SILENT]:
        x.real[g, NEXT_SAMPLE] = now_s
        push(sim.heap, e, now_s, SAMPLE, w)


@outlined
def fade(sim: Sim, e: int, b: int, share: float) -> None:
    """`Fleet._fade`: forget a share of what was observed, renew the priors, fit and recount."""
    s, q, n, models = sim.service, sim.queue, sim.sizes.workers, sim.sizes.models
    first = row(sim, e, b, 0)
    default_s = sim.plan.env[e, E_DEFAULT_S]
    for m in range(models):
        fastest, least_s = -1, np.inf
        for r in range(first, first + n):
            s.weight[r, m] *= 1 - share
            s.rows[r, m] *= 1 - share
            s.rows_squared[r, m] *= 1 - share
            s.seconds[r, m] *= 1 - share
            s.rows_seconds[r, m] *= 1 - share
            if s.weight[r, m] >= _WELL_KNOWN and s.fixed_s[r, m] + s.per_row_s[r, m] < least_s:
                fastest, least_s = r, s.fixed_s[r, m] + s.per_row_s[r, m]
        fixed_s, per_row_s = default_s * (1 - _ROW_SHARE), default_s * _ROW_SHARE
        if fastest >= 0:
            fixed_s, per_row_s = s.fixed_s[fastest, m], s.per_row_s[fastest, m]
        for r in range(first, first + n):
            profiled = not math.isnan(s.profile_fixed_s[r, m])
            s.prior_fixed_s[r, m] = s.profile_fixed_s[r, m] if profiled else fixed_s
            s.prior_per_row_s[r, m] = s.profile_per_row_s[r, m] if profiled else per_row_s
            service_fit(s, (r, m))
    for r in range(first, first + n):
        q.batches[r], q.own_work_s[r] = 0.0, 0.0
        for m in range(models):
            batches, work_s = math.ceil(q.own_rows[r, m] / s.max_batch_rows[r, m]), 0.0
            work_s = (s.fixed_s[r, m] * batches + s.per_row_s[r, m] * q.own_rows[r, m]) / s.instances[r, m]
            q.own_batches[r, m], q.own_work_model_s[r, m] = batches, work_s
            q.batches[r] += batches
            q.own_work_s[r] += work_s


@outlined
def fade_all(sim: Sim, e: int) -> None:
    """`Router.tick` of every balancer."""
    for b in range(sim.sizes.balancers):
        fade(sim, e, b, sim.plan.env[e, E_FADE])


@inlined
def _servable(sim: Sim, e: int, r: int, w: int, m: int) -> bool:
    """`Fleet.objections`; without required reports, one that never reported is believed to have every model."""
    known = sim.known
    if known.draining[r] or not known.added[r]:
        return False
    if not known.ready[r]:
        return not sim.plan.env[e, E_REQUIRED]
    return sim.plan.table[e * sim.sizes.workers + w, m] >= 0


@outlined
def look_who_is_eligible(sim: Sim, e: int, b: int, now_s: float) -> None:
    """`Fleet.eligible` for every model: servable workers, stale ones only where no fresh one is left."""
    known, n = sim.known, sim.sizes.workers
    first = row(sim, e, b, 0)
    stale_after_s = sim.plan.env[e, E_STALE]
    oldest_s = np.inf
    for m in range(sim.sizes.models):
        mask = known.eligible[(e * sim.sizes.balancers + b) * sim.sizes.models + m]
        fresh = 0
        for w in range(n):
            r = first + w
            is_fresh = now_s - known.reported_s[r] <= stale_after_s
            mask[w] = _servable(sim, e, r, w, m) and (is_fresh or not sim.plan.env[e, E_REQUIRED])
            fresh += mask[w]
            if is_fresh:
                oldest_s = min(oldest_s, known.reported_s[r])
        if fresh == 0:
            for w in range(n):
                mask[w] = _servable(sim, e, first + w, w, m)
                fresh += mask[w]
        known.eligible_count[(e * sim.sizes.balancers + b) * sim.sizes.models + m] = fresh
    known.fresh_until_s[e, b] = oldest_s + stale_after_s
