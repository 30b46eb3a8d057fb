"""A request comes: it is refused, or decided and sent. By balancer `b`; `decider` is the address of a policy's code."""

import numpy as np

from balancer.kernel import deciding, limits_and_draw, worker_columns
from balancer.kernel.deciding import COUNTS, DRAWS, LIMITS, NAMES
from balancer.kernel.state import Options, RequestFeatures
from balancer.scheduler.holding.state import PLACES_BEYOND
from simulator.engine import knowledge
from simulator.engine import layout as at
from simulator.engine.calls import call
from simulator.engine.compiled import from_source, inlined, mix, outlined
from simulator.engine.event_heap import push
from simulator.engine.layout import Sim
from simulator.engine.leaving import foresee
from simulator.engine.requests import count_system, generates, lay_out_prefix, log_prompt, send
from simulator.engine.sequences import find_worker, in_sequence
from simulator.result import Status

_name_fallbacks, _uniform_of = from_source(limits_and_draw.name_fallbacks), from_source(limits_and_draw.uniform_of)
_admit, _take = from_source(deciding.admit), from_source(deciding.take)
_match = from_source(worker_columns.match)
SHED, NO_WORKER = int(Status.SHED), int(Status.NO_WORKER)


@inlined
def refuse(sim: Sim, e: int, k: int, status: int, now_s: float) -> None:
    x = sim.state
    x.status[e, k] = status
    x.resolved_s[e, k] = now_s
    x.picked[e, k] = x.server[e, k] = -1
    x.counts[e, at.ENDED] += 1
    count_system(sim, e, -1, now_s)
    if sim.plan.env[e, at.E_CLIENTS] > 0:
        push(sim.heap, e, now_s, at.ANSWER, 0)


@outlined
def _lay_out_prompt(sim: Sim, e: int, k: int) -> float:
    """Write down what a prompt begins with, and what each worker has of it, where a decision looks for it; returns its
    tokens."""
    tokens = lay_out_prefix(sim, e, k)
    _match(sim, e, knowledge.row(sim, e, sim.demand.balancer[e, k], 0), sim.demand.model[e, k])
    return float(tokens)


@inlined
def request_of(sim: Sim, e: int, k: int, now_s: float) -> RequestFeatures:
    """The request as the kernel takes it: a key of 0 is none, and the deadline is what is left of it."""
    d = sim.demand
    number, key = sim.known.number[e, d.balancer[e, k]], d.key[e, k]
    keyed = 1.0 if key != 0 else 0.0
    mixed = mix(key if key != 0 else np.uint64(number))
    left_s = d.deadline_s[e, k] - (now_s - sim.state.arrived_s[e, k])
    prompt_tokens = _lay_out_prompt(sim, e, k) if generates(sim, e, d.model[e, k]) else 0.0
    of_request = d.rows[e, k], mixed, keyed, left_s, d.priority[e, k], number, prompt_tokens, 0.0
    return RequestFeatures(d.model[e, k], *of_request)


@inlined
def uniform_of(sim: Sim, e: int, b: int) -> float:
    return _uniform_of(sim.plan.router_seed[e, b], np.uint64(sim.known.number[e, b]))


@outlined
def admit(sim: Sim, e: int, k: int, b: int, now_s: float) -> int:
    """How many of those in `decision.mask` may be picked, and are left there, or why nobody may."""
    first, features = knowledge.row(sim, e, b, 0), request_of(sim, e, k, now_s)
    return int(_admit(sim, e, first, features, now_s, sim.pending.found[e]))


@inlined
def arrive(sim: Sim, e: int, k: int, now_s: float) -> None:
    sim.state.arrived_s[e, k] = now_s
    count_system(sim, e, 1, now_s)
    foresee(sim, e, k, now_s)


@inlined
def count_eligible(sim: Sim, e: int, k: int, now_s: float) -> int:
    """How many workers are eligible for a request, 0 where it was refused for that."""
    known, b = sim.known, sim.demand.balancer[e, k]
    if sim.plan.env[e, at.E_EXACT]:
        knowledge.know_exactly(sim, e, b, now_s)
    if now_s > known.fresh_until_s[e, b]:
        knowledge.look_who_is_eligible(sim, e, b, now_s)
    line = (e * sim.sizes.balancers + b) * sim.sizes.models + sim.demand.model[e, k]
    count = known.eligible_count[line]
    if count == 0:
        known.number[e, b] += 1
        refuse(sim, e, k, NO_WORKER, now_s)
    return count


