"""Requests that wait at their balancers: the scheduler's wait queue and dispatch, over the engine's arrays."""

from functools import partial
from typing import Any

import numpy as np

from balancer.kernel import deciding, worker_columns
from balancer.kernel.compiled.numba_records import Native
from balancer.kernel.deciding import DRAWS, LATE
from balancer.kernel.policy_answers import Compiler
from balancer.kernel.state import Options, RequestFeatures
from balancer.scheduler.holding import wait_queue
from balancer.scheduler.holding.dispatch import dispatching
from balancer.scheduler.holding.state import MOST_S, NOBODY, SHEDS
from policies.base import FloatArray
from simulator.engine import knowledge
from simulator.engine import layout as at
from simulator.engine.calls import call, called_by_address
from simulator.engine.coming import NO_WORKER, SHED, assign, lay_out, overflow, refuse, request_of
from simulator.engine.compiled import from_source, inlined, outlined
from simulator.engine.event_heap import push
from simulator.engine.layout import Sim

_permit = from_source(deciding.permit, outlined)
_enter, _leave = from_source(wait_queue.enter, outlined), from_source(wait_queue.leave, outlined)
_position_of, _is_crowded = from_source(wait_queue.position_of), from_source(wait_queue.is_crowded)
_crowd_out = from_source(wait_queue.crowd_out, outlined)
_service_s = from_source(worker_columns.service_s)


@outlined
def _see(sim: Sim, how: Any, e: int, b: int, k: int, features: RequestFeatures, now_s: float) -> int:
    if now_s > sim.known.fresh_until_s[e, b]:
        knowledge.look_who_is_eligible(sim, e, b, now_s)
    of_line = (e * sim.sizes.balancers + b) * sim.sizes.models + sim.demand.model[e, k]
    if sim.known.eligible_count[of_line] == 0:
        return NOBODY
    lay_out(sim, e, k)
    count = _permit(sim, e, knowledge.row(sim, e, b, 0), features, now_s, sim.pending.found[e])
    if count == LATE:
        return SHEDS
    return max(count, 0)


@outlined
def _choose(sim: Sim, how: Any, e: int, b: int, k: int, features: RequestFeatures, now_s: float) -> int:
    number = sim.known.number[e, b]
    sim.known.number[e, b] = features.number
    sim.pending.how[e] = DRAWS
    w = call(how[0], sim, how[1], e, k, now_s)
    sim.known.number[e, b] = number
    return max(w, SHEDS)


_dispatch_held = dispatching(Compiler(partial(from_source, made=outlined), outlined), _see, _choose)
"""See `balancer.scheduler.holding.dispatch.Dispatch`; `how` is the decider's address and its options."""


@outlined
def _hold(sim: Sim, e: int, k: int, now_s: float) -> None:
    """The request, for which a worker is eligible, comes into its balancer's wait queue."""
    held, d = sim.held, sim.demand
    b = d.balancer[e, k]
    held.model[e, k], held.rows[e, k], held.deadline_s[e, k] = d.model[e, k], d.rows[e, k], d.deadline_s[e, k]
    held.priority[e, k], held.tenant[e, k] = d.priority[e, k], d.tenant[e, k]
    held.key[e, k], held.keyed[e, k] = d.key[e, k], d.key[e, k] != 0
    of_line = (e * sim.sizes.balancers + b) * sim.sizes.models + d.model[e, k]
    features = RequestFeatures(d.model[e, k], float(d.rows[e, k]), 0, 0.0, 0.0, 0.0, 0, 0.0, 0.0)
    service_s = np.inf
    for w in range(sim.sizes.workers):
        if sim.known.eligible[of_line, w]:
            r = knowledge.row(sim, e, b, w)
            service_s = min(service_s, _service_s(sim, e, w, r, features, now_s))
    _enter(held, e, b, k, service_s, now_s)
    push(sim.heap, e, now_s + held.settings[e, MOST_S], at.HELD_LONG, k)


@outlined
def _release(sim: Sim, e: int, k: int) -> bool:
    """The request leaves its balancer's wait queue, wherever it stands; whether it was there."""
    if not sim.held.is_held[e, k]:
        return False
    b = sim.demand.balancer[e, k]
    _leave(sim.held, e, b, _position_of(sim.held, e, b, k))
    return True


@outlined
def _dispatch(sim: Sim, e: int, b: int, decider: int, options: Options, now_s: float) -> None:
    if sim.held.length[e, b] == 0:
        return
    if sim.plan.env[e, at.E_EXACT]:
        knowledge.know_exactly(sim, e, b, now_s)
    held, number, first = sim.held, sim.known.number[e, b], knowledge.row(sim, e, b, 0)
    for i in range(_dispatch_held(sim, held, (decider, options), e, b, first, number, now_s)):
        k, w = held.leaves[e, i], held.goes_to[e, i]
        if w >= 0:
            _see(sim, (decider, options), e, b, k, request_of(sim, e, k, now_s), now_s)
            assign(sim, e, k, w, now_s)
        else:
            sim.known.number[e, b] += 1
            refuse(sim, e, k, NO_WORKER if w == NOBODY else SHED, now_s)


@inlined
def _come_in(sim: Sim, e: int, k: int, decider: int, options: Options, now_s: float) -> None:
    """A request that is held, and for which a worker is eligible, arrives."""
    b = sim.demand.balancer[e, k]
    _hold(sim, e, k, now_s)
    if _is_crowded(sim.held, e, b):
        overflow(sim, e, _crowd_out(sim.held, e, b), decider, options, now_s)


def _attend(sim: Sim, options: Options, e: int, event: int, now_s: float) -> int:
    """What an event means for those who are held; `event` is its payload. The request, where one arrives."""
    kind, subject = event >> at.KIND_BITS, event & ((1 << at.KIND_BITS) - 1)
    decider = int(sim.plan.env[e, at.E_DECIDER])
    if kind == at.HELD_LONG:
        if _release(sim, e, subject):
            overflow(sim, e, subject, decider, options, now_s)
        return 0
    if kind == at.GIVE_UP:
        _release(sim, e, subject)
        return 0
    first, end = 0, knowledge.balancers(sim, e)
    if kind == at.ARRIVAL:
        _come_in(sim, e, subject, decider, options, now_s)
    if kind == at.ARRIVAL or kind == at.OUTCOME or kind == at.LEFT:  # noqa: PLR1714 - `in` is no operation of compiled code here
        first = sim.demand.balancer[e, subject]
        end = first + 1
    elif kind == at.REPORT:
        first = (subject >> at.REPORT_BITS) % end
        end = first + 1
    for b in range(first, end):
        _dispatch(sim, e, b, decider, options, now_s)
    return 0


_holders: dict[Any, Any] = {}


def have_held(sim: Native, options: Native, env: FloatArray, decider: int) -> None:
    """Have the environments in which requests are held hold them by the decider at an address.

    What does so is called by its address too, so that the engine is no larger where nobody is held.
    """
    holding = env[:, at.E_HOLDS] > 0
    if holding.any():
        if sim.numba_type not in _holders:
            _holders[sim.numba_type] = called_by_address(_attend, "attend", sim, options)
        env[holding, at.E_HOLDER], env[holding, at.E_DECIDER] = _holders[sim.numba_type].address, decider
