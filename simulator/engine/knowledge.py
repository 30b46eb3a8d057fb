"""What balancers know and work out: picks and outcomes counted, service times fading, who is eligible. The estimators
are the core's own; reports come in `reports.py`.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.engine.compiled import (
    TokenLimits,
    batch_work_s,
    forget,
    inlined,
    known_s,
    latency_observe,
    outlined,
    queue_ended,
    queue_reported,
    queue_sent,
    recount_worker,
    rows_per_request,
    service_fit,
    set_prior,
    tokens_advance,
    tokens_take,
    unknown_s,
)
from simulator.engine.layout import (
    E_BALANCERS,
    E_CAPACITY,
    E_DEFAULT_S,
    E_ERROR_DECAY,
    E_FADE,
    E_LATENCY_DECAY,
    E_REFILL,
    E_REQUIRED,
    E_STALE,
    E_TARGET,
    EPOCH,
    Sim,
)


@inlined
def row(sim: Sim, e: int, b: int, w: int) -> int:
    """Of worker `w` as balancer `b` knows it."""
    return (e * sim.sizes.balancers + b) * sim.sizes.workers + w


@inlined
def balancers(sim: Sim, e: int) -> int:
    """Of the environment; arrays have room for the most of any."""
    return int(sim.plan.env[e, E_BALANCERS])


@inlined
def refill(sim: Sim, e: int, r: int, now_s: float) -> None:
    """`Fleet._refill`."""
    env = sim.plan.env
    limits = TokenLimits(env[e, E_CAPACITY], env[e, E_REFILL], env[e, E_TARGET])
    tokens_advance(sim.tokens, r, sim.queue.in_flight[r] + sim.queue.others[r], limits, now_s)


@inlined
def count_in(sim: Sim, e: int, k: int, w: int, now_s: float) -> None:
    """`Fleet.sent`: the deciding balancer counts its pick."""
    r = row(sim, e, sim.demand.balancer[e, k], w)
    queue_sent(sim.queue, sim.service, r, sim.demand.model[e, k], sim.demand.rows[e, k], now_s)
    refill(sim, e, r, now_s)
    tokens_take(sim.tokens, r)


@inlined
def observe_outcome(sim: Sim, e: int, k: int, latency_s: float, ok: bool, now_s: float) -> None:
    """`Router._finished`; a latency of NaN is none."""
    x, env = sim.state, sim.plan.env
    b = sim.demand.balancer[e, k]
    picked, server = x.picked[e, k], x.server[e, k]
    r = row(sim, e, b, picked)
    queue_ended(sim.queue, sim.service, r, sim.demand.model[e, k], sim.demand.rows[e, k], now_s)
    refill(sim, e, r, now_s)
    if server != picked:
        latency_observe(sim.latency, r, None, False, now_s, env[e, E_LATENCY_DECAY], env[e, E_ERROR_DECAY])
        r = row(sim, e, b, server)
    if math.isnan(latency_s):
        latency_observe(sim.latency, r, None, ok, now_s, env[e, E_LATENCY_DECAY], env[e, E_ERROR_DECAY])
    else:
        latency_observe(sim.latency, r, latency_s, ok, now_s, env[e, E_LATENCY_DECAY], env[e, E_ERROR_DECAY])


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
                rows = there * rows_per_request(sim.known.executed_rows[r, m], sim.known.answered[r, m])
                work_s += batch_work_s(sim.service, r, m, rows)
        queue_reported(sim.queue, r, pending, executing, work_s, balancers(sim, e), now_s)


@inlined
def forget_eligible(sim: Sim, e: int, b: int) -> None:
    """Something changed: look again at the next request."""
    sim.known.fresh_until_s[e, b] = -np.inf


@outlined
def lose_reports(sim: Sim, e: int, w: int) -> None:
    """`ReportsLost` at every balancer; what is on the way is lost too."""
    sim.state.whole[e * sim.sizes.workers + w, EPOCH] += 1
    for b in range(balancers(sim, e)):
        sim.known.reported_s[row(sim, e, b, w)] = -np.inf
        forget_eligible(sim, e, b)


@outlined
def announce(sim: Sim, e: int, w: int, draining: bool) -> None:
    """`WorkerAdded` at every balancer."""
    known = sim.known
    for b in range(balancers(sim, e)):
        r = row(sim, e, b, w)
        if not known.added[r]:
            known.added[r] = 1
            fade(sim, e, b, 0.0)
        known.draining[r] = draining
        forget_eligible(sim, e, b)


@outlined
def fade(sim: Sim, e: int, b: int, share: float) -> None:
    """`service.fade` and `queue.recount_all` for one balancer's rows."""
    s, n = sim.service, sim.sizes.workers
    first = row(sim, e, b, 0)
    for m in range(sim.sizes.models):
        fastest, least_s = -1, np.inf
        for r in range(first, first + n):
            forget(s, (r, m), share)
            time_s = known_s(s, (r, m))
            if time_s < least_s:
                fastest, least_s = r, time_s
        fixed_s, per_row_s = unknown_s(sim.plan.env[e, E_DEFAULT_S])
        if fastest >= 0:
            fixed_s, per_row_s = s.fixed_s[fastest, m], s.per_row_s[fastest, m]
        for r in range(first, first + n):
            set_prior(s, (r, m), fixed_s, per_row_s)
            service_fit(s, (r, m))
    for r in range(first, first + n):
        recount_worker(sim.queue, s, r)


@outlined
def fade_all(sim: Sim, e: int) -> None:
    """`Router.tick` of every balancer."""
    for b in range(balancers(sim, e)):
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