@inlined
def lay_out(sim: Sim, e: int, k: int) -> None:
    line = (e * sim.sizes.balancers + sim.demand.balancer[e, k]) * sim.sizes.models + sim.demand.model[e, k]
    for w in range(sim.sizes.workers):
        sim.decision.mask[e, w] = sim.known.eligible[line, w]


@inlined
def meet(sim: Sim, e: int, k: int, now_s: float) -> bool:
    """Whether somebody may be picked for a request by who decides it elsewhere, or else it was refused."""
    lay_out(sim, e, k)
    if admit(sim, e, k, sim.demand.balancer[e, k], now_s) > 0:
        return True
    _end(sim, e, k, -1, now_s)
    return False


@outlined
def meet_sequence(sim: Sim, e: int, k: int, now_s: float) -> int:
    """The worker that a request's sequence belongs to; -1 where the request was refused; `decision.mask` has all
    that it may belong to.
    """
    known, b, mask = sim.known, sim.demand.balancer[e, k], sim.decision.mask[e]
    if sim.plan.env[e, at.E_EXACT]:
        knowledge.know_exactly(sim, e, b, now_s)
    w = find_worker(sim, e, k)
    if w >= 0:
        mask[:] = False
        mask[w] = True
        full = admit(sim, e, k, b, now_s) < 0
        find_worker(sim, e, k)
        if not full:
            return w
    known.number[e, b] += 1
    refuse(sim, e, k, SHED if w >= 0 else NO_WORKER, now_s)
    return -1


@outlined
def _name_those_after(sim: Sim, e: int, k: int, w: int, now_s: float) -> None:
    first = knowledge.row(sim, e, sim.demand.balancer[e, k], 0)
    _name_fallbacks(sim, e, first, w, request_of(sim, e, k, now_s), now_s, sim.state.fallback[e, k])


@inlined
def _end(sim: Sim, e: int, k: int, w: int, now_s: float) -> None:
    """A decision was made, and counted in: worker `w`, or below 0 nobody."""
    sim.known.number[e, sim.demand.balancer[e, k]] += 1
    if w < 0:
        refuse(sim, e, k, SHED, now_s)
        return
    sim.state.picked[e, k] = w
    if generates(sim, e, sim.demand.model[e, k]):
        sim.state.to_compute[e, k] = sim.decision.to_compute[e]
        sim.state.ahead[e, k], sim.state.beside[e, k] = sim.decision.ahead[e], sim.decision.beside[e]
        sim.state.matched[e, k] = sim.demand.tokens[e, k] - sim.decision.to_compute[e]
        sim.state.decided_s[e, k] = now_s
        if knowledge.balancers(sim, e) > 1:
            log_prompt(sim, e, k, w)
    knowledge.tell_peers(sim, e, k, 0, now_s)
    send(sim, e, k, w, now_s)


@inlined
def assign(sim: Sim, e: int, k: int, w: int, now_s: float) -> None:
    if w >= 0:
        if sim.plan.env[e, at.E_FALLIBLE] and not in_sequence(sim, e, k):
            _name_those_after(sim, e, k, w, now_s)
        _take(sim, e, knowledge.row(sim, e, sim.demand.balancer[e, k], 0), w, request_of(sim, e, k, now_s), now_s)
    _end(sim, e, k, w, now_s)


@inlined
def place(sim: Sim, e: int, k: int, decider: int, options: Options, now_s: float) -> None:
    lay_out(sim, e, k)
    sim.pending.how[e] = LIMITS | DRAWS | COUNTS | (NAMES if sim.plan.env[e, at.E_FALLIBLE] else 0)
    placer = int(sim.plan.env[e, at.E_PLACER])
    decides = placer if placer > 0 and sim.demand.key[e, k] != 0 else decider
    _end(sim, e, k, call(decides, sim, options, e, k, now_s), now_s)


@outlined
def overflow(sim: Sim, e: int, k: int, decider: int, options: Options, now_s: float) -> None:
    if sim.held.settings[e, PLACES_BEYOND] > 0:
        # As if it were not held.
        if count_eligible(sim, e, k, now_s) > 0:
            place(sim, e, k, decider, options, now_s)
    else:
        sim.known.number[e, sim.demand.balancer[e, k]] += 1
        refuse(sim, e, k, SHED, now_s)
