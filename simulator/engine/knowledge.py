"""What balancers know and work out: picks and outcomes counted, service times fading, who is eligible. The estimators
are the core's own; reports come in `reports.py`.
"""

import numpy as np

from balancer.kernel import counting, limits_and_draw
from balancer.kernel.estimators import prefixes
from balancer.kernel.state import REPORTS_REQUIRED, RequestFeatures
from simulator.engine import layout as at
from simulator.engine.compiled import (
    from_source,
    inlined,
    mix,
    outlined,
    queue_reported,
    rows_per_request,
    take_lying,
)
from simulator.engine.event_heap import push
from simulator.engine.layout import Sim

_computed = from_source(prefixes.computed)
_learn_first_token, _learn_tokens = from_source(counting.learn_first_token), from_source(counting.learn_tokens)
count_in, finish, refill, fade = map(from_source, (counting.count_in, counting.finish, counting.refill, counting.fade))
remember, _remember_outcome = from_source(counting.remember), from_source(counting.remember_outcome)
_count_peer_out = from_source(counting.count_peer_out)
_keep_fresh, _fresh_until_s = from_source(limits_and_draw.keep_fresh), from_source(limits_and_draw.fresh_until_s)


@inlined
def row(sim: Sim, e: int, b: int, w: int) -> int:
    return (e * sim.sizes.balancers + b) * sim.sizes.workers + w


@inlined
def balancers(sim: Sim, e: int) -> int:
    """Of the environment; arrays have room for the most of any."""
    return int(sim.plan.env[e, at.E_BALANCERS])


@inlined
def tells_peers(sim: Sim, e: int) -> bool:
    return bool(sim.plan.env[e, at.E_PEERS] >= 0)


@inlined
def tell_peers(sim: Sim, e: int, k: int, ended: int, now_s: float) -> None:
    """A balancer picked, or saw a request of its own end: the others will hear of it."""
    if tells_peers(sim, e):
        push(sim.heap, e, now_s + sim.plan.env[e, at.E_PEERS], at.PEER, (k << 1) | ended)


@outlined
def hear_peer(sim: Sim, e: int, subject: int, now_s: float) -> None:
    k, ended = subject >> 1, subject & 1
    m, rows = sim.demand.model[e, k], float(sim.demand.rows[e, k])
    for b in range(balancers(sim, e)):
        if b == sim.demand.balancer[e, k]:
            continue
        r = row(sim, e, b, sim.state.picked[e, k])
        if ended:
            _count_peer_out(sim, e, r, m, rows, now_s)
        else:
            count_in(sim, e, r, m, rows, now_s)


@inlined
def observe_outcome(sim: Sim, e: int, k: int, latency_s: float, ok: bool, now_s: float) -> None:
    """`Router._finished`; a latency of NaN is none."""
    x, b = sim.state, sim.demand.balancer[e, k]
    picked = row(sim, e, b, x.picked[e, k])
    served = row(sim, e, b, x.server[e, k])
    model, rows, key = sim.demand.model[e, k], sim.demand.rows[e, k], sim.demand.key[e, k]
    tell_peers(sim, e, k, 1, now_s)
    finish(sim, e, picked, model, rows, served, latency_s, ok, now_s)
    if key != 0:
        features = RequestFeatures(model, float(rows), mix(key), 1.0, 0.0, 0.0, 0, 0.0, 0.0)
        _remember_outcome(sim, e, row(sim, e, b, 0), x.picked[e, k], x.server[e, k], features, ok, now_s)


@inlined
def _picked(sim: Sim, e: int, k: int) -> int:
    return row(sim, e, sim.demand.balancer[e, k], sim.state.picked[e, k])


@inlined
def hear_computed(sim: Sim, e: int, k: int) -> None:
    """A balancer hears that a prompt was computed, or will not be."""
    tokens = sim.state.to_compute[e, k]
    if tokens > 0:
        _computed(sim.prefixes, _picked(sim, e, k), tokens)
        sim.state.to_compute[e, k] = 0.0


@outlined
def hear_first_token(sim: Sim, e: int, k: int, now_s: float) -> None:
    x = sim.state
    if x.to_compute[e, k] > 0:
        hear_computed(sim, e, k)
        x.heard_first_s[e, k] = now_s
        seconds = now_s - x.decided_s[e, k]
        _learn_first_token(sim, e, _picked(sim, e, k), sim.demand.model[e, k], x.ahead[e, k], seconds)


@outlined
def hear_generated(sim: Sim, e: int, k: int, ok: bool, now_s: float) -> None:
    """A balancer hears of the end of a request to a model that generates."""
    x, m = sim.state, sim.demand.model[e, k]
    hear_computed(sim, e, k)
    if ok and x.server[e, k] == x.picked[e, k]:
        heard_s = x.heard_first_s[e, k]
        seconds, tokens = now_s - heard_s if heard_s > 0 else 0.0, float(sim.demand.output[e, k])
        _learn_tokens(sim, e, _picked(sim, e, k), m, x.beside[e, k], seconds, tokens)


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
            pending += x.queued[g, m]
            executing += x.executing[g, m]
            if balancers(sim, e) > 1:
                sim.queue.forming_rows[r, m] = 0.0
            rows = rows_per_request(sim.known.executed_rows[r, m], sim.known.answered[r, m])
            work_s += take_lying(sim.queue, sim.service, r, m, x.queued[g, m], x.executing[g, m], rows)
        queue_reported(sim.queue, r, pending, executing, work_s, now_s)


@inlined
def forget_eligible(sim: Sim, e: int, b: int) -> None:
    """Something changed: look again at the next request."""
    sim.known.fresh_until_s[e, b] = -np.inf


@outlined
def lose_reports(sim: Sim, e: int, w: int) -> None:
    """`ReportsLost` at every balancer; what is on the way is lost too."""
    sim.state.whole[e * sim.sizes.workers + w, at.EPOCH] += 1
    for b in range(balancers(sim, e)):
        sim.decision.reported_s[row(sim, e, b, w)] = -np.inf
        forget_eligible(sim, e, b)


@outlined
def announce(sim: Sim, e: int, w: int, draining: bool) -> None:
    known = sim.known
    for b in range(balancers(sim, e)):
        r = row(sim, e, b, w)
        if not known.added[r]:
            known.added[r] = 1
            fade(sim, e, row(sim, e, b, 0), sim.sizes.workers, 0.0)
        known.draining[r] = draining
        forget_eligible(sim, e, b)


@outlined
def fade_all(sim: Sim, e: int) -> None:
    for b in range(balancers(sim, e)):
        fade(sim, e, row(sim, e, b, 0), sim.sizes.workers, sim.plan.env[e, at.E_FADE])


@inlined
def is_member(sim: Sim, e: int, r: int, w: int, m: int) -> bool:
    """`Fleet.members`: as `_servable`, but for draining."""
    known, g = sim.known, e * sim.sizes.workers + w
    if not known.added[r]:
        return False
    if not known.ready[r]:
        return not sim.decision.settings[e, REPORTS_REQUIRED] and sim.plan.permitted[g, m, 0]
    return known.loaded[r, m] == at.LOADED and sim.plan.permitted[g, m, 1]


@inlined
def _servable(sim: Sim, e: int, r: int, w: int, m: int) -> bool:
    """`Fleet.objections`; without required reports, one that never reported is believed to have every model."""
    return not sim.known.draining[r] and is_member(sim, e, r, w, m)


@outlined
def look_who_is_eligible(sim: Sim, e: int, b: int, now_s: float) -> None:
    known, n = sim.known, sim.sizes.workers
    first = row(sim, e, b, 0)
    for m in range(sim.sizes.models):
        line = (e * sim.sizes.balancers + b) * sim.sizes.models + m
        for w in range(n):
            known.eligible[line, w] = _servable(sim, e, first + w, w, m)
        known.eligible_count[line] = _keep_fresh(sim, e, first, now_s, known.eligible[line])
    known.fresh_until_s[e, b] = _fresh_until_s(sim, e, first, n, now_s)
